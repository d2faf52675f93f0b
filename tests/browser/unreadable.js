// Lists what somebody who does not see a page, or sees it badly, would miss: names of what can be pressed or filled in,
// the heading, links that only their colour shows, and text with a contrast below 4.5 to 1.
() => {
  const faults = document.querySelectorAll("h1").length === 1 ? [] : ["no h1, or several"];
  const all = (what, isFault) => {
    for (const one of document.querySelectorAll(what)) if (isFault(one)) faults.push(one.outerHTML);
  };

  const texts = (one) => [one.ariaLabel, one.textContent, one.alt, ...[...(one.labels ?? [])].map((label) => label.textContent)];
  const isNamed = (one) => one.querySelector("[aria-label]") || texts(one).some((text) => text?.trim());
  all("a, button, summary, th, input:not([type=hidden]), select, [role=region]", (one) => !isNamed(one));
  all("p a:not(.button)", (one) => getComputedStyle(one).textDecorationLine !== "underline");

  const channel = (part) => (part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const parts = colour.match(/^rgb\((\d+), (\d+), (\d+)\)$/)?.slice(1).map(channel); // others are mixed: not looked at
    return parts && 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05;
  };
  const behind = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" && one.parentElement ? behind(one.parentElement) : colour;
  };
  all("body *", (one) => {
    const isText = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const [text, ground] = [light(getComputedStyle(one).color), light(behind(one))];
    return isText && one.checkVisibility() && text && ground && Math.max(text, ground) / Math.min(text, ground) < 4.5;
  });
  return faults;
}
