
"use strict";
// Without this script the page is complete; with it, tables can be sorted and filtered.
(() => {
  const natural = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function value(row, column) {
    const cell = row.cells[column];
    const number = cell.dataset.key;
    return number === undefined ? cell.textContent : parseFloat(number.replace("inf", "Infinity"));
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a < b ? -1 : a > b ? 1 : 0;
    return natural.compare(String(a), String(b));
  }

  function sort(table, head) {
    const column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => [value(row, column), row]);
    rows.sort((a, b) => (up ? 1 : -1) * compare(a[0], b[0]));
    body.append(...rows.map((pair) => pair[1]));
  }

  function filter(table, words, status) {
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      // Cells are joined by a space, so that a word never reaches over two of them.
      row.words ??= Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => row.words.includes(word));
      shown += !row.hidden;
    }
    status.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
  }

  for (const holder of document.querySelectorAll("[data-table]")) {
    const table = holder.querySelector("table");
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent || "row";
      head.replaceChildren(button);
      button.addEventListener("click", () => sort(table, head));
    }
    if (table.tBodies[0].rows.length < 4) continue;
    const tools = document.createElement("div");
    const input = document.createElement("input");
    const status = document.createElement("span");
    tools.className = "tools";
    input.type = "search";
    input.placeholder = "Filter rows by words";
    input.setAttribute("aria-label", `Filter ${holder.querySelector(".scroll").getAttribute("aria-label")}`);
    status.setAttribute("role", "status");
    tools.append(input, status);
    holder.querySelector(".scroll").before(tools);
    let waiting = 0;
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => filter(table, input.value.toLowerCase().split(/\s+/).filter(Boolean), status), 60);
    });
  }
})();
