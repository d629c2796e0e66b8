// The last day, which the fleet's leader records once a minute, also if nobody watches: curves and failures.

import { draw } from "./lines.js";
import { plain, write } from "./table.js";

const AGAIN_MS = 60000, SOON_MS = 10000;
const at = (id) => document.getElementById(id);
let figures = [], open = new Set(), before = "";

export function followDay(shown) {
  figures = shown;
  async function ask() {
    let again = SOON_MS;
    try {
      const answer = await fetch("day.json", { cache: "no-store", signal: AbortSignal.timeout(20000) });
      const found = answer.ok ? await answer.json() : {};
      if (found.points) {
        show(found);
        again = AGAIN_MS;
      }
    } catch {
      // The verdict says that there is no connection.
    }
    setTimeout(ask, again);
  }
  ask();
}

export function show(found) {
  const known = found.points.length > 0;
  at("day-curves").hidden = !known;
  write(at("no-day"), known ? "" : "Nothing is recorded yet. While the fleet runs, its leader records a point a minute.");
  figures.forEach((name, index) => {
    const points = found.points.map((point) => [point[0], point[index + 1]]);
    const values = points.map(([, value]) => value).filter((value) => value !== null);
    write(at(`day-${name.id}`), values.length ? `highest point ${name.said(Math.max(...values))}` : "unknown");
    const begin = known ? Math.min(found.points[0][0], found.points.at(-1)[0] - 900000) : 0;
    if (known) draw(at(`day-line-${name.id}`), points, (found.points.at(-1)[0] - begin) / 1000);
  });
  write(at("day-reach"), known ? `From ${time(found.points[0][0])} to ${time(found.points.at(-1)[0])}, a point a minute.` : "");
  write(at("c-failures"), found.failures.length ? "" : "No failure is recorded. One is within about a minute, if there is a leader then.");
  const text = JSON.stringify(found.failures);
  if (text === before) return;
  before = text;
  at("failures").replaceChildren(...found.failures.map(failure));
}

function time(ms) {
  return new Date(ms).toLocaleString();
}

function failure(each) {
  const item = document.createElement("li"), details = document.createElement("details"), key = `${each.task} ${each.processor} ${each.message}`;
  const summary = details.appendChild(document.createElement("summary")), trace = document.createElement("pre");
  const where = [each.host && `on ${each.host}`, each.release && `samza-azure ${each.release}`, each.code && `code ${each.code}`].filter(Boolean).join(", ");
  const often = each.times === 1 ? time(each.last_ms) : `${each.times} times, from ${time(each.first_ms)} to ${time(each.last_ms)}`;
  for (const [name, text] of [["who", each.task || each.processor], ["why", each.message]]) {
    const part = summary.appendChild(document.createElement("span"));
    part.className = name;
    part.textContent = plain(text);
    summary.append(" ");
  }
  const line = details.appendChild(document.createElement("p"));
  line.textContent = plain(`${often}${each.task ? `; ${each.processor}` : ""}${where ? `; ${where}` : ""}`);
  trace.textContent = plain(each.trace || "There is no trace.");
  details.append(trace);
  details.open = open.has(key);
  details.addEventListener("toggle", () => details.open ? open.add(key) : open.delete(key));
  item.append(details);
  const when = document.createElement("p");
  when.className = "when";
  when.textContent = often;
  item.append(when);
  return item;
}
