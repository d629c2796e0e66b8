// The columns of the page's tables: a heading, and the cell of what the server says (`page/document.py`). A new column is
// one line here.

import { bytes, count, span } from "./texts.js";

const text = (head, cell) => ({ head, cell, isNumber: false });
const number = (head, cell) => ({ head, cell, isNumber: true });

export const PARTITIONS = [
  text("Source partition", (each) => each.name),
  number("Backlog", (each) => each.backlog === null ? "unknown" : [
    bytes(each.backlog),
    each.rows === null ? "" : `${count(each.rows)} rows`,
    each.lag_s === null ? "" : `${count(Math.round(each.lag_s))} s`,
  ].filter(Boolean).join(", ")),
];

export const PROCESSORS = [
  text("Processor", (each) => each.id),
  text("State", stateOf),
  text("Role", (each) => each.leads ? "leads" : ""),
  number("Silent for", (each) => span(each.silent_s)),
  number("Tasks", (each) => each.tasks),
  number("Replicas", (each) => each.replicas || "–"),
  number("CPU", ({ machine }) => machine.use.memory ? `${machine.use.cpu.toFixed(2)} cores` : "–"),
  number("Memory", ({ machine }) => share(machine.use.memory, machine.use.memory_most)),
  number("Java's heap", ({ machine }) => share(machine.use.heap, machine.use.heap_most)),
  text("Host", ({ machine }) => machine.host || "–"),
  text("Release", ({ machine }) => machine.release || "–"),
  text("Code", ({ machine }) => machine.code || "–"),
];

export const STAGES = [
  text("Stage", (stage) => stage.name),
  number("Tasks", runs),
  number("Rows/s in", (stage) => count(stage.pace)),
  number("Rows/s out", (stage) => count(stage.pace_out)),
  number("Backlog", (stage) => bytes(stage.behind)),
  number("Rows in state", (stage) => count(stage.state_rows)),
  number("State", (stage) => bytes(stage.state_bytes)),
  text("Last batch, by Spark's phases", phases),
];

export const TASKS = [
  text("Task", (task) => task.name),
  text("Owner", (task) => task.owner ?? "nobody"),
  text("Phase", (task) => task.phase),
  number("Batch", (task) => task.batch ?? "–"),
  number("Took", (task) => took(task.ms)),
  number("Rows/s", (task) => count(task.pace)),
  number("Watermark age", (task) => span(task.age_s)),
  number("Backlog", (task) => bytes(task.backlog)),
  number("State", (task) => bytes(task.state_bytes)),
  text("Replicas", (task) => task.replicas.map(replica).join("; ") || "–"),
  number("Late", (task) => count(task.late)),
  number("Restarts", (task) => count(task.restarts)),
  text("Why it does not run; errors", (task) => [waits(task), task.error].filter(Boolean).join("\n")),
];

export const EVENTS = [
  text("When", (each) => new Date(Math.min(each.at_ms, 8.64e15)).toLocaleString()),
  text("What", (each) => each.kind),
  text("Details", (each) => each.text),
];

export function runs({ running, drained, tasks }) {
  if (drained === tasks) return `${count(tasks)} drained`;
  return `${count(running)} of ${count(tasks)} run${drained ? `, ${count(drained)} drained` : ""}`;
}

function stateOf(each) {
  if (each.failure) return `${each.state}, ${each.failure}`;
  if (each.going) return each.going;
  if (each.no_container) return `${each.state}, its container has ended or hangs`;
  return each.too_old_for ? `${each.state}, too old: needs format ${each.too_old_for}` : each.state;
}

function replica({ processor, batches_behind, bytes_behind }) {
  if (batches_behind === null) return `${processor}, not ready`;
  const behind = [batches_behind && `${count(batches_behind)} batches`, bytes_behind && bytes(bytes_behind)].filter(Boolean);
  return behind.length ? `${processor}, ${behind.join(", ")} behind` : processor;
}

function share(size, most) {
  return size ? bytes(size) + (most ? ` of ${bytes(most)}` : "") : "–";
}

function waits(task) {
  return task.why && task.why_s >= 1 ? `${task.why} Seen for ${span(Math.round(task.why_s))}.` : task.why;
}

function took(ms) {
  return ms?.triggerExecution === undefined ? "–" : `${(ms.triggerExecution / 1000).toFixed(2)} s`;
}

function phases(stage) {
  if (!stage.ms) return "–";
  const whole = "compute" in stage.ms ? ["triggerExecution", "addBatch"] : ["triggerExecution"];
  const cpu = stage.cpu_ms ? `; processor time ${largest(stage.cpu_ms)}` : "";
  const parts = largest(stage.ms, whole);
  return `${stage.slowest}: ${took(stage.ms)}${parts ? `, of which ${parts}` : ""}${cpu}`;
}

function largest(ms, whole = []) {
  const parts = Object.entries(ms).filter(([phase, ms]) => !whole.includes(phase) && ms >= 5).sort((one, other) => other[1] - one[1]);
  return parts.map(([phase, ms]) => `${phase} ${(ms / 1000).toFixed(2)} s`).join(", ");
}
