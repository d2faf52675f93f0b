// The section of a detector's tab that compares stream and backfill.

import { ago, count, el, put, utc } from "./words.js";

const place = (id) => document.getElementById(id);

export function showParity(told) {
  place("parity").hidden = !told.detector;
  put(place("about-parity"), [told.detector, told.days.length, told.earlier, told.fault], () => about(told));
  put(place("days"), told.days, () => told.days.map(dayRow));
  place("days").parentElement.hidden = told.days.length === 0;
  put(place("unlike"), told.unexplained, () => told.unexplained.map(unlikeRow));
  place("unexplained").hidden = told.unexplained.length === 0;
}

function about(told) {
  if (told.fault) return [`The comparisons cannot be read: ${told.fault}`];
  const ask = `tocsin parity --detector ${told.detector}`;
  if (!told.days.length) {
    return ["No day has been compared yet. The backfill DAG compares each night, once a day is backfilled; ",
      el("code", { text: ask }), " compares now."];
  }
  const more = told.earlier ? `, of ${count(told.days.length + told.earlier)} stored` : "";
  return [`The stream's findings and the published backfill, for the days compared last${more}. `,
    el("code", { text: `${ask} --day DAY` }), " lists each difference."];
}

function dayRow(day) {
  if (day.fault) return el("tr", {}, el("td", { text: day.day }), el("td", { class: "cause mark", colspan: 4, text: day.fault }));
  const differing = Object.values(day.reasons).reduce((sum, number) => sum + number, 0);
  return el("tr", { class: day.unexplained ? "failed" : null },
    el("td", { text: day.day }),
    cell("Agree", count(day.same), "number"),
    cell("Differ", count(differing), "number"),
    el("td", { "data-label": "Reasons" }, ...reasons(day)),
    el("td", { "data-label": "Compared" }, ago(day.compared_at)));
}

function reasons(day) {
  const known = Object.entries(day.reasons).filter(([reason]) => reason !== "unexplained");
  const text = known.map(([reason, number]) => `${count(number)} ${reason}`).join(", ");
  const mark = el("span", { class: "badge problem", text: `${count(day.unexplained)} unexplained` });
  if (!day.unexplained) return text ? [text] : [el("span", { class: "badge ok", text: "the same" })];
  return text ? [mark, ` ${text}`] : [mark];
}

function unlikeRow(one) {
  const until = one.end > one.start ? `to ${utc(one.end).slice(11)}` : "one event";
  return el("tr", { class: "failed" },
    el("td", {}, utc(one.start), el("small", { text: until })),
    el("td", { class: "cause", "data-label": "Entity", text: one.entity }),
    cell("Stream", said(one.stream)),
    cell("Backfill", said(one.batch)),
    el("td", { class: "cause", "data-label": "Details", text: one.why }));
}

function said(told) {
  if (!told) return "nothing";
  return `${told.level} ${told.at_least ? "at least " : ""}${told.score.toLocaleString("en", { maximumFractionDigits: 6 })}`;
}

function cell(label, text, kind) {
  return el("td", { class: kind, "data-label": label, text });
}
