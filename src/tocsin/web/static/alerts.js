// The list of alerts: tick all, and take what has changed from the server, unless something is ticked.

import { refresh } from "./live.js";

const ticks = () => [...document.querySelectorAll('input[name="alert"]')];
const version = (page) => page.querySelector("[data-version]").dataset.version;
let known = version(document); // of which the list was made, so that nothing is lost between page and stream

document.addEventListener("change", ({ target }) => {
  if (target.id === "all") for (const tick of ticks()) tick.checked = target.checked;
  if (target.form?.classList.contains("filters") && target.localName === "select") target.form.requestSubmit();
});

new EventSource("alerts/events").addEventListener("message", async ({ data }) => {
  if (data === known) return;
  const fresh = await refresh(() => ticks().some((tick) => tick.checked));
  if (fresh) known = version(fresh);
});
