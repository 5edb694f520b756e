// Line charts and the strip of bars, as inline SVG.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 92, SPAN_S = 120;

function s(tag, attributes, ...children) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The next round number: a scale that does not twitch every second.
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

// A value that is missing breaks the line.
function path(points, field, x, y) {
  let text = "", open = false;
  for (const point of points) {
    const value = point[field];
    if (value == null) { open = false; continue; }
    text += `${open ? "L" : "M"}${x(point).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
  }
  return text;
}

export class LineChart {
  // lines: [{field, name, style}], the first one is filled below; show: value → text
  constructor(parent, lines, show, label) {
    this.lines = lines;
    this.show = show;
    this.points = [];
    this.svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    this.area = s("path", { class: `area ${lines[0].style}` });
    this.paths = lines.map((line) => s("path", { class: `line ${line.style}` }));
    this.cursor = s("path", { class: "cursor" });
    this.svg.append(s("path", { class: "grid", d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }),
      this.area, ...this.paths, this.cursor);
    const frame = document.createElement("div");
    frame.className = "plot";
    this.top = frame.appendChild(Object.assign(document.createElement("span"), { className: "top" }));
    this.tip = frame.appendChild(Object.assign(document.createElement("span"), { className: "tip" }));
    this.tip.hidden = true;
    frame.append(this.svg);
    const axis = document.createElement("p");
    axis.className = "axis";
    axis.setAttribute("aria-hidden", "true");
    axis.append(...["2 min ago", "now"].map((text) => Object.assign(document.createElement("span"), { textContent: text })));
    parent.append(frame, axis);
    frame.addEventListener("pointermove", (event) => this.point(event));
    frame.addEventListener("pointerleave", () => this.leave());
  }

  draw(points) {
    this.points = points;
    const last = points.length ? points[points.length - 1].at_s : 0;
    let most = 0;
    for (const point of points) for (const line of this.lines) most = Math.max(most, point[line.field] ?? 0);
    this.most = ceiling(most);
    this.x = (point) => WIDTH * (1 - (last - point.at_s) / SPAN_S);
    const y = (value) => HEIGHT - 1 - (HEIGHT - 2) * (value / this.most);
    this.paths.forEach((element, i) => {
      const field = this.lines[i].field, something = i === 0 || points.some((point) => point[field]);
      element.setAttribute("d", something ? path(points, field, this.x, y) : "");
    });
    const outline = path(points.map((p) => ({ ...p, [this.lines[0].field]: p[this.lines[0].field] ?? 0 })), this.lines[0].field, this.x, y);
    const start = points.length ? this.x(points[0]).toFixed(1) : 0;
    this.area.setAttribute("d", outline ? `${outline}L${WIDTH} ${HEIGHT}L${start} ${HEIGHT}Z` : "");
    this.top.textContent = most > 0 ? this.show(this.most) : "";
  }

  point(event) {
    if (!this.points.length) return;
    const box = this.svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const near = this.points.reduce((best, point) => (Math.abs(this.x(point) - at) < Math.abs(this.x(best) - at) ? point : best));
    const last = this.points[this.points.length - 1].at_s;
    const values = this.lines.map((line) => `${line.name} ${this.show(near[line.field])}`.trim()).join(" · ");
    this.tip.textContent = `${values} (${Math.round(last - near.at_s)} s ago)`;
    this.tip.hidden = false;
    this.cursor.setAttribute("d", `M${this.x(near).toFixed(1)} 0V${HEIGHT}`);
  }

  leave() {
    this.tip.hidden = true;
    this.cursor.setAttribute("d", "");
  }
}

// One bar per node, as high as its slots are used.
export function strip(parent, nodes, mean) {
  const width = 10, high = 60, svg = s("svg", {
    viewBox: `0 0 ${Math.max(1, nodes.length) * width} ${high}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Utilisation of ${nodes.length} nodes; the table of nodes has the numbers`,
  });
  nodes.forEach((node, i) => {
    const used = node.utilisation_frac ?? 0, tall = Math.max(1.5, used * high), inset = nodes.length > 40 ? 1 : 2;
    svg.append(s("rect", { class: "room", x: i * width + inset, y: 0, width: width - 2 * inset, height: high }),
      s("rect", { class: `bar ${node.health}`, x: i * width + inset, y: high - tall, width: width - 2 * inset, height: tall },
        s("title", {}, `${node.name}: ${Math.round(used * 100)} %, ${node.health}`)));
  });
  if (mean != null) {
    const y = high - mean * high;
    svg.append(s("path", { class: "mean", d: `M0 ${y}H${nodes.length * width}` }));
  }
  parent.replaceChildren(svg);
}
