// What a page on a narrow screen needs, and CSS alone cannot do.
(() => {
  // Rows of a wide table become blocks there, in which each cell says its column's name. Wide are, besides those that the pages mark,
  // tables with sentences in three columns.
  for (const table of document.querySelectorAll("main table")) {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    const cells = [...table.querySelectorAll("tbody td")];
    for (const cell of cells) cell.dataset.column = names[cell.cellIndex] ?? "";
    if (names.length > 2 && !table.closest(".wide") && cells.some((cell) => cell.textContent.length > 40)) table.parentElement.classList.add("wide");
  }

  // Output in columns keeps its lines; the box scrolls.
  for (const code of document.querySelectorAll("pre > code.language-text")) {
    const rows = code.textContent.split("\n").filter((line) => /\S {2,}\S.*\S {2,}\S|[─═]{8}/.test(line));
    if (rows.length > 3) code.classList.add("columns");
  }

  // Browsers break lines after each dash. A flag keeps at least its dashes and first letter together.
  const FLAG = /(?<=^|[\s([`'"])--?(?:\w|(?=\s|$))/g;
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const inside = texts.currentNode.parentElement;
    // Code of other languages does not wrap, and a drawing's words are no HTML.
    const fixed = inside.closest("svg") || (inside.closest("pre") && !inside.closest(".language-console, .language-text"));
    if (!fixed && texts.currentNode.data.match(FLAG)) found.push(texts.currentNode);
  }
  for (const text of found) {
    const parts = [];
    let from = 0;
    for (const { 0: flag, index } of text.data.matchAll(FLAG)) {
      const whole = document.createElement("span");
      whole.className = "flag";
      whole.textContent = flag;
      parts.push(text.data.slice(from, index), whole);
      from = index + flag.length;
    }
    text.replaceWith(...parts, text.data.slice(from));
  }
})();
