// Light or dark: the system's choice until the button was pressed. Loaded before the page is drawn.
const stored = localStorage.getItem("trimtab-theme");
if (stored) document.documentElement.dataset.theme = stored;

const dark = matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  return document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
}

export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("trimtab-theme", next);
  return next;
}
