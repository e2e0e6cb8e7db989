// What a page on a narrow screen or on a projector needs, and CSS alone cannot do.
(() => {
  // For a projector: `?project` in the address. Links keep it, also those that are made later, such as a search's results.
  const root = document.documentElement;
  if (new URLSearchParams(location.search).has("project")) {
    root.classList.add("project");
    root.classList.remove("sidebar-visible");
    document.getElementById("mdbook-sidebar-toggle-anchor").checked = false;
    const plain = new URL(location.href);
    plain.searchParams.delete("project");
    const leave = document.createElement("a");
    leave.className = "leave-project";
    leave.href = plain.href;
    leave.textContent = "projector: back to normal size";
    document.querySelector(".right-buttons").prepend(leave);
    const keep = (link) => {
      const to = new URL(link.href);
      if (link === leave || to.protocol !== location.protocol || to.host !== location.host || to.searchParams.has("project")) return;
      to.search += `${to.search ? "&" : "?"}project`;
      link.href = to.href;
    };
    document.querySelectorAll("a[href]").forEach(keep);
    const keepOf = (event) => {
      const link = event.target.closest?.("a[href]");
      if (link) keep(link);
    };
    document.addEventListener("click", keepOf, true);
    document.addEventListener("auxclick", keepOf, true);
  }

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
