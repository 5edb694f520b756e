// Numbers as people read them, and elements without markup in strings.

export const DASH = "–";

export function seconds(value) {
  if (value == null) return DASH;
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value > 1 && value < 60 && Number.isInteger(value)) return `${value} s`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  return `${Math.round(value / 60)} min`;
}

export function number(value) {
  if (value == null) return DASH;
  if (value >= 1e6) return `${(value / 1e6).toFixed(value < 1e7 ? 2 : 1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Number.isInteger(value) || value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(value < 1 ? 2 : 1);
}

export function percent(value, digits = 0) {
  return value == null ? DASH : `${(value * 100).toFixed(digits)} %`;
}

export function signedPercent(value) {
  return value == null ? DASH : `${value < 0 ? "−" : "+"}${Math.abs(value * 100).toFixed(1)} %`;
}

export function ago(seconds_) {
  if (seconds_ < 90) return `${Math.round(seconds_)} s`;
  if (seconds_ < 5400) return `${Math.round(seconds_ / 60)} min`;
  if (seconds_ < 172800) return `${Math.round(seconds_ / 3600)} h`;
  return `${Math.round(seconds_ / 86400)} days`;
}

// h("td", {class: "num"}, "text", child…)
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child != null));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A small table: columns of [title, value of a row, "num"?]
export function table(caption, columns, rows) {
  const head = h("tr", {}, ...columns.map(([title, , kind]) => h("th", { scope: "col", class: kind || "" }, title)));
  const body = rows.map((row) =>
    h("tr", {}, ...columns.map(([, value, kind], i) =>
      i ? h("td", { class: kind || "" }, value(row)) : h("th", { scope: "row" }, value(row)))));
  return h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, ...body));
}

// Pairs of [name, value, explanation on hover?]
export function facts(pairs) {
  return h("dl", { class: "facts" }, ...pairs.map(([name, value, tip]) =>
    h("div", tip ? { title: tip } : {}, h("dt", {}, name), h("dd", {}, value))));
}
