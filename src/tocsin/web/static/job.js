// The tab on the page of a DAG: the health of its jobs, their crash history, the end of their logs, their declarations.

import "./theme.js";
import { showParity } from "./parity.js";
import { keepAsking, linkToJob, linkToJobs, showActions, showFreshness, showNotes } from "./server.js";
import { ago, asOf, badge, count, cpu, el, hasLag, memory, put, restarts, span, utc } from "./words.js";

const EVERY_SECONDS = 3;
const PARITY_SECONDS = 30;
const FEW = 5;
const dag = new URLSearchParams(location.search).get("dag_id") ?? "";
const place = (id) => document.getElementById(id);
let last = { jobs: [], beside: [], notes: [], looked_at: null };
let chosen = "";
let all = false;

const query = (path, values) => `${path}?${new URLSearchParams({ dag_id: dag, ...values })}`;
const soon = keepAsking(() => query("api/job", {}), EVERY_SECONDS, show, (error) => showNotes(place("notes"), last.notes, error));
const soonLog = keepAsking(() => chosen && query("api/log", { job: chosen, text: place("text").value }), EVERY_SECONDS, showLog, () => {});
keepAsking(() => query("api/parity", {}), PARITY_SECONDS, showParity, () => {});

place("text").addEventListener("input", () => soonLog());

place("more").addEventListener("click", () => {
  all = !all;
  show(last);
});

function show(told) {
  last = told;
  showNotes(place("notes"), told.notes, null);
  const details = told.jobs.find((one) => one.row.job === chosen) ?? told.jobs[0];
  place("job").hidden = !details;
  place("empty").hidden = Boolean(details);
  if (!details) {
    const beside = told.beside.flatMap(({ job, dag }, n) => [n ? ", " : " Its batches work on what these do: ",
      el("a", { ...linkToJob(dag), text: job })]);
    put(place("empty"), [told.looked_at, told.beside], () =>
      ["No job belongs to this DAG.", ...beside, beside.length ? ". All jobs are on " : " All jobs are on ",
        el("a", { ...linkToJobs(), text: "Jobs" }), "."]);
    return;
  }
  if (details.row.job !== chosen) {
    chosen = details.row.job;
    soonLog();
  }
  showChoice(told.jobs);
  showState(details.row, told.looked_at);
  showCrashes(details.crashes);
  place("declared").hidden = details.facts.length === 0;
  put(place("facts"), details.facts, () =>
    details.facts.flatMap((fact) => [el("dt", { text: fact.name }), el("dd", { text: fact.text })]));
}

function showChoice(jobs) {
  place("choice").hidden = jobs.length < 2;
  put(place("choice"), [chosen, jobs.map((one) => [one.row.job, one.row.standing])], () =>
    jobs.map(({ row }) => {
      const made = el("button", { type: "button", "aria-pressed": String(row.job === chosen) },
        row.standing === "ok" ? null : badge(row), row.standing === "ok" ? null : " ", row.job);
      made.addEventListener("click", () => choose(row.job));
      return made;
    }));
}

function choose(job) {
  chosen = job;
  all = false;
  place("lines").replaceChildren();
  show(last);
  soonLog();
  place("choice").querySelector('[aria-pressed="true"]')?.focus();
}

function showState(row, looked_at) {
  place("name").textContent = row.kind === "detector" ? row.name : row.job;
  put(place("state"), [row.health, row.standing, row.mode, row.stage], () =>
    [badge(row), row.runs && row.mode ? el("span", { class: "muted", text: ` ${row.mode}` }) : null,
      row.stage ? " " : null, row.stage ? el("span", { class: "badge stage", text: row.stage }) : null]);
  place("reason").textContent = row.reason;
  showFreshness(place("freshness"), looked_at);
  showActions(place("actions"), row, soon);
  const figures = [
    ["process", !row.runs ? [] : [`pid ${row.pid}`, el("small", {}, "since ", ago(row.started_at))]],
    ["last heartbeat", row.age_seconds === null ? [] : [ago(row.at)]],
    ["lag", !hasLag(row) ? [] : [count(row.lag_records), el("small", { text: row.lag_records || row.lag_seconds ? `${span(row.lag_seconds)} behind` : "records" })]],
    ["memory", memory(row)],
    ["CPU, of one core", cpu(row)],
    ["records today", row.today ? [`${count(row.today.rows_in)} in`, el("small", { text: `${count(row.today.rows_out)} ${row.kind === "detector" ? "updates of findings" : "out"}` }), asOf(row)] : []],
    ["CPU time today", row.today ? [span(row.today.cpu_seconds), el("small", { text: restarts(row.today) })] : []],
    ["findings today", row.kind === "detector" && row.today ? [count(row.today.findings),
      row.last_finding_at === null ? null : el("small", {}, "last ", ago(row.last_finding_at))] : []],
  ].filter(([, made]) => made.length);
  put(place("figures"), figures.map(([what, made]) => [what, made.map((one) => one?.textContent ?? one)]), () =>
    figures.map(([what, made]) => el("div", {}, el("dt", { text: what }), el("dd", {}, ...made))));
}

function showCrashes(crashes) {
  const some = all ? crashes : crashes.slice(0, FEW);
  put(place("crash-rows"), some, () => some.map((one) =>
    el("tr", { class: one.failed ? "failed" : null },
      el("td", {}, ago(one.at), el("small", { text: utc(one.at) })),
      el("td", { class: "cause", text: one.cause }),
      cell("Exit code", exitCode(one), "number"),
      cell("Ran for", one.ran_seconds === null ? "–" : span(one.ran_seconds), "number"),
      cell("Condition", one.condition || "–"),
      cell("Back after", one.back_seconds === null ? "not yet" : span(one.back_seconds), "number"))));
  place("crash-rows").parentElement.hidden = crashes.length === 0;
  place("quiet").hidden = crashes.length > 0;
  place("more").hidden = crashes.length <= FEW;
  place("more").textContent = all ? `Show the last ${FEW}` : `Show all ${crashes.length}`;
}

/** Show no exit code for a process that was asked to stop; one that was killed has none. */
function exitCode(one) {
  if (one.exit_code !== null) return one.exit_code;
  return one.asked ? "–" : "none";
}

function cell(label, text, kind) {
  return el("td", { class: kind, "data-label": label, text });
}

function showLog(told) {
  const lines = place("lines");
  const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
  put(lines, told.lines, () => [told.lines.join("\n")]);
  if (atEnd) lines.scrollTop = lines.scrollHeight;
  lines.hidden = told.lines.length === 0;
  put(place("about-log"), [told.path, told.written_at, told.cut, told.lines.length], () =>
    told.written_at === null
      ? [`There is no log in ${told.path}.`]
      : [`The last ${count(told.lines.length)} lines${place("text").value ? " with this text" : ""}${told.cut ? "" : ", all there are"}, written `, ago(told.written_at), `: ${told.path}`]);
}
