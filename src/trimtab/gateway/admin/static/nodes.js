// The table of nodes: rows stay the same elements, so that focus stays where it is while numbers change.

import { DASH, h, number, percent, seconds, setText } from "./format.js";

const load = (node) => node.in_flight / Math.max(1, node.capacity);
const ranks = { down: 0, ejected: 1, suspect: 2, draining: 3, up: 4 };
const COLUMNS = [
  ["Node", "name", (node) => node.name],
  ["Health", "word", (node) => ranks[node.health]],
  ["In flight", "bar", load],
  ["Used", "bar", (node) => node.utilisation_frac ?? -1],
  ["Busy", "num less", (node) => node.busy_frac ?? -1],
  ["Its queue", "num less", (node) => node.queued ?? -1],
  ["Silent", "num less", (node) => node.silence_s ?? -1],
  ["Served", "num less", (node) => node.served],
  ["Failed", "num less", (node) => node.failed],
  ["Reports", "word less", (node) => Object.keys(node.reported).length],
];

const REPORTED = { // what backends and exporters say, as people read it
  cpu_busy_frac: ["CPU", percent], memory_used_frac: ["mem", percent], disk_busy_frac: ["disk", percent],
  gpu_busy_frac: ["GPU", percent], gpu_memory_used_frac: ["GPU mem", percent], kv_used_frac: ["cache", percent],
  running: ["running", number],
};

function reports(node) {
  const known = Object.entries(REPORTED).filter(([key]) => key in node.reported);
  return known.map(([key, [name, show]]) => `${name} ${show(node.reported[key])}`).join(" · ") || DASH;
}

function bar() {
  const fill = h("span", { class: "fill" });
  return h("span", { class: "load", "aria-hidden": "true" }, fill);
}

class Row {
  constructor(name, drain) {
    this.cells = COLUMNS.map(([, kind], i) => (i ? h("td", { class: kind }) : h("th", { scope: "row", class: kind })));
    const [title, health, flight, used] = this.cells;
    this.models = h("small", {});
    title.append(h("span", { class: "node-name" }, name), this.models);
    this.health = h("span", { class: "health" });
    health.append(this.health);
    for (const cell of [flight, used]) cell.append(bar(), h("span", { class: "value" }));
    this.drain = h("button", { type: "button", class: "quiet", "aria-label": `Drain ${name}` }, "Drain");
    this.drain.addEventListener("click", () => drain(name));
    this.element = h("tr", {}, ...this.cells, h("td", { class: "act" }, this.drain));
  }

  show(node) {
    const [, , flight, used, busy, queued, silent, served, failed, reported] = this.cells;
    setText(this.models, node.models.join(", "));
    this.models.title = node.models.join(", ");
    setText(this.health, node.health);
    this.health.dataset.health = node.health;
    this.health.title = node.reason;
    this.fill(flight, load(node), `${node.in_flight} / ${node.capacity}`);
    this.fill(used, node.utilisation_frac ?? 0, percent(node.utilisation_frac));
    setText(busy, percent(node.busy_frac));
    setText(queued, number(node.queued));
    setText(silent, seconds(node.silence_s));
    setText(served, number(node.served));
    setText(failed, number(node.failed));
    failed.classList.toggle("bad", node.failed > 0 && node.failed > node.served * 0.01);
    setText(reported, reports(node));
    this.drain.disabled = node.health === "draining";
  }

  fill(cell, share, text) {
    const fill = cell.firstChild.firstChild;
    fill.style.width = `${Math.min(100, share * 100).toFixed(1)}%`;
    fill.dataset.level = share >= 0.98 ? "full" : share >= 0.8 ? "high" : "";
    setText(cell.lastChild, text);
  }
}

export class NodeTable {
  constructor(section, drain) {
    this.drain = drain;
    this.rows = new Map();
    this.nodes = [];
    this.sorted = { column: null, down: false };
    this.body = section.querySelector("tbody");
    this.summary = section.querySelector("#node-summary");
    this.empty = section.querySelector(".empty");
    this.filter = section.querySelector("#filter");
    this.filter.addEventListener("input", () => this.arrange());
    this.heads = COLUMNS.map(([title, kind], i) => {
      const button = h("button", { type: "button" }, title);
      button.addEventListener("click", () => this.sortBy(i));
      return h("th", { scope: "col", class: kind }, button);
    });
    section.querySelector("thead tr").append(...this.heads, h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")));
  }

  sortBy(column) {
    const down = this.sorted.column === column ? !this.sorted.down : column > 1;
    this.sorted = { column, down };
    this.heads.forEach((head, i) => (i === column
      ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    this.arrange();
  }

  show(nodes) {
    this.nodes = nodes;
    const names = new Set(nodes.map((node) => node.name));
    for (const name of [...this.rows.keys()]) if (!names.has(name)) this.rows.delete(name);
    for (const node of nodes) {
      if (!this.rows.has(node.name)) this.rows.set(node.name, new Row(node.name, this.drain));
      this.rows.get(node.name).show(node);
    }
    const up = nodes.filter((node) => node.health === "up").length;
    const flying = nodes.reduce((sum, node) => sum + node.in_flight, 0);
    setText(this.summary, `${up} of ${nodes.length} up · ${number(flying)} in flight`);
    this.arrange();
  }

  arrange() {
    const wanted = this.filter.value.trim().toLowerCase();
    const shown = this.nodes.filter((node) =>
      !wanted || [node.name, node.health, ...node.models].some((text) => text.toLowerCase().includes(wanted)));
    const { column, down } = this.sorted;
    if (column != null) {
      const key = COLUMNS[column][2], sign = down ? -1 : 1;
      shown.sort((a, b) => {
        const x = key(a), y = key(b);
        return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
      });
    }
    const rows = shown.map((node) => this.rows.get(node.name).element);
    const same = rows.length === this.body.children.length && rows.every((row, i) => row === this.body.children[i]);
    if (!same && !this.body.contains(document.activeElement)) this.body.replaceChildren(...rows);
    else if (!same) this.reorderAround(rows);
    this.empty.hidden = shown.length > 0;
  }

  // Rows move only while none of their buttons has the focus; rows that are gone go at once.
  reorderAround(rows) {
    for (const row of [...this.body.children]) if (!rows.includes(row)) row.remove();
    this.body.append(...rows.filter((row) => !this.body.contains(row)));
  }
}
