// The graph of sources, stages and sinks, as an SVG: from left to right where there is room, else downwards.

import { plain } from "./table.js";

const SPACE = "http://www.w3.org/2000/svg", HIGH = 60, EDGE = 12, ALONG = 132, DOWN = 58;

function made(name, attributes, text) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = plain(text);
  return element;
}

function short(text, most) {
  return text.length > most ? `${text.slice(0, Math.floor(most) - 1)}…` : text;
}

// `label` gives the lines beside an edge, `below` those in a node.
export function drawGraph(svg, found, room, label, below, isIdle) {
  const layers = Math.max(...found.nodes.map((node) => node.layer)) + 1;
  const spots = [...found.nodes.map((node) => [node.layer, node.place]), ...found.edges.flatMap((edge) => edge.via)];
  const least = Math.min(...spots.map(([, place]) => place)), most = Math.max(...spots.map(([, place]) => place));
  const wide = room < 500 ? 150 : 176;
  const across = layers * (wide + ALONG) - ALONG + 2 * EDGE <= room;
  const [layerStep, placeStep] = across ? [wide + ALONG, HIGH + 30] : [HIGH + DOWN, wide + 16];
  const left = (layer, place) => EDGE + (across ? layer * layerStep : (place - least) * placeStep);
  const top = (layer, place) => EDGE + (across ? (place - least) * placeStep : layer * layerStep);
  const width = across ? layers * layerStep - ALONG + 2 * EDGE : (most - least) * placeStep + wide + 2 * EDGE;
  const height = across ? (most - least) * placeStep + HIGH + 2 * EDGE : layers * layerStep - DOWN + 2 * EDGE;
  const isFirst = !svg.childElementCount;
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const nodes = new Map(found.nodes.map((node) => [node.id, node])), drawn = [], labels = [];

  function out(node) {
    const [x, y] = [left(node.layer, node.place), top(node.layer, node.place)];
    return across ? [x + wide, y + HIGH / 2] : [x + wide / 2, y + HIGH];
  }
  function into(node) {
    const [x, y] = [left(node.layer, node.place), top(node.layer, node.place)];
    return across ? [x, y + HIGH / 2] : [x + wide / 2, y];
  }
  function bend([x, y], [toX, toY]) {
    return across ? `C ${(x + toX) / 2} ${y} ${(x + toX) / 2} ${toY} ${toX} ${toY}` : `C ${x} ${(y + toY) / 2} ${toX} ${(y + toY) / 2} ${toX} ${toY}`;
  }

  for (const edge of found.edges) {
    let at = out(nodes.get(edge.from)), way = `M ${at.join(" ")}`, first = null;
    for (const [layer, place] of edge.via) {
      const node = { layer, place };
      first = first ?? into(node);
      way += ` ${bend(at, into(node))} L ${out(node).join(" ")}`;
      at = out(node);
    }
    const end = into(nodes.get(edge.to));
    way += ` ${bend(at, end)}`;
    drawn.push(made("path", { d: way, class: edge.behind ? "edge behind" : "edge" }));
    // Beside its last part: streams that leave one node together arrive apart, and those that arrive together come apart.
    const shared = found.edges.filter((each) => each.to === edge.to).length > 1;
    const from = shared ? out(nodes.get(edge.from)) : at, to = shared ? first ?? end : end;
    const part = shared ? 0.2 : across ? 0.62 : 0.9;
    labels.push(words(label(edge), from[0] + (to[0] - from[0]) * (across ? 0.5 : part),
      from[1] + (to[1] - from[1]) * (across ? part : 0.5), across, edge.behind ? "label behind" : "label"));
  }
  for (const node of found.nodes) {
    const [x, y] = [left(node.layer, node.place), top(node.layer, node.place)];
    const group = made("g", { class: `node ${node.kind}${isIdle(node) ? " idle" : ""}` });
    group.append(made("title", {}, `${node.kind} ${node.name}`),
      made("rect", { x, y, width: wide, height: HIGH, rx: node.kind === "source" || node.kind === "stream" ? HIGH / 2 : 5 }),
      made("text", { x: x + wide / 2, y: y + 20, class: "name" }, short(node.name, wide / 9)),
      made("text", { x: x + wide / 2, y: y + 36 }, node.kind),
      made("text", { x: x + wide / 2, y: y + 52, class: "figure" }, below(node)));
    drawn.push(group);
  }
  svg.replaceChildren(...drawn, ...labels);
  if (isFirst) svg.parentElement.scrollLeft = (width - room) / 2;
}

// Above a line that runs across, or it would strike them out; in the middle of one that runs down.
function words(lines, x, y, isAbove, name) {
  const text = made("text", { class: name }), last = lines.length - 1;
  lines.forEach((line, at) => text.append(made("tspan", { x, y: y + (isAbove ? 14 * (at - last) - 6 : 4 + 14 * (at - last / 2)) }, line)));
  return text;
}
