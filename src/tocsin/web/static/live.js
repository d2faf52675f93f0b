// Keeps parts of a page as the server renders them: reads the page again, and changes what differs below `data-live`.
// Elements that can stay do, so that nothing moves under a finger or a focus.

const FAULTS = { 401: "Your login has expired. Log in again", 403: "You may not see this" };
let asking = 0;

/** Read the page again, and show it unless `skip()` by then. Returns its document; null if none was shown. */
export async function refresh(skip = () => false) {
  const mine = ++asking;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  const status = answer?.redirected ? 401 : answer?.status;
  const text = status === 200 ? await answer.text().catch(() => null) : null;
  if (mine !== asking || skip()) return null;
  const stale = document.getElementById("stale");
  const fault = FAULTS[status] ?? (status ? `The server answers ${status}` : "The server does not answer; the jobs keep running");
  if (stale) {
    stale.textContent = text === null ? `${fault}. This page is out of date.` : "";
    stale.className = text === null ? "note problem" : "";
  }
  if (text === null) return null;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const focused = document.activeElement;
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (other) update(part, other);
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus();
  return fresh;
}

/** Make `place` like `fresh`; a child with an id stays itself, wherever it moves. */
function update(place, fresh) {
  for (const { name } of [...place.attributes]) if (!fresh.hasAttribute(name)) place.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (place.getAttribute(name) !== value) place.setAttribute(name, value);
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, index) => {
    const have = place.childNodes[index] ?? null;
    const known = node.id ? document.getElementById(node.id) : have;
    const own = known?.nodeName === node.nodeName && known.parentNode === place && (known.id ?? "") === (node.id ?? "");
    if (!own || known !== have) place.insertBefore(own ? known : node, have);
    if (own && node.localName) update(known, node);
    else if (own && known.data !== node.data) known.data = node.data;
  });
  while (place.childNodes.length > wanted.length) place.lastChild.remove();
}
