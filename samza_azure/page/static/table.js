// Rows of a table that stay the same elements from one reading to the next, so that scrolling and selections stay.
// Everything is put in as text: what comes from the account is never markup.

export function fill(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  const fresh = document.createDocumentFragment();
  rows.forEach(({ cells, tone, numbers }, at) => {
    const row = body.rows[at] ?? fresh.appendChild(made(cells.length, numbers));
    set(row, tone);
    cells.forEach((text, index) => write(row.cells[index], text));
  });
  body.append(fresh);
}

function made(count, numbers) {
  const row = document.createElement("tr");
  for (let index = 0; index < count; index += 1) {
    const cell = row.appendChild(document.createElement(index === 0 ? "th" : "td"));
    if (index === 0) cell.scope = "row";
    if (numbers.includes(index)) cell.className = "number";
  }
  return row;
}

function set(row, tone) {
  if (tone) row.dataset.tone = tone;
  else delete row.dataset.tone;
}

// The text, with a mark instead of each character that would turn the direction of what stands beside it.
export function plain(text) {
  return String(text ?? "").replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

export function write(element, text) {
  const wanted = plain(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}
