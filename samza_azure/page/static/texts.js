// How numbers are written. What is not known is a dash.

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (size >= unit) return `${(size / unit).toFixed(1)} ${name}`;
  }
  return `${size} B`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 && !Number.isInteger(seconds) ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en", { maximumFractionDigits: 1 });
}
