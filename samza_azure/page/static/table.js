// Rows of a table that stay the same elements from one reading to the next, so that scrolling and selections stay.
// Everything is put in as text: what comes from the account is never markup.

export function fill(body, columns, found, toneOf = () => "") {
  if (!body.parentElement.tHead) head(body.parentElement.createTHead().insertRow(), columns);
  while (body.rows.length > found.length) body.deleteRow(-1);
  const fresh = document.createDocumentFragment();
  found.forEach((each, at) => {
    const row = body.rows[at] ?? fresh.appendChild(made(columns)), tone = toneOf(each);
    if (tone) row.dataset.tone = tone;
    else delete row.dataset.tone;
    columns.forEach(({ cell }, index) => write(row.cells[index], cell(each)));
  });
  body.append(fresh);
}

function head(row, columns) {
  for (const { head: text, isNumber } of columns) {
    write(row.appendChild(cellOf("col", isNumber)), text);
  }
}

function made(columns) {
  const row = document.createElement("tr");
  columns.forEach(({ isNumber }, index) => row.append(cellOf(index === 0 ? "row" : "", isNumber)));
  return row;
}

// The heading of a column or a row, or a cell of neither.
function cellOf(scope, isNumber) {
  const cell = document.createElement(scope ? "th" : "td");
  if (scope) cell.scope = scope;
  if (isNumber) cell.className = "number";
  return cell;
}

// The text, with a mark instead of each character that would turn the direction of what stands beside it.
export function plain(text) {
  return String(text ?? "").replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

export function write(element, text) {
  const wanted = plain(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}
