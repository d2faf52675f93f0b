// Figures, times and elements. Whatever comes from the server becomes text, never markup.

/** An element with attributes (`text` is its text) and children; null children are left out. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function count(number) {
  return number === null || number === undefined ? "" : Math.round(number).toLocaleString("en");
}

/** A count in a narrow column: 950, 12.3 k, 4.5 M. */
export function short(number) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (number >= size) return `${(number / (unit === "k" ? 1e3 : size)).toFixed(1)} ${unit}`;
  }
  return count(number);
}

export function megabytes(bytes) {
  return `${count(bytes / 1e6)} MB`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** Read a time: epoch seconds, or ISO 8601. */
function seconds(at) {
  return typeof at === "string" ? Date.parse(at) / 1000 : at;
}

/** Tell whether the job measures how far behind it is. */
export function hasLag(row) {
  return row.runs && (row.state === "running" || row.state === "draining");
}

export function utc(at) {
  return `${new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")}Z`;
}

// The server's clock minus this machine's, in seconds: ages are measured by the server's.
let ahead = 0;

export function setClock(now) {
  ahead = now - Date.now() / 1000;
}

export function age(at) {
  return Math.max(0, Date.now() / 1000 + ahead - at);
}

/** Show how long ago it was, kept up to date; the time itself is in its title. */
export function ago(when) {
  const at = seconds(when);
  const made = el("time", { datetime: new Date(at * 1000).toISOString(), title: utc(at), "data-at": at });
  made.textContent = agoText(at);
  return made;
}

function agoText(at) {
  const seconds = age(at);
  return seconds < 2 ? "just now" : `${span(Math.round(seconds)).replace(".0", "")} ago`;
}

setInterval(() => {
  for (const made of document.querySelectorAll("time[data-at]")) {
    const text = agoText(Number(made.dataset.at));
    if (made.textContent !== text) made.textContent = text;
  }
}, 1000);

/** Put children into `place`, unless `made_of` is the same as the last time. */
export function put(place, made_of, make) {
  const signature = JSON.stringify(made_of);
  if (place.signature === signature) return;
  place.signature = signature;
  place.replaceChildren(...make().filter((child) => child !== null && child !== undefined));
}

const OLD_SECONDS = 120;

/** Show when the figures of the day were read, if they are old. */
export function asOf(row) {
  if (!row.today || row.today_at === null || age(row.today_at) < OLD_SECONDS) return null;
  return el("small", {}, "as of ", ago(row.today_at));
}

export function restarts(today) {
  return today.restarts === 1 ? "1 restart" : `${count(today.restarts)} restarts`;
}

export function badge(row) {
  return el("span", { class: `badge ${row.standing}`, text: row.health });
}

/** Show the memory of a process, marked when it exceeds its limit. */
export function memory(row) {
  if (!row.runs || !row.rss_bytes) return [];
  const limit = row.declared_bytes === null ? null : `of ${megabytes(row.declared_bytes)}`;
  return [
    el("span", { class: row.over_memory ? "mark" : null, text: megabytes(row.rss_bytes) }),
    limit && el("small", { class: row.over_memory ? "mark" : null, text: row.over_memory ? `over, ${limit}` : limit }),
  ];
}

export function cpu(row) {
  if (row.cores === null) return [];
  const title = `of one core, on average over ${span(row.cores_seconds)}`;
  return [
    el("span", { class: row.busy ? "mark" : null, title, text: `${Math.round(row.cores * 100)} %` }),
    row.busy ? el("small", { class: "mark", text: "uses a core" }) : null,
  ];
}
