// The list of alerts: tick all, and take what has changed from the server, unless that would take a tick away.

import "./theme.js";

const place = (id) => document.getElementById(id);
const ticks = () => [...document.querySelectorAll('input[name="alert"]')];
const version = (page) => page.querySelector("[data-version]").dataset.version;
let known = version(document); // of which the list was made, so that nothing is lost between page and stream
let asking = 0;

document.addEventListener("change", ({ target }) => {
  if (target.id === "all") for (const tick of ticks()) tick.checked = target.checked;
  if (target.form?.classList.contains("filters") && target.localName === "select") target.form.requestSubmit();
});

async function refresh() {
  const mine = ++asking;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || mine !== asking || ticks().some((tick) => tick.checked)) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const focused = document.activeElement?.getAttribute("href");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (other && other.innerHTML !== part.innerHTML) part.innerHTML = other.innerHTML;
  }
  if (focused && document.activeElement === document.body) document.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  known = version(fresh);
}

new EventSource("alerts/events").addEventListener("message", ({ data }) => {
  if (data !== known) refresh();
});
