"use strict";
let figures = {};
const plots = [...document.querySelectorAll(".plot")];
const root = document.documentElement;
const printWidth = 680; // px, what a portrait page has between its margins

// ---- plotly and the figures, compressed: see packed_text.py ----
function unpacked(id) {
  const { textContent: digits, dataset } = document.getElementById(id);
  const bytes = new Uint8Array((4 * digits.length) / 5);
  for (let i = 0, at = 0; i < digits.length; at += 4) {
    let word = 0;
    for (const end = i + 5; i < end; i++) {
      const code = digits.charCodeAt(i);
      word = word * 85 + code - (code < 60 ? 35 : 36);
    }
    for (let k = 0; k < 4; k++) bytes[at + k] = word >>> (24 - 8 * k);
  }
  const stream = new Blob([bytes.subarray(0, dataset.bytes)]).stream();
  return new Response(stream.pipeThrough(new DecompressionStream("deflate-raw"))).text();
}
async function start() {
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
  figures = JSON.parse(await unpacked("figure-data"));
  plots.forEach(draw);
}

// ---- theme: the page's own colours, resolved by the browser, drawn into every figure ----
function themeOf(plot) {
  const text = getComputedStyle(document.body).color;
  const card = getComputedStyle(plot.closest(".card"));
  const update = {
    "font.color": text,
    "font.family": getComputedStyle(document.body).fontFamily,
    "hoverlabel.bgcolor": card.backgroundColor,
    "hoverlabel.bordercolor": card.borderTopColor,
    "hoverlabel.font.color": text,
    "modebar.bgcolor": card.backgroundColor,
    "modebar.color": text,
    "modebar.activecolor": text,
  };
  for (const axis of Object.keys(figures[plot.id].layout).filter((key) => /^[xy]axis/.test(key))) {
    for (const part of ["gridcolor", "linecolor", "tickcolor"]) update[`${axis}.${part}`] = card.borderTopColor;
  }
  return update;
}
const retheme = () => plots.forEach((plot) => Plotly.relayout(plot, themeOf(plot)));
const isDark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
if (["#dark", "#light"].includes(location.hash)) root.dataset.theme = location.hash.slice(1);
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  retheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);

// ---- figures ----
const config = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // none that would leave the page
};
function draw(plot) {
  const { data, layout } = figures[plot.id];
  delete layout.updatemenus; // the page has its own choice of policy
  layout.showlegend = layout.showlegend === true; // and one legend for all policies
  Plotly.newPlot(plot, data, layout, config);
  Plotly.relayout(plot, themeOf(plot));
}
const ready = start().catch((error) => {
  for (const plot of plots) plot.textContent = `This browser cannot draw the figures: ${error.message}`;
});

// ---- one legend for all figures ----
const chips = [...document.querySelectorAll("[data-policy]")];
function showPolicies() {
  const shown = new Set(chips.filter((c) => c.ariaPressed === "true").map((c) => c.dataset.policy));
  const known = new Set(chips.map((c) => c.dataset.policy));
  for (const plot of plots) {
    const at = plot.data.flatMap((trace, i) => (known.has(trace.legendgroup) ? [i] : []));
    if (at.length) Plotly.restyle(plot, { visible: at.map((i) => shown.has(plot.data[i].legendgroup)) }, at);
  }
}
for (const chip of chips) {
  chip.addEventListener("click", () => {
    chip.ariaPressed = String(chip.ariaPressed !== "true");
    showPolicies();
  });
}
for (const button of document.querySelectorAll("[data-all]")) {
  button.addEventListener("click", () => {
    chips.forEach((chip) => { chip.ariaPressed = button.dataset.all; });
    showPolicies();
  });
}
for (const select of document.querySelectorAll("select[data-plot]")) {
  select.addEventListener("change", () => {
    const plot = document.getElementById(select.dataset.plot);
    Plotly.restyle(plot, { visible: plot.data.map((trace) => trace.name === select.value) });
  });
}

// ---- the table: sort by a column, choose a group of columns ----
function sortBy(heading) {
  const table = heading.closest("table"), at = heading.cellIndex, rows = [...table.tBodies[0].rows];
  const first = heading.dataset.first, other = first === "ascending" ? "descending" : "ascending";
  const order = heading.ariaSort === first ? other : first;
  const key = (row) => (at ? Number(row.cells[at].dataset.value || NaN) : row.cells[0].textContent);
  const sign = order === "ascending" ? 1 : -1;
  rows.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (at && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y); // undefined ones last, either way
    return sign * (x < y ? -1 : x > y ? 1 : 0);
  });
  for (const th of table.tHead.rows[0].cells) th.removeAttribute("aria-sort");
  heading.ariaSort = order;
  table.tBodies[0].append(...rows);
}
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
const groups = [...document.querySelectorAll("[data-group]")];
for (const button of groups) {
  button.addEventListener("click", () => {
    groups.forEach((other) => { other.ariaPressed = String(other === button); });
    const table = document.querySelector("table.comparison");
    const shown = [...table.tHead.rows[0].cells].map(
      (th, i) => i === 0 || th.dataset.groups.split(",").includes(button.dataset.group),
    );
    for (const row of table.rows) [...row.cells].forEach((cell, i) => { cell.hidden = !shown[i]; });
  });
}

// ---- tooltips: on hover and on keyboard focus, never cut off by a scrolling table ----
const tip = document.getElementById("tip");
function showTip(event) {
  const target = event.target.closest?.("[data-tip], [data-difference]");
  tip.hidden = !target;
  if (!target) return;
  const { tip: text, difference } = target.dataset;
  const isSame = target.classList.contains("same");
  const verdict = isSame ? "not distinguishable from the best" : "different from the best";
  tip.textContent = text ?? `Paired difference to the best: ${difference} (${verdict}).`;
  const box = target.getBoundingClientRect(), own = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
  tip.style.top = `${box.top > own.height + 12 ? box.top - own.height - 6 : box.bottom + 6}px`;
}
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, showTip);
for (const kind of ["focusout", "scroll"]) document.addEventListener(kind, () => { tip.hidden = true; }, true);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

// ---- print: light, and as wide as the paper ----
let before;
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  root.dataset.theme = "light";
  for (const plot of plots) Plotly.relayout(plot, { ...themeOf(plot), width: printWidth });
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
  for (const plot of plots) Plotly.relayout(plot, { ...themeOf(plot), width: null, autosize: true });
});
