// A line over the last quarter of an hour, drawn as a small SVG. A value that is not known leaves a gap.

const SPACE = "http://www.w3.org/2000/svg", WIDE = 300, HIGH = 60;

export function draw(svg, points, seconds) {
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const known = points.filter(([, value]) => value !== null);
  const most = Math.max(1e-9, ...known.map(([, value]) => value));
  const now = points.length ? points[points.length - 1][0] : 0;
  const lines = [[]];
  for (const [at, value] of points) {
    if (value === null) lines.push([]);
    else lines[lines.length - 1].push(`${(WIDE * (1 - (now - at) / 1000 / seconds)).toFixed(1)},${(HIGH - 4 - (value / most) * (HIGH - 8)).toFixed(1)}`);
  }
  svg.replaceChildren(...lines.filter((line) => line.length).map((line) => {
    const drawn = document.createElementNS(SPACE, "polyline");
    drawn.setAttribute("points", line.join(" "));
    return drawn;
  }));
}
