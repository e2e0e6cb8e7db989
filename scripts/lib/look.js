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

  // Words of a drawing must not overlap, stick out of it, or be too small to read.
  words() {
    const faults = [];
    for (const drawing of document.querySelectorAll("main svg.drawing")) {
      const room = drawing.viewBox.baseVal;
      const box = drawing.getBoundingClientRect();
      const name = drawing.querySelector("title").textContent;
      const scale = Math.min(box.width / room.width, box.height / room.height);
      if (scale < 0.85) faults.push(`has the drawing "${name}" at ${Math.round(100 * scale)} % of its size`);
      // In the drawing's units: what a group moves is where it is seen.
      const placed = ({ x, y, width, height }) => ({ x: (x - box.x) / scale, y: (y - box.y) / scale, width: width / scale, height: height / scale });
      const seen = [...drawing.querySelectorAll("text")].filter((e) => e.textContent);
      const texts = seen.map((e) => ({ words: e.textContent, box: placed(e.getBoundingClientRect()) }));
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

  // Colours as a browser shows them, and how much two of them differ (WCAG 2.1, "contrast ratio").
  colours() {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const known = new Map(); // a page has few colours, and many texts
    const colour = (text) => {
      if (!known.has(text)) {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        known.set(text, [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255));
      }
      return known.get(text);
    };
    const light = (c) => c.slice(0, 3).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const over = (c, alpha, ground) => c.slice(0, 3).map((v, i) => v * alpha + ground[i] * (1 - alpha));
    // What all that is in an element has: the colour behind it, of the innermost opaque ground, and how opaque it is.
    const grounds = new Map([[null, { ground: [1, 1, 1, 1], opacity: 1 }]]);
    const groundOf = (e) => {
      if (!grounds.has(e)) {
        const [style, outer] = [getComputedStyle(e), groundOf(e.parentElement)];
        const own = colour(style.backgroundColor);
        grounds.set(e, { ground: own[3] > 0.99 ? own : outer.ground, opacity: outer.opacity * style.opacity });
      }
      return grounds.get(e);
    };
    const contrast = (text, opacity, ground) => {
      const c = colour(text);
      const [a, b] = [light(over(c, c[3] * opacity, ground)), light(ground)];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    return { colour, groundOf, contrast };
  },

  // Texts must stand out from what is behind them: 4.5, or 3 for large ones (WCAG 2.1, 1.4.3). What is switched off is left out.
  texts() {
    const { groundOf, contrast } = this.colours();
    const faults = new Map();
    const seen = new Set();
    const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const inside = texts.currentNode.parentElement;
      if (seen.has(inside) || !texts.currentNode.data.trim() || inside.closest("svg, script, style, :disabled, [aria-hidden=true]") || !inside.getClientRects().length) continue;
      seen.add(inside);
      const style = getComputedStyle(inside);
      const { ground, opacity } = groundOf(inside);
      const size = parseFloat(style.fontSize);
      const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
      const found = contrast(style.color, opacity, ground);
      const kind = `<${inside.localName} class="${inside.className}">`;
      if (found < least && !faults.has(kind)) faults.set(kind, `has ${kind} "${texts.currentNode.data.trim().slice(0, 30)}" that is hard to read (contrast ${found.toFixed(1)})`);
    }
    return [...faults.values()];
  },

  // Lines and words of drawings must stand out from the page, in the theme given.
  drawings(theme) {
    const root = document.documentElement;
    const before = root.className;
    root.className = before.split(" ").filter((c) => !["light", "navy", "rust", "coal", "ayu"].includes(c)).concat(theme).join(" ");
    const { groundOf, contrast } = this.colours();
    const faults = new Set();
    for (const drawing of document.querySelectorAll("main svg.drawing")) {
      const { ground } = groundOf(drawing);
      for (const e of drawing.querySelectorAll("text, tspan, line, path, rect, circle, ellipse, polyline, polygon")) {
        const style = getComputedStyle(e);
        if (style.stroke === "none" && style.fill === "none") continue; // only a place
        const words = e.localName === "text" || e.localName === "tspan";
        const stroke = style.stroke === "none" ? 0 : contrast(style.stroke, style.strokeOpacity * style.opacity, ground);
        const fill = style.fill === "none" || e.localName === "line" ? 0 : contrast(style.fill, style.fillOpacity * style.opacity, ground);
        // 4.5 for text and 3 for graphics: WCAG 2.1, 1.4.3 and 1.4.11.
        if (words ? fill < 4.5 : Math.max(stroke, fill) < 3)
          faults.add(`has a <${e.localName} class="${e.getAttribute("class") ?? ""}"> that is hard to see in the theme ${theme} (contrast ${Math.max(stroke, fill).toFixed(1)})`);
      }
    }
    root.className = before;
    return [...faults];
  },

  // A figure that moves: comes into view, steps, plays and goes back.
  async moves(name) {
    const faults = [];
    const place = document.querySelector(`main [data-figure="${name}"]`);
    const until = async (wanted, what) => {
      for (const begun = Date.now(); Date.now() - begun < 20000; ) {
        if (wanted()) return true;
        await new Promise((later) => setTimeout(later, 20));
      }
      faults.push(what);
      return false;
    };
    place.scrollIntoView();
    const drawn = () => place.querySelector(".moves svg g") !== null;
    if (!(await until(drawn, "does not load"))) return faults;
    const [svg, time, says] = [".moves svg", ".clock input", ".says"].map((part) => place.querySelector(part));
    const last = +time.max;
    const key = (name) => svg.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
    const at = (moment, what) => (+time.value === moment && says.textContent) || faults.push(`${what}: moment ${time.value}, not ${moment}`);
    key("Home");
    at(0, "Home");
    if (last === 0) return faults;
    const [first, shapes] = [says.textContent, svg.innerHTML];
    key("ArrowRight");
    at(1, "the right arrow");
    key("ArrowLeft");
    at(0, "the left arrow");
    if (says.textContent !== first) faults.push("says something else after a step and back");
    if (svg.querySelectorAll("g").length !== new DOMParser().parseFromString(shapes, "text/html").querySelectorAll("g").length) faults.push("draws something else after a step and back");
    const [back, play, step] = place.querySelectorAll(".clock button");
    if (!back.disabled) faults.push("could go back before its beginning");
    step.click();
    at(1, "a step");
    key("Home");
    play.click();
    await until(() => +time.value > 0, "does not play");
    play.click();
    key("End");
    at(last, "End");
    if (!step.disabled) faults.push("could go on after its end");
    for (const label of place.querySelectorAll(".controls :is(input, select)")) if (!label.closest("label")?.textContent.trim()) faults.push("has a control without a label");
    return faults;
  },

  async resized(name) {
    const svg = document.querySelector(`main [data-figure="${name}"] .moves svg`);
    if (!svg) return [];
    for (const begun = Date.now(); Date.now() - begun < 20000; ) {
      const [shown, made] = [svg.getBoundingClientRect().width, svg.viewBox.baseVal.width];
      if (Math.abs(shown - made) < 0.15 * made) {
        await Promise.allSettled(document.getAnimations().map((motion) => motion.finished));
        return [];
      }
      await new Promise((later) => setTimeout(later, 20));
    }
    return ["is not drawn again for another width"];
  },
})
