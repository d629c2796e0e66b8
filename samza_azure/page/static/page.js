// Shows what the account says.

import { followDay, show as showDay } from "./day.js";
import { drawGraph } from "./graph.js";
import { draw } from "./lines.js";
import { listen } from "./news.js";
import { fill, plain, write } from "./table.js";

const LINES_S = 900, POINT_S = 5, STALE_MS = 15000;
const at = (id) => document.getElementById(id);
let readAt = 0, heardAt = 0, ahead = 0, shown = null;

function bytes(size) {
  if (size === null || size === undefined) return "–";
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (size >= unit) return `${(size / unit).toFixed(1)} ${name}`;
  }
  return `${size} B`;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 && !Number.isInteger(seconds) ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en", { maximumFractionDigits: 1 });
}

function some(list, more, what) {
  if (!more && list.length < 2) return list.length ? "" : `No ${what}`;
  return more ? `The ${list.length} worst of ${count(list.length + more)} ${what}` : `${count(list.length)} ${what}, worst first`;
}

function judge(state, text, since) {
  document.title = `${at("app").textContent}: ${state}`;
  at("verdict").dataset.state = state;
  write(at("state"), state);
  write(at("text"), text);
  write(at("since"), since);
}

// What was shown last may be over. The text stays the same while this lasts, so that it is read out once.
function lost(since, status) {
  const why = status ? `: it answers with ${status}` : "";
  judge("no connection", `No connection to the page's server since ${new Date(since).toLocaleString()}${why}. It is tried again.`, "");
  age();
}

function show(found) {
  heardAt = Date.now();
  ahead = heardAt - (found.now_ms ?? heardAt); // our clock may be wrong; what is read is dated by the server's
  write(at("app"), found.app);
  write(at("run"), found.run_id ? `run ${found.run_id}` : "");
  judge(found.verdict.state, found.verdict.text,
    found.verdict.since_s >= 1 ? `For ${span(Math.round(found.verdict.since_s))}.` : "");
  for (const id of ["keeping-up", "flow", "fleet", "work", "history"]) at(id).hidden = !found.has_data;
  at("drain").hidden = !found.has_data || !found.drain;
  if (found.has_data) {
    readAt = found.read_ms;
    keepingUp(found.keeping_up);
    flow(found);
    if (found.drain) drain(found.drain);
    fleet(found);
    work(found);
    fill(at("events"), found.events.map((each) => ({
      cells: [new Date(Math.min(each.at_ms, 8.64e15)).toLocaleString(), each.kind, each.text], tone: "", numbers: [],
    })));
  }
  age();
}

function keepingUp(found) {
  write(at("backlog"), found.backlog === null ? "unknown" : found.backlog_is_all ? bytes(found.backlog) : `at least ${bytes(found.backlog)}`);
  write(at("streams"), found.streams.filter((each) => each.backlog).map((each) => `${each.name} ${bytes(each.backlog)}`).join(", "));
  write(at("age"), span(found.age_s));
  write(at("pace"), count(found.pace));
  write(at("late"), count(found.late));
  ["backlog", "age", "pace"].forEach((name, index) => {
    draw(at(`line-${name}`), found.lines.map((point) => [point[0], point[index + 1]]), LINES_S);
  });
  const reach = (readAt - found.since_ms) / 1000;
  write(at("reach"), reach >= LINES_S - 2 * POINT_S ? "The curves show the last 15 minutes."
    : `The curves begin at ${new Date(found.since_ms).toLocaleTimeString()}: nobody has read the figures before.`);
}

function flow(found) {
  shown = found;
  at("graph").parentElement.hidden = !found.graph?.nodes.length;
  write(at("no-graph"), found.graph ? "" : "There are too many stages to draw. The table of stages has them all.");
  if (found.graph?.nodes.length) {
    drawGraph(at("graph"), found.graph, at("flow").clientWidth, (edge) => [
      edge.pace === null || found.phase === "DRAINED" ? "" : `${count(edge.pace)} rows/s`,
      edge.behind === null ? "" : `backlog ${bytes(edge.behind)}`,
    ].filter(Boolean), (node) => node.tasks === undefined ? "" : runs(node), isIdle);
  }
  const known = found.partitions.filter((each) => each.backlog !== null).length;
  at("by-partition").hidden = !found.partitions.length;
  write(at("s-partitions"), `Backlog of ${count(found.partitions.length + found.partitions_more)} source partitions`);
  write(at("c-partitions"), some(found.partitions, found.partitions_more, "source partitions") + (known ? "" : "; no task has reported any"));
  fill(at("partitions"), found.partitions.map((each) => ({
    cells: [each.name, each.backlog === null ? "unknown" : [
      bytes(each.backlog),
      each.rows === null ? "" : `${count(each.rows)} rows`,
      each.lag_s === null ? "" : `${count(Math.round(each.lag_s))} s`,
    ].filter(Boolean).join(", ")], tone: "", numbers: [1],
  })));
}

function runs({ running, drained, tasks }) {
  if (drained === tasks) return `${count(tasks)} drained`;
  return `${count(running)} of ${count(tasks)} run${drained ? `, ${count(drained)} drained` : ""}`;
}

function isIdle({ running, drained, tasks }) {
  return running + drained < tasks;
}

function drain(found) {
  at("steps").replaceChildren(...found.steps.map((step) => {
    const item = document.createElement("li"), bar = document.createElement("progress"), label = document.createElement("label");
    label.append(plain(`${step.name.toLowerCase().replaceAll("_", " ")}: ${step.done} of ${found.tasks}`), bar);
    bar.max = Math.max(found.tasks, 1);
    bar.value = step.done;
    item.append(label);
    return item;
  }));
  const more = found.waits_for_more ? ` and ${found.waits_for_more} more` : "";
  write(at("waits"), found.waits_for.length ? `Waiting for ${found.waits_for.join(", ")}${more}.` : "");
}

function stateOf(each) {
  if (each.failure) return `${each.state}, ${each.failure}`;
  if (each.going) return each.going;
  if (each.no_container) return `${each.state}, its container has ended or hangs`;
  return each.too_old_for ? `${each.state}, too old: needs format ${each.too_old_for}` : each.state;
}

function machine({ host, release, code, use }) {
  const share = (size, most) => size ? bytes(size) + (most ? ` of ${bytes(most)}` : "") : "–";
  return [use.memory ? `${use.cpu.toFixed(2)} cores` : "–", share(use.memory, use.memory_most), share(use.heap, use.heap_most),
    host || "–", release || "–", code || "–"];
}

function fleet(found) {
  write(at("c-processors"), some(found.processors, found.processors_more, "processors"));
  fill(at("processors"), found.processors.map((each) => ({
    cells: [each.id, stateOf(each),
      each.leads ? "leads" : "", span(each.silent_s), each.tasks, ...machine(each.machine)],
    tone: each.state === "silent" || each.failure || each.no_container ? "bad" : each.state === "active" ? "" : "warn", numbers: [3, 4, 5, 6, 7],
  })));
}

function waits(task) {
  return task.why && task.why_s >= 1 ? `${task.why} Seen for ${span(Math.round(task.why_s))}.` : task.why;
}

function took(ms) {
  return ms?.triggerExecution === undefined ? "–" : `${(ms.triggerExecution / 1000).toFixed(2)} s`;
}

function phases(stage) {
  if (!stage.ms) return "–";
  const parts = Object.entries(stage.ms).filter(([phase, ms]) => phase !== "triggerExecution" && ms >= 5).sort((one, other) => other[1] - one[1]);
  return `${stage.slowest}: ${took(stage.ms)}${parts.length ? ", of which " : ""}${parts.map(([phase, ms]) => `${phase} ${(ms / 1000).toFixed(2)} s`).join(", ")}`;
}

function work(found) {
  fill(at("stages"), found.stages.map((stage) => ({
    cells: [stage.name, runs(stage), ...[stage.pace, stage.pace_out].map((pace) => count(found.phase === "DRAINED" ? null : pace)),
      bytes(stage.behind), count(stage.state_rows), bytes(stage.state_bytes), phases(stage)],
    tone: isIdle(stage) ? "warn" : "", numbers: [1, 2, 3, 4, 5, 6],
  })));
  write(at("c-tasks"), some(found.tasks, found.tasks_more, "tasks"));
  fill(at("tasks"), found.tasks.map((task) => ({
    cells: [task.name, task.owner ?? "nobody", task.phase, task.batch ?? "–", took(task.ms), count(task.pace), span(task.age_s),
      bytes(task.backlog), bytes(task.state_bytes), count(task.late), count(task.restarts), [waits(task), task.error].filter(Boolean).join("\n")],
    tone: task.error ? "bad" : task.why ? "warn" : "", numbers: [3, 4, 5, 6, 7, 8, 9, 10],
  })));
}

function age() {
  const element = at("read");
  if (!readAt) return;
  const old = Math.max(0, Date.now() - ahead - readAt), stale = old > STALE_MS || Date.now() - heardAt > STALE_MS;
  element.classList.toggle("stale", stale);
  write(element, `${stale ? "last read" : "read"} ${span(Math.round(old / 1000))} ago`);
}

listen(show, lost);
setInterval(age, 1000);
addEventListener("resize", () => shown && flow(shown));
followDay([{ id: "backlog", said: bytes }, { id: "age", said: span }, { id: "pace", said: (rows) => `${count(rows)} rows/s` }]);
Object.assign(globalThis, { show, showDay }); // for measurements
