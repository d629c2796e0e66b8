// Shows what the account says.

import { EVENTS, PARTITIONS, PROCESSORS, STAGES, TASKS, runs } from "./columns.js";
import { followDay, show as showDay } from "./day.js";
import { drawGraph } from "./graph.js";
import { draw } from "./lines.js";
import { listen } from "./news.js";
import { fill, plain, write } from "./table.js";
import { bytes, count, span } from "./texts.js";

const LINES_S = 900, POINT_S = 5, STALE_MS = 15000;
const at = (id) => document.getElementById(id);
let readAt = 0, heardAt = 0, ahead = 0, shown = null;

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
    write(at("c-processors"), some(found.processors, found.processors_more, "processors"));
    fill(at("processors"), PROCESSORS, found.processors, toneOfProcessor);
    fill(at("stages"), STAGES, found.stages.map((stage) => found.phase === "DRAINED" ? { ...stage, pace: null, pace_out: null } : stage),
      (stage) => isIdle(stage) ? "warn" : "");
    write(at("c-tasks"), some(found.tasks, found.tasks_more, "tasks"));
    fill(at("tasks"), TASKS, found.tasks, (task) => task.error ? "bad" : task.why ? "warn" : "");
    fill(at("events"), EVENTS, found.events);
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
  fill(at("partitions"), PARTITIONS, found.partitions);
}

function toneOfProcessor({ state, failure, no_container }) {
  if (state === "silent" || failure || no_container) return "bad";
  return state === "active" ? "" : "warn";
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
