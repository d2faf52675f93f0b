// Makes the page look like the Airflow around it: light or dark as chosen there, in its colours and fonts. No module: it
// runs before anything is drawn.

const NAMES = [
  "colors-bg", "colors-bg-subtle", "colors-bg-muted", "colors-fg", "colors-fg-muted", "colors-fg-info", "colors-border",
  "colors-brand-solid", "colors-gray-subtle", "colors-gray-emphasized", "fonts-body", "fonts-mono",
  ...["red", "amber", "green"].flatMap((name) => ["fg", "subtle", "solid"].map((part) => `colors-${name}-${part}`)),
];

/** The document around this one, of Airflow; null when the page is open by itself. */
function around() {
  return window.parent === window ? null : window.parent.document;
}

function follow() {
  const own = document.documentElement;
  const root = around()?.documentElement;
  if (!root) return; // the style follows the browser's choice
  const style = root.ownerDocument.defaultView.getComputedStyle(root);
  own.dataset.theme = root.classList.contains("dark") ? "dark" : "light";
  for (const name of NAMES) {
    const value = style.getPropertyValue(`--chakra-${name}`);
    if (value) own.style.setProperty(`--chakra-${name}`, value);
  }
}

follow();
if (around()) {
  new MutationObserver(follow).observe(around().documentElement, { attributes: true, attributeFilter: ["class", "style"] });
}

// A frame of Airflow may not leave itself, so a link to Airflow's own pages is followed by the document around it.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-airflow]");
  const outer = around();
  if (!link || !outer || event.button !== 0) return;
  event.preventDefault();
  const twin = outer.createElement("a");
  twin.href = link.href;
  if (event.ctrlKey || event.metaKey || event.shiftKey) {
    twin.target = "_blank";
    twin.rel = "noopener";
  }
  outer.body.append(twin);
  twin.click();
  twin.remove();
});
