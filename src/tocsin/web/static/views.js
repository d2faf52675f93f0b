// Follows one view by server-sent events. Who is not logged in has a token behind the # of the address, which browsers
// send to nobody.

const WINDOWS = 6, ROWS = 12, MANY = 300, PAGES = 5, FLASH = 1200;
const find = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
let token = sessionStorage.getItem("token") ?? "";
let views = [], shown = null, following = null, drawn = false;
let rows = new Map(), cells = new Map();

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return false;
  token = given;
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
  return true;
}

function say(text, live = false) {
  find("state").textContent = text;
  find("state").classList.toggle("live", live);
}

async function ask(path, options = {}) {
  const headers = { ...(token && { Authorization: `Bearer ${token}` }), ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    find("login").hidden = false;
    find("view").hidden = true;
    throw new Error("a token is needed");
  }
  return answer;
}

// A number of JavaScript has 53 bits: a longer whole number stays the text that was sent.
const parse = (text) => JSON.parse(text, (_, value, context) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) ? context?.source ?? value : value);

async function look() {
  try {
    views = (await (await ask("views")).json()).views;
    find("login").hidden = true;
    if (!views.length) say("no views are declared");
    const wanted = views.find((view) => view.name === shown?.name) ?? views[0];
    if (wanted && wanted.name !== shown?.name) show(wanted);
    shown = wanted ?? null;
    tabs();
    facts();
  } catch (error) {
    say(error instanceof TypeError ? "the server does not answer; trying again" : error.message);
  }
}

function tabs() {
  find("views").replaceChildren(...views.map((view) => {
    const button = element("button", view.name);
    button.ariaCurrent = String(view.name === shown?.name);
    button.onclick = () => { show(view); tabs(); facts(); };
    return button;
  }));
}

function facts() {
  if (!shown) return;
  const fresh = shown.freshness;
  const pairs = fresh ? [
    ["behind by", behind(fresh)],
    ...(fresh.watermark ? [["complete until", clock(fresh.watermark)]] : []),
    ["sink", shown.sink],
    ["rows", number.format(rows.size)],
  ] : [];
  const parts = pairs.map(([name, text]) => {
    const part = element("li", `${name} `);
    part.append(element("b", text));
    return part;
  });
  if (fresh?.rebuilding) parts.push(element("li", "a new build is filling"));
  if (shown.reason) parts.push(element("li", shown.reason));
  find("facts").replaceChildren(...parts);
}

// Without a report the number of records is unknown, and so is whether there are any.
function behind({ lag_records: records, lag_seconds: seconds }) {
  if (records === null) return seconds ? `at least ${number.format(Math.round(seconds))} s: no report since` : "unknown";
  return `${number.format(records)} record${records === 1 ? "" : "s"}`;
}

function show(view) {
  shown = view;
  rows = new Map();
  cells = new Map();
  find("view").hidden = false;
  find("title").textContent = view.title;
  draw();
  following?.abort();
  following = new AbortController();
  follow(view, following.signal);
}

async function follow(view, signal) {
  while (!signal.aborted) {
    try {
      const version = await load(view, signal);
      if (version !== null) await stream(view, version, signal);
    } catch (error) {
      if (!signal.aborted) say(error instanceof TypeError ? "the server does not answer; trying again" : error.message);
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

// The rows of now: of a view with windows, those of the last ones.
async function load(view, signal) {
  const path = `views/${encodeURIComponent(view.name)}`;
  let version = null;
  for (const window of view.window ? lastWindows(view.window) : [""]) {
    let cursor = "";
    for (let page = 0; page < PAGES && cursor !== null; page++) {
      const query = new URLSearchParams({ limit: "1000", cursor, ...(window && { window }) });
      const answer = await ask(`${path}?${query}`, { signal });
      const found = parse(await answer.text());
      if (answer.status !== 200) {
        say(found.reason ?? found.detail ?? `the server answers ${answer.status}`);
        return null;
      }
      version ??= found.freshness.version;
      for (const row of found.rows) put(row);
      cursor = found.next;
    }
  }
  return version;
}

function lastWindows(seconds) {
  const last = Math.floor(Date.now() / 1000 / seconds) * seconds;
  return Array.from({ length: WINDOWS }, (_, age) => new Date((last - age * seconds) * 1000).toISOString());
}

async function stream(view, version, signal) {
  const headers = { Accept: "text/event-stream", "Last-Event-ID": String(version) };
  const answer = await ask(`views/${encodeURIComponent(view.name)}`, { headers, signal });
  if (answer.status !== 200) return;
  say("live", true);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data && event.includes("event: row")) put(parse(data.slice(6)));
    }
  }
  say("the server closed the connection; trying again");
}

function put(row) {
  rows.set(JSON.stringify([row.name, row.window_start]), row);
  if (!drawn) {
    drawn = true;
    setTimeout(() => { drawn = false; draw(); }, 200);
  }
}

function draw() {
  if (!shown) return;
  const all = [...rows.values()];
  const keys = Object.keys(all[0]?.key ?? {});
  let cards;
  if (!all.length) cards = [wide(element("p", "No rows yet.", "empty"))];
  else if (shown.window) cards = windowCards(all, keys);
  else if (keys.join() === "hash,field") cards = [wide(hashTable(all))];
  else if (keys.length > 1) cards = groupCards(all, keys);
  else cards = [wide(rowTable(all.sort(byName), keys, MANY))];
  find("cards").replaceChildren(...cards);
}

function windowCards(all, keys) {
  const windows = Map.groupBy(all, (row) => row.window_start);
  const starts = [...windows.keys()].sort().reverse();
  for (const start of starts.slice(WINDOWS)) for (const row of windows.get(start)) rows.delete(JSON.stringify([row.name, start]));
  return starts.slice(0, WINDOWS).map((start) => {
    const found = windows.get(start).sort((one, other) => first(other) - first(one) || byName(one, other));
    const final = found.every((row) => row.final);
    const card = titled(`${clock(start)} to ${clock(found[0].window_end)}`, final ? "final" : "open", rowTable(found, keys, ROWS));
    card.querySelector(".tag").classList.toggle("open", !final);
    return card;
  });
}

function groupCards(all, [group, ...others]) {
  const groups = [...Map.groupBy(all, (row) => String(row.key[group]))].sort(([one], [other]) => (one < other ? -1 : 1));
  return groups.slice(0, 60).map(([name, found]) => titled(name, group, rowTable(found.sort(byName), others, MANY)));
}

// Hashes that a view names itself: "<name>::<part>" is a row called <name> with the columns of all its parts. A hash
// without a part gives the names that people know.
function hashTable(all) {
  const isNumber = /^-?(0|[1-9]\d{0,14})(\.\d+)?(E-?\d+)?$/;
  const known = new Map(), lines = new Map(), columns = new Set();
  for (const { key: { hash, field }, values: { value } } of all) {
    const [name, part] = String(hash).split("::");
    if (part === undefined) known.set(field, value);
    else { // all its values are texts, numbers too
      if (!lines.has(name)) lines.set(name, new Map());
      lines.get(name).set(`${part} ${field}`, isNumber.test(value) ? Number(value) : value);
      columns.add(`${part} ${field}`);
    }
  }
  const found = [...lines].map(([name, values]) => ({ id: name, head: [known.get(name) ?? name], values }));
  found.sort((one, other) => (one.head[0] < other.head[0] ? -1 : 1));
  return table([""], [...columns].sort(), found);
}

function rowTable(all, keys, most) {
  const columns = new Set(all.flatMap((row) => Object.keys(row.values)));
  const found = all.slice(0, most).map((row) => ({
    id: `${row.name} ${row.window_start}`, head: keys.map((key) => row.key[key]), values: new Map(Object.entries(row.values)),
  }));
  const made = table(keys, [...columns], found);
  if (all.length <= most) return made;
  const both = document.createDocumentFragment();
  both.append(made, element("p", `and ${number.format(all.length - most)} more`, "more"));
  return both;
}

function table(keys, columns, found) {
  const made = element("table"), head = element("tr");
  const isNumber = new Map(columns.map((column) => [column, found.some((line) => amount(line.values.get(column)) !== null)]));
  const most = new Map(columns.map((column) => [column, Math.max(0, ...found.map((line) => amount(line.values.get(column)) ?? 0))]));
  head.append(...keys.map((key) => element("th", key)), ...columns.map((column) => element("th", column, isNumber.get(column) ? "number" : "")));
  made.append(element("thead"), element("tbody"));
  made.tHead.append(head);
  for (const line of found) {
    const tr = element("tr");
    tr.append(...line.head.map((text) => element("td", String(text ?? ""))));
    for (const column of columns) tr.append(cell(`${line.id} ${column}`, line.values.get(column), most.get(column)));
    made.tBodies[0].append(tr);
  }
  return made;
}

function cell(id, value, most) {
  const td = element("td"), text = written(value), before = cells.get(id), size = amount(value);
  td.append(element("span", text));
  if (size !== null) {
    td.className = "number";
    td.style.setProperty("--share", String(most > 0 ? Math.max(0, size / most) : 0));
  }
  if (before?.text !== text) cells.set(id, { text, at: before ? Date.now() : 0 });
  const age = Date.now() - cells.get(id).at;
  if (age < FLASH) {
    td.classList.add("changed");
    td.style.setProperty("--age", `-${age}ms`);
  }
  return td;
}

const amount = (value) => (typeof value === "number" ? value : null);

function written(value) {
  const size = amount(value);
  if (size !== null) return (Math.abs(size) < 1 ? small : number).format(size);
  const isMoment = typeof value === "string" && /^\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:\d\d)$/.test(value);
  if (isMoment && !Number.isNaN(Date.parse(value))) return clock(value);
  return value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

// In UTC, with its date unless that is today.
function clock(time) {
  const [day, hours] = new Date(time).toISOString().split("T");
  return `${new Date().toISOString().startsWith(day) ? "" : `${day} `}${hours.slice(0, 8)}Z`;
}
const first = (row) => Object.values(row.values).map(amount).find((size) => size !== null) ?? 0;
const byName = (one, other) => (one.name < other.name ? -1 : one.name > other.name ? 1 : 0);

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function titled(title, tag, content) {
  const card = element("article", "", "card"), head = element("header");
  head.append(element("h3", title), element("span", tag, "tag"));
  card.append(head, content);
  return card;
}

function wide(content) {
  const card = element("article", "", "card wide");
  card.append(content);
  return card;
}

find("login").onsubmit = (event) => {
  event.preventDefault();
  token = find("token").value.trim();
  sessionStorage.setItem("token", token);
  look();
};
onhashchange = () => takeToken() && look();
takeToken();
look();
setInterval(look, 2000);
