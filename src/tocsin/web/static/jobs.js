// The pages of jobs: keeps them up to date, and acts through Airflow's own API, so that its permissions and audit log apply.

import { refresh } from "./live.js";

const EVERY_MS = 3000, DONE_MS = 120_000, SAID_MS = 6000;
const pending = new Map(); // what was asked of a job and is not done yet
const said = document.getElementById("said");
let timer, hide;

async function poll() {
  await refresh();
  mark();
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(poll, EVERY_MS);
}

/** Show what is under way in place of the buttons. That button stays, and with it the focus; pressing it does nothing. */
function mark() {
  for (const place of document.querySelectorAll("[data-job]")) {
    const { job, process } = place.dataset;
    const asked = pending.get(job);
    if (!asked) continue;
    const isDone = process !== asked.process && Boolean(process) !== asked.stops;
    if (isDone || Date.now() > asked.until) pending.delete(job);
    else for (const button of place.querySelectorAll("button")) {
      button.hidden = button.id !== asked.id;
      button.ariaDisabled = "true";
      button.textContent = asked.doing;
      button.ariaLabel = `${asked.doing} ${job}`;
    }
  }
}

function say(text, severity = "") {
  said.textContent = text;
  said.className = `said shown ${severity}`;
  clearTimeout(hide);
  hide = setTimeout(() => (said.className = "said"), SAID_MS);
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("button[data-call]");
  if (!button || button.ariaDisabled) return;
  const { job, process } = button.closest("[data-job]").dataset;
  const { call, body, doing } = button.dataset;
  pending.set(job, { id: button.id, doing, process, stops: "stops" in button.dataset, until: Date.now() + DONE_MS });
  mark();
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  const [method, path] = call.split(" ");
  const answer = await fetch(path, { method, headers, body }).catch(() => null);
  if (answer?.ok) say(`${job}: ${doing}`);
  else {
    pending.delete(job);
    const { detail } = (await answer?.json().catch(() => null)) ?? {};
    const why = answer ? (typeof detail === "string" ? detail : `the server answers ${answer.status}`) : "the server does not answer";
    say(`${job}: ${answer?.status === 403 ? "you may not do that" : why}`, "problem");
  }
  poll();
});

/** Ask for what was typed. */
function find(form) {
  history.replaceState(null, "", `?${new URLSearchParams(new FormData(form))}`);
  poll();
}

const typed = document.querySelector(".filter [name=find]");
typed?.addEventListener("input", () => find(typed.form));
if (typed && typed.value !== typed.defaultValue) find(typed.form); // before this ran
document.addEventListener("visibilitychange", () => document.hidden || poll());
timer = setTimeout(poll, EVERY_MS);
