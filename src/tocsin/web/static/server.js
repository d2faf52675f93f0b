// Reads from our application, and acts through Airflow's own API, so that Airflow's permissions and audit log apply.

import { ago, el, put, setClock } from "./words.js";

const AIRFLOW = new URL("../", location.href);
const DONE_SECONDS = 120;

const isAirflow = "airflow" in document.documentElement.dataset;

function airflow(path) {
  return new URL(path, AIRFLOW).href;
}

/** Give the attributes of a link to the jobs of a DAG: the tab of Airflow, or a page of ours. */
export function linkToJob(dag) {
  if (!isAirflow) return { href: `job?dag_id=${encodeURIComponent(dag)}` };
  return { href: airflow(`dags/${dag}/plugin/job`), "data-airflow": true };
}

/** Give the attributes of a link to the page of all jobs. */
export function linkToJobs() {
  return isAirflow ? { href: airflow("plugin/jobs"), "data-airflow": true } : { href: "jobs" };
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", headers: { Accept: "application/json" }, ...options });
  if (answer.ok) return answer.json();
  const told = await answer.json().catch(() => ({}));
  const error = new Error(typeof told.detail === "string" ? told.detail : `the server answers ${answer.status}`);
  error.status = answer.status;
  throw error;
}

/** Poll `path()` while the page is visible, unless it is null: `show` gets the answer, `fail` the error.
 * Returns a function that polls at once. */
export function keepAsking(path, seconds, show, fail) {
  let timer;
  let asking = 0;
  async function once() {
    clearTimeout(timer);
    const mine = ++asking;
    const wanted = path();
    try {
      const told = wanted && (await ask(wanted));
      if (mine !== asking) return;
      if (told) {
        setClock(told.now);
        show(told);
      }
    } catch (error) {
      if (mine !== asking) return;
      fail(error);
    }
    if (!document.hidden) timer = setTimeout(once, seconds * 1000);
  }
  document.addEventListener("visibilitychange", () => document.hidden || once());
  once();
  return once;
}

/** Show the notes above a page: the server's, and a failure to reach it. */
export function showNotes(place, notes, error) {
  const all = error ? [{ severity: "problem", text: faultText(error) }, ...notes] : notes;
  put(place, all, () => all.map((note) => el("p", { class: `note ${note.severity}`, text: note.text })));
}

function faultText(error) {
  if (error.status === 401) return "Your login has expired. Log in again; this page is out of date.";
  if (error.status === 403) return "You may not see this.";
  if (error.status) return `The page cannot be refreshed: ${error.message}. It is out of date.`;
  return "The server does not answer; the jobs keep running. This page is out of date.";
}

/** Show how old the figures are. */
export function showFreshness(place, looked_at) {
  put(place, [looked_at], () => (looked_at === null ? ["never read"] : ["updated ", ago(looked_at)]));
}

let hide;

export function say(text, severity = "") {
  const place = document.getElementById("said");
  place.textContent = text;
  place.className = `said shown ${severity}`;
  clearTimeout(hide);
  hide = setTimeout(() => (place.className = "said"), 6000);
}

const WAYS = {
  pause: { label: "Pause", doing: "Pausing…", done: (row) => !row.runs },
  unpause: { label: "Unpause", doing: "Starting…", done: (row) => row.runs },
  restart: { label: "Restart", doing: "Restarting…", done: (row, before) => row.runs && row.pid !== before.pid },
};
const pending = new Map();

function call(action, row) {
  const dag = encodeURIComponent(row.dag);
  const json = { "Content-Type": "application/json", Accept: "application/json" };
  if (action === "restart") {
    const conf = row.kind === "detector" ? { action } : { action, job: row.job };
    const body = JSON.stringify({ logical_date: null, conf });
    return ask(airflow(`api/v2/dags/${dag}/dagRuns`), { method: "POST", headers: json, body });
  }
  const body = JSON.stringify({ is_paused: action === "pause" });
  return ask(airflow(`api/v2/dags/${dag}`), { method: "PATCH", headers: json, body });
}

/** Show the buttons for one job that the user may press, or the action under way. `soon` polls at once. */
export function showActions(place, row, soon) {
  const waits = pending.get(row.job);
  if (waits && (WAYS[waits.action].done(row, waits.before) || Date.now() > waits.until)) pending.delete(row.job);
  const doing = pending.get(row.job)?.action ?? null;
  const ways = doing ? [doing] : [];
  if (!doing && row.may_switch) ways.push(row.off ? "unpause" : "pause");
  if (!doing && row.may_restart) ways.push("restart");
  const focused = place.contains(document.activeElement);
  place.row = row;
  place.soon = soon;
  put(place, [row.job, ways, doing], () => ways.map((action) => button(place, action, doing)));
  if (focused && !place.contains(document.activeElement)) place.querySelector("button")?.focus();
}

function button(place, action, doing) {
  const text = doing ? WAYS[action].doing : WAYS[action].label;
  // The action under way keeps the focus, so its button is not disabled; pressing it does nothing.
  const attributes = { type: "button", "data-action": action, "aria-label": `${text} ${place.row.job}` };
  const made = el("button", { ...attributes, "aria-disabled": doing ? "true" : null, text });
  if (!doing) made.addEventListener("click", () => act(place, action));
  return made;
}

async function act(place, action) {
  const { row, soon } = place;
  pending.set(row.job, { action, before: row, until: Date.now() + DONE_SECONDS * 1000 });
  showActions(place, row, soon);
  try {
    await call(action, row);
    say(`${row.name}: ${WAYS[action].doing}`);
  } catch (error) {
    pending.delete(row.job);
    const why = error.status === 403 ? "you may not do that" : error.message;
    say(`${row.name}: ${why}`, "problem");
    showActions(place, row, soon);
  }
  soon();
}
