// What check_book.py asks of a page that is open in a browser; each function answers with a list of faults.
({
  // The page itself must not scroll sideways; wide things scroll inside themselves. mdBook's own boxes around <main> scroll, too,
  // and hide it from the document's width. Names what sticks out.
  sideways() {
    const boxes = [];
    for (let box = document.querySelector("main"); box; box = box.parentElement) boxes.push(box);
    const wide = boxes.find((box) => box.scrollWidth > Math.min(box.clientWidth || Infinity, window.innerWidth));
    if (!wide) return [];
    const scrolls = (e) => !boxes.includes(e) && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
    const edge = wide.getBoundingClientRect().right;
    const out = [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > edge && !scrolls(e.parentElement) && !e.querySelector("*"));
    const names = out.slice(0, 3).map((e) => `<${e.localName}> "${e.textContent.trim().slice(0, 40)}"`);
    return [`scrolls sideways: ${wide.scrollWidth} px in a <${wide.localName}> of ${wide.clientWidth}${names.length ? ", for one " + names.join(", ") : ""}`];
  },

  // Words of a drawing must not overlap, stick out of it, or be too small to read; and the drawing must not scroll.
  words() {
    const faults = [];
    for (const drawing of document.querySelectorAll("main svg.drawing")) {
      const room = drawing.viewBox.baseVal;
      const box = drawing.getBoundingClientRect();
      // It is the other form that is shown, or a fold hides both.
      if (!box.width) continue;
      const name = drawing.querySelector("title").textContent;
      const scale = Math.min(box.width / room.width, box.height / room.height);
      if (scale < 0.85) faults.push(`has the drawing "${name}" at ${Math.round(100 * scale)} % of its size`);
      if (drawing.parentElement.scrollWidth > drawing.parentElement.clientWidth) faults.push(`has the drawing "${name}", which must be scrolled`);
      const texts = [...drawing.querySelectorAll("text")].map((e) => ({ words: e.textContent, box: e.getBBox() }));
      for (const { words, box } of texts)
        if (box.x < 0 || box.y < 0 || box.x + box.width > room.width || box.y + box.height > room.height) faults.push(`has a drawing in which "${words}" sticks out`);
      texts.forEach((a, i) =>
        texts.slice(i + 1).forEach((b) => {
          const across = Math.min(a.box.x + a.box.width, b.box.x + b.box.width) - Math.max(a.box.x, b.box.x);
          const down = Math.min(a.box.y + a.box.height, b.box.y + b.box.height) - Math.max(a.box.y, b.box.y);
          // Boxes have some room above and below the letters.
          if (across > 1 && down > 4) faults.push(`has a drawing in which "${a.words}" and "${b.words}" overlap`);
        }),
      );
    }
    return faults;
  },

  // Lines and words of drawings must stand out from the page, in the theme given.
  drawings(theme) {
    const root = document.documentElement;
    const before = root.className;
    root.className = before.split(" ").filter((c) => !["light", "navy", "rust", "coal", "ayu"].includes(c)).concat(theme).join(" ");
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const colour = (text) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255);
    };
    const light = (c) => c.slice(0, 3).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const over = (c, alpha, ground) => c.slice(0, 3).map((v, i) => v * alpha + ground[i] * (1 - alpha));
    const behind = (e) => {
      for (let at = e; at; at = at.parentElement) {
        const c = colour(getComputedStyle(at).backgroundColor);
        if (c[3] > 0.99) return c;
      }
      return [1, 1, 1, 1];
    };
    const faults = new Set();
    for (const drawing of document.querySelectorAll("main svg.drawing")) {
      const ground = behind(drawing);
      const contrast = (text, opacity) => {
        const c = colour(text);
        const a = light(over(c, c[3] * opacity, ground));
        const b = light(ground);
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      };
      for (const e of drawing.querySelectorAll("text, tspan, line, path, rect, circle, ellipse, polyline, polygon")) {
        const style = getComputedStyle(e);
        const words = e.localName === "text" || e.localName === "tspan";
        const stroke = style.stroke === "none" ? 0 : contrast(style.stroke, style.strokeOpacity * style.opacity);
        const fill = style.fill === "none" || e.localName === "line" ? 0 : contrast(style.fill, style.fillOpacity * style.opacity);
        // 4.5 for text and 3 for graphics: WCAG 2.1, 1.4.3 and 1.4.11.
        if (words ? fill < 4.5 : Math.max(stroke, fill) < 3)
          faults.add(`has a <${e.localName} class="${e.getAttribute("class") ?? ""}"> that is hard to see in the theme ${theme} (contrast ${Math.max(stroke, fill).toFixed(1)})`);
      }
    }
    root.className = before;
    return [...faults];
  },
})
