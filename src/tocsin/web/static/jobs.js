// The page of all jobs: a row for each, kept up to date in place, so that nothing moves under a finger or a focus.

import "./theme.js";
import { keepAsking, linkToJob, showActions, showFreshness, showNotes } from "./server.js";
import { ago, asOf, badge, count, cpu, el, hasLag, memory, put, restarts, short, span } from "./words.js";

const EVERY_SECONDS = 3;
const GROUPS = { problem: "Needs attention", detector: "Detectors", platform: "Platform", unrun: "Drafts and retired" };
const CELLS = [
  ["who", null], ["how", null], ["number", "Lag"], ["number", "Memory"], ["number", "CPU"],
  ["number", "Today (UTC)"], ["when", "Findings"], ["why", "Last restart"], ["do", null],
];
const shown = new Map();
const place = (id) => document.getElementById(id);
let last = { rows: [], notes: [], looked_at: null };

const soon = keepAsking(() => "api/jobs", EVERY_SECONDS, show, (error) => showNotes(place("notes"), last.notes, error));

place("filter").addEventListener("input", () => arrange(last.rows));

function show(list) {
  last = list;
  showNotes(place("notes"), list.notes, null);
  showFreshness(place("freshness"), list.looked_at);
  summarize(list.rows);
  for (const row of list.rows) fill(row);
  arrange(list.rows);
  place("jobs").setAttribute("aria-busy", "false");
}

function summarize(rows) {
  const words = { problem: "failing", warning: "to watch", ok: "running", off: "off" };
  const counts = Object.entries(words).map(([severity, word]) => [severity, word, rows.filter((row) => row.standing === severity).length]);
  put(place("summary"), counts, () =>
    counts.filter(([, , number]) => number).map(([severity, word, number]) =>
      el("li", {}, el("span", { class: `badge ${severity}`, text: `${number} ${word}` }))));
}

function groupOf(row) {
  if (row.standing === "problem") return "problem";
  if (row.standing === "off" && row.health === row.stage) return "unrun";
  return row.kind === "detector" ? "detector" : "platform";
}

function matches(row, words) {
  const text = `${row.job} ${row.stage} ${row.health} ${row.title} ${row.mode}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Sort the rows into their groups, moving only those that are out of place. */
function arrange(rows) {
  const words = place("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const focused = document.activeElement;
  const wanted = rows.filter((row) => matches(row, words));
  for (const [group, title] of Object.entries(GROUPS)) {
    const body = place(group);
    const own = wanted.filter((row) => groupOf(row) === group).map((row) => shown.get(row.job));
    if (!body.heading) {
      body.heading = el("tr", { class: "group" }, el("th", { colspan: CELLS.length, scope: "rowgroup", text: title }));
    }
    const order = own.length ? [body.heading, ...own] : [];
    order.forEach((line, index) => {
      if (body.children[index] !== line) body.insertBefore(line, body.children[index] ?? null);
    });
    while (body.children.length > order.length) body.lastElementChild.remove();
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus();
  const known = new Set(rows.map((row) => row.job));
  for (const job of shown.keys()) if (!known.has(job)) shown.delete(job);
  place("jobs").hidden = wanted.length === 0;
  place("empty").hidden = wanted.length > 0;
  place("empty").textContent = rows.length ? "No job matches the filter." : "There are no jobs, or none that you may see.";
}

function fill(row) {
  let line = shown.get(row.job);
  if (!line) {
    const cells = CELLS.map(([kind, label]) => el("td", { class: kind, "data-label": label }));
    line = el("tr", { "data-job": row.job }, ...cells);
    shown.set(row.job, line);
  }
  const look = `job ${row.standing}`;
  if (line.className !== look) line.className = look;
  const [who, how, lag, held, busy, today, found, restart, actions] = line.children;
  put(who, [row.name, row.stage, row.title, row.kind], () => name(row));
  put(how, [row.health, row.standing, row.mode, row.reason], () => state(row));
  put(lag, [hasLag(row), row.lag_records, row.lag_seconds], () => behind(row));
  put(held, [row.runs, row.rss_bytes, row.declared_bytes, row.over_memory], () => memory(row));
  put(busy, [row.cores, row.busy], () => cpu(row));
  put(today, [row.today, row.today_at === null, asOf(row) !== null], () => [...taken(row), asOf(row)]);
  put(found, [row.today?.findings, row.last_finding_at, row.kind, row.unexplained], () => findings(row));
  put(restart, [row.last_restart], () => restarted(row.last_restart));
  if (!actions.firstElementChild) actions.append(el("div", { class: "actions" }));
  showActions(actions.firstElementChild, row, soon);
}

function name(row) {
  const label = row.kind === "detector" ? row.name : row.job;
  const link = el("a", { ...linkToJob(row.dag), text: label });
  const stage = row.stage ? el("span", { class: "badge stage", text: row.stage }) : null;
  return [link, stage && " ", stage, el("small", { text: row.title, title: row.title })];
}

function state(row) {
  return [badge(row), row.runs && row.mode ? el("span", { class: "muted", text: ` ${row.mode}` }) : null,
    row.reason ? el("small", { text: row.reason }) : null];
}

function behind(row) {
  if (!hasLag(row)) return [];
  return [el("span", { text: count(row.lag_records) }), row.lag_records || row.lag_seconds ? el("small", { text: span(row.lag_seconds) }) : null];
}

function taken({ kind, today, today_at }) {
  if (!today) return today_at === null ? [el("small", { text: "being read" })] : [];
  const out = kind === "detector" ? "updates of findings" : "out";
  const exact = `${count(today.rows_in)} records in, ${count(today.rows_out)} ${out}`;
  return [el("span", { title: exact, text: `${short(today.rows_in)} in, ${short(today.rows_out)} ${out.split(" ")[0]}` }),
    el("small", { text: `${span(today.cpu_seconds)} CPU, ${restarts(today)}` })];
}

function findings(row) {
  if (row.kind !== "detector") return [];
  const known = row.today || row.last_finding_at !== null;
  return [known ? el("span", { text: `${count(row.today?.findings ?? 0)} today` }) : null,
    row.last_finding_at === null ? null : el("small", {}, "last ", ago(row.last_finding_at)),
    row.unexplained ? el("small", { class: "mark", title: "from the backfill, on the days compared last",
      text: `${count(row.unexplained)} unexplained` }) : null];
}

function restarted(restart) {
  return restart ? [ago(restart.at), el("small", { text: restart.cause })] : [];
}
