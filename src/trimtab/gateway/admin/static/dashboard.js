// The dashboard: one stream of events in, the page out.

import { LineChart } from "./charts.js";
import { ago, h, number, seconds, setText } from "./format.js";
import { NodeTable } from "./nodes.js";
import { receiptParts, showBalance, showCounts, showJobs, showPolicy, showPrediction, showTenants } from "./panels.js";
import { toggleTheme } from "./theme.js";

const KEPT = 120;
const $ = (selector) => document.querySelector(selector);
const body = (id) => $(`#${id} .body`);
const history = [];

const charts = {
  requests: new LineChart($("#chart-requests"), [
    { field: "requests_per_s", name: "", style: "one" }, { field: "failed_per_s", name: "failed", style: "bad" },
  ], number, "Requests per second over two minutes"),
  latency: new LineChart($("#chart-latency"), [
    { field: "p50_s", name: "p50", style: "one" }, { field: "p95_s", name: "p95", style: "two" }, { field: "p99_s", name: "p99", style: "three" },
  ], seconds, "Latency percentiles over two minutes"),
  first: new LineChart($("#chart-first"), [{ field: "first_byte_p50_s", name: "p50", style: "one" }], seconds,
    "Median time to the first byte over two minutes"),
  queue: new LineChart($("#chart-queue"), [{ field: "queue", name: "waiting", style: "one" }], number,
    "Queue length over two minutes"),
};

const nodes = new NodeTable($("#nodes"), askToDrain);

function figure(id, value, also, keys = []) {
  setText($(`#chart-${id} .figure b`), value);
  const line = $(`#chart-${id} .also`);
  if (!keys.length) return setText(line, also);
  line.replaceChildren(...keys.map(([style, text]) => h("span", { class: `key ${style}` }, text)));
}

function showTraffic({ traffic, queue }) {
  figure("requests", number(traffic.requests_per_s), `${number(traffic.failed_per_s)} failed/s · ${number(traffic.refused_per_s)} refused/s`);
  figure("latency", seconds(traffic.p50_s), "", [["two", `p95 ${seconds(traffic.p95_s)}`], ["three", `p99 ${seconds(traffic.p99_s)}`]]);
  figure("first", seconds(traffic.first_byte_p50_s), `p99 ${seconds(traffic.first_byte_p99_s)}`);
  const room = queue.most == null ? "" : `of ${number(queue.most)} places`;
  figure("queue", number(queue.length), [room, queue.oldest_s ? `oldest ${seconds(queue.oldest_s)}` : ""].filter(Boolean).join(" · "));
}

function remember(points) {
  for (const point of points) if (!history.length || point.at_s > history[history.length - 1].at_s) history.push(point);
  history.splice(0, Math.max(0, history.length - KEPT));
}

function show(status) {
  remember(status.history);
  showTraffic(status);
  for (const chart of Object.values(charts)) chart.draw(history);
  showBalance($("#balance"), status);
  showPolicy(body("policy"), status);
  nodes.show(status.nodes);
  showTenants(body("tenants"), status.tenants, status.tenant_queues);
  showPrediction(body("prediction"), status.prediction);
  showCounts(body("counts"), status.counts);
  showJobs(body("jobs"), status);
  setText($("#listen"), status.listen || "");
  showNotes(status);
  const up = status.started_at ? ` · up ${ago(Date.now() / 1000 - status.started_at)}` : "";
  setText($("#about"), `trimtab ${status.version || ""}${up}`);
  document.title = `${number(status.traffic.requests_per_s)}/s · trimtab`;
}

function showNotes({ notes = [], draining }) {
  const all = draining ? ["The gateway is draining: it takes nothing new.", ...notes] : notes;
  const box = $("#notes"), texts = all.join("\n");
  if (box.dataset.texts === texts) return; // an unchanged status region is not read out again
  box.dataset.texts = texts;
  box.hidden = !all.length;
  box.firstElementChild.replaceChildren(...all.map((note) => h("li", {}, note)));
}

function setLive(state, text) {
  $("#live").dataset.state = state;
  setText($("#live"), text);
}

function connect() {
  const source = new EventSource("/admin/stream");
  source.addEventListener("status", (event) => {
    setLive("on", "Live");
    show(JSON.parse(event.data));
  });
  source.addEventListener("error", async () => {
    setLive("off", "Reconnecting");
    if (source.readyState !== EventSource.CLOSED) return;
    const answer = await fetch("/admin/status").catch(() => null);
    if (answer?.status === 401) location.assign("/login");
    else setTimeout(connect, 3000);
  });
}

async function change(method, path) {
  const answer = await fetch(path, { method, headers: { "x-trimtab-admin": "1" } });
  if (!answer.ok) setLive("off", (await answer.json()).error.message);
}

function askToDrain(name) {
  const dialog = $("#confirm");
  setText($("#confirm-title"), `Drain ${name}?`);
  dialog.returnValue = "no";
  dialog.showModal();
  dialog.onclose = () => {
    if (dialog.returnValue === "yes") change("POST", `/admin/nodes/${encodeURIComponent(name)}/drain`);
  };
}

$("#receipt form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = $("#request-id").value.trim();
  const answer = await fetch(`/admin/requests/${encodeURIComponent(id)}`);
  const value = await answer.json();
  body("receipt").replaceChildren(...(answer.ok ? receiptParts(value) : [h("p", { class: "also" }, value.error.message)]));
});

$("#theme").addEventListener("click", toggleTheme);
connect();
