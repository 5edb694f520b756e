// The panels: balance, policy and shadow, tenants, prediction, counts, jobs, and the receipt of a request.

import { strip } from "./charts.js";
import { ago, facts, h, number, percent, seconds, signedPercent, table } from "./format.js";

const entries = (counts) => Object.entries(counts || {}).filter(([, count]) => count);
const none = (text) => h("p", { class: "also" }, text);
const RESOURCES = [["cpu", "CPU"], ["ram", "RAM"], ["io", "I/O"], ["network", "Network"], ["gpu", "GPU"], ["gpu_memory", "GPU memory"]];
const words = (name) => name.replaceAll("_", " ");

export function showBalance(section, status) {
  const { balance, formulas, nodes } = status;
  const plain = (value, digits) => (value == null ? "–" : value.toFixed(digits));
  const fact = (shown, name, text) => [shown, text(balance[name]), `${name}: ${formulas?.[name] || ""}`];
  section.querySelector(".facts").replaceWith(facts([
    fact("Mean", "utilisation_allocated_mean_frac", percent),
    fact("Variance", "utilisation_allocated_var", (value) => plain(value, 4)),
    fact("Spread (CV)", "utilisation_allocated_cv", (value) => plain(value, 2)),
    fact("Idle", "idle_frac", percent),
    ...RESOURCES.filter(([name]) => balance[`utilisation_${name}_frac`] != null).map(([name, shown]) =>
      fact(shown, `utilisation_${name}_frac`,
        (value) => `${percent(value)}, σ ${percent(Math.sqrt(balance[`utilisation_${name}_var`]))}`)),
    fact("Completion σ", "completion_var_s2", (value) => seconds(value == null ? null : Math.sqrt(value))),
    fact("Queueing", "queueing_mean_s", seconds),
    fact("Rejected", "rejected_frac", (value) => percent(value, 1)),
  ]));
  strip(section.querySelector(".strip"), nodes, balance.utilisation_allocated_mean_frac);
}

export function showPolicy(body, { policy, shadow }) {
  const parts = [];
  if (policy) {
    parts.push(h("p", { class: "policy-name" }, policy.name, h("span", { class: "tag" }, "live")), facts([
      ["Decisions", number(policy.decisions)],
      ["Each takes", policy.decision_us == null ? "–" : `${policy.decision_us.toFixed(1)} µs`],
      ["Fell back", number(policy.failures)],
    ]));
    if (policy.candidates) parts.push(...candidateParts(policy.candidates));
  }
  parts.push(...(shadow ? shadowParts(shadow) : [none("No shadow policy. Name one as shadow: in gateway.yaml to see what it would do.")]));
  body.replaceChildren(...parts);
}

const plusMinus = (text, error) => h("span", {}, text, h("small", {}, ` ± ${error}`));

function candidateParts(candidates) {
  const parts = [facts([
    ["In force", candidates.active],
    ["Since", `${ago(candidates.since_s)} ago`],
    ["Before", candidates.before || "–"],
    ["Switches", number(candidates.switches)],
  ])];
  if (candidates.rollout_age_s == null) return [...parts, none("Nothing was simulated yet: that takes some requests.")];
  const held = candidates.each.find((c) => c.name === candidates.against).value_s;
  const table_ = table("Candidates and what rollouts say of them", [
    ["Candidate", (c) => h("span", {}, c.name, c.name === candidates.active ? h("span", { class: "tag" }, "in force") : null)],
    [candidates.objective === "p99" ? "Longest 2 %" : "Mean", (c) => plusMinus(seconds(c.value_s), seconds(c.error_s)), "num"],
    ["Difference", (c) => (c.name === candidates.against ? "–" : plusMinus(signedPercent(c.apart_s / held), percent(c.apart_error_s / held, 1))), "num"],
  ], candidates.each);
  table_.classList.add("candidates");
  return [...parts, table_, h("p", { class: "how" },
    `Completion time of the last requests, simulated ${ago(candidates.rollout_age_s)} ago from the state at that time; ` +
    `difference from ${candidates.against}, then in force; ± two standard errors. Less is better.`)];
}

function shadowParts(shadow) {
  const pairs = [];
  if (shadow.disagreement_frac != null) pairs.push(["Disagrees", percent(shadow.disagreement_frac, 1)]);
  if (shadow.predicted_difference_frac != null) pairs.push(["One step, by the model", signedPercent(shadow.predicted_difference_frac)]);
  return [h("p", { class: "policy-name" }, shadow.name, h("span", { class: "tag" }, "shadow")), facts(pairs),
    h("p", { class: "how" }, "Mean completion time against the live policy; less is better.")];
}

function queueTable(queues) {
  return table("Queues of tenants: shares of what all nodes have, of the resource that each takes most", [
    ["Queue", (q) => q.queue],
    ["Waiting", (q) => number(q.held), "num"],
    ["At nodes", (q) => number(q.at_nodes), "num"],
    ["Share", (q) => percent(q.share_frac), "num"],
    ["Guaranteed", (q) => percent(q.guarantee_frac), "num"],
    ["Taken back", (q) => number(q.preempted), "num less"],
  ], queues);
}

export function showTenants(body, tenants, queues = []) {
  const above = queues.length ? [queueTable(queues)] : [];
  if (!tenants || !tenants.length) return body.replaceChildren(...above, none("No request yet."));
  const rows = [...tenants].sort((a, b) => b.requests - a.requests).slice(0, 20);
  body.replaceChildren(...above, table("Requests and tokens by tenant", [
    ["Tenant", (t) => t.name],
    ["Requests", (t) => number(t.requests), "num"],
    ["In flight", (t) => (t.in_flight == null ? "–" : String(t.in_flight)), "num less"],
    ["Tokens in", (t) => number(t.prompt_tokens), "num"],
    ["Tokens out", (t) => number(t.completion_tokens), "num"],
  ], rows));
}

export function showPrediction(body, prediction) {
  if (!prediction || !prediction.length) return body.replaceChildren(none("No answer yet."));
  body.replaceChildren(table("Predicted against actual service time, by class", [
    ["Class", (c) => c.class],
    ["Answers", (c) => number(c.count), "num less"],
    ["Mean error", (c) => percent(c.error_ratio), "num"],
    ["Pred. ÷ actual", (c) => c.bias_ratio.toFixed(2), "num"],
  ], prediction));
}

export function showCounts(body, counts = {}) {
  const lost = counts.lost || {}, retries = counts.retries || {}, parts = [];
  const causes = [...new Set([...Object.keys(lost), ...Object.keys(retries)])];
  if (causes.length) {
    parts.push(table("Attempts lost and made again, by cause", [
      ["Cause", (cause) => words(cause)],
      ["Attempts lost", (cause) => number(lost[cause] || 0), "num"],
      ["Tried again", (cause) => number(retries[cause] || 0), "num"],
    ], causes));
  }
  const others = entries(counts.refusals).map(([code, n]) => [`Refused: ${words(code)}`, number(n)]);
  if (counts.hedges) others.push(["Hedged", number(counts.hedges)]);
  if (others.length) parts.push(facts(others));
  body.replaceChildren(...(parts.length ? parts : [none("None.")]));
}

export function showJobs(body, { jobs, chains }) {
  const states = Object.entries(jobs || {});
  const parts = [states.length ? facts(states.map(([state, n]) => [state, number(n)])) : none("No long jobs.")];
  const rows = Object.entries(chains || {}).flatMap(([chain, { stages }]) => Object.entries(stages).map(
    ([stage, counts]) => ({ name: `${chain}.${stage}`, ...counts })));
  const count = (title) => [title, (row) => number(row[title.toLowerCase()]), "num"];
  const columns = [["Stage", (row) => row.name], ...["Queued", "Running", "Done", "Failed"].map(count)];
  if (rows.length) parts.push(table("Stages of chains by state", columns, rows));
  body.replaceChildren(...parts);
}

export function receiptParts(receipt) {
  const parts = [facts([
    ["Outcome", `${receipt.state}${receipt.status ? `, ${receipt.status}` : ""}${receipt.refusal ? `, ${words(receipt.refusal)}` : ""}`],
    ["Node", receipt.node || "–"],
    ["Model", receipt.model || "–"],
    ["Tenant", receipt.tenant || "–"],
    ["Waited", seconds(receipt.wait_s)],
    ["Predicted", seconds(receipt.predicted_s)],
    ["Actual", seconds(receipt.actual_s)],
    ["Retries", String(receipt.retries)],
  ])];
  const decision = receipt.decision;
  if (decision) {
    parts.push(h("h3", {}, `Candidates of ${decision.policy}${decision.fallback ? " (fell back to least connections)" : ""}`),
      table("Candidates, best first", [
        ["Node", (c) => c.node],
        ["Predicted", (c) => seconds(c.scores.predicted_s), "num"],
        ["In flight", (c) => c.scores.in_flight, "num"],
      ], decision.candidates));
  }
  if (receipt.attempts.length) {
    parts.push(h("h3", {}, "Attempts"), table("Attempts, in order", [
      ["Node", (a) => a.node],
      ["Begun", (a) => seconds(a.begun_s), "num"],
      ["First byte", (a) => seconds(a.first_byte_s), "num"],
      ["Ended", (a) => seconds(a.ended_s), "num"],
      ["Result", (a) => (a.lost_by ? words(a.lost_by) : a.status ? String(a.status) : "under way"), "num"],
    ], receipt.attempts));
  }
  return parts;
}
