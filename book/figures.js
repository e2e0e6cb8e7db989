// Figures that move. crates/figures computes them, as WebAssembly that is loaded when the first figure comes into view; here are the controls,
// and the drawing of its frames. Where that does not load, and in print, the picture within the figure stays.
(() => {
  const places = document.querySelectorAll("main [data-figure]");
  if (!places.length || !window.WebAssembly || /print\.html$/.test(location.pathname)) return;
  const PAUSE = 900; // ms between two frames
  const SVG = "http://www.w3.org/2000/svg";

  let module;
  // Answers requests: what crates/figures/src/lib.rs calls `answer`.
  const loaded = () =>
    (module ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = `${path_to_root}figures-module.js`;
      script.onerror = failed;
      script.onload = async () => {
        const bytes = Uint8Array.from(atob(window.lockstepFigures), (letter) => letter.charCodeAt(0));
        const { memory, room, ask, address } = (await WebAssembly.instantiate(bytes)).instance.exports;
        done((request) => {
          const text = new TextEncoder().encode(JSON.stringify(request));
          const at = room(text.length);
          new Uint8Array(memory.buffer, at, text.length).set(text);
          const length = ask();
          return JSON.parse(new TextDecoder().decode(new Uint8Array(memory.buffer, address(), length)));
        });
      };
      document.head.append(script);
    }));

  const element = (name, attributes = {}, ...inside) => {
    const made = document.createElement(name);
    Object.assign(made, attributes);
    made.append(...inside);
    return made;
  };
  const drawn = (name, attributes = {}) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  class Figure {
    constructor(place, answer) {
      const { figure, ...values } = place.dataset;
      Object.assign(this, { place, answer, figure, values: { ...values }, now: null, shapes: new Map(), fields: new Map() });
      this.title = place.querySelector("svg title, img")?.textContent || place.querySelector("img")?.alt || `The figure ${figure}`;
      this.controls = element("div", { className: "controls" });
      this.svg = drawn("svg", { class: "drawing", role: "img", "aria-label": this.title, tabindex: 0 });
      this.svg.append(drawn("title"));
      this.svg.firstChild.textContent = this.title;
      this.says = element("p", { className: "says", ariaLive: "polite" });
      this.facts = element("dl");
      const button = (label, title, onclick) => element("button", { type: "button", title, ariaLabel: title, onclick }, label);
      this.back = button("◀", "one moment back", () => this.pause(this.now - 1));
      this.play = button("▶ play", "play", () => this.toggle());
      this.step = button("▶", "one moment on", () => this.pause(this.now + 1));
      this.time = element("input", { type: "range", min: 0, ariaLabel: "moment", oninput: () => this.pause(+this.time.value) });
      this.clock = element("div", { className: "clock" }, this.back, this.play, this.step, this.time);
      this.svg.onkeydown = (event) => {
        const to = { ArrowLeft: this.now - 1, ArrowRight: this.now + 1, Home: 0, End: Infinity }[event.key];
        if (to !== undefined) this.pause(to);
        else if (event.key === " ") this.toggle();
        else return;
        event.preventDefault();
      };
      this.box = element("div", { className: "moves" }, this.controls, this.svg, this.says, this.clock, this.facts);
      // mdBook turns the page upon arrows.
      this.box.addEventListener("keydown", (event) => event.stopPropagation());
      this.width = 0;
      new ResizeObserver(() => {
        // A drawing is made for its room; small changes only scale it.
        if (Math.abs(this.box.clientWidth - this.width) > 0.1 * this.width) this.ask();
      }).observe(this.box);
      place.replaceChildren(this.box);
      this.ask();
    }

    // Asks for the figure with the values that the reader has set.
    ask() {
      this.width = this.box.clientWidth;
      if (!this.width) return;
      const found = this.answer({ figure: this.figure, width: Math.min(this.width, 760), values: this.values });
      if (found.error) {
        this.says.textContent = found.error;
        return;
      }
      this.list(found.controls);
      const { scene } = found;
      const last = scene.frames.length - 1;
      const atEnd = this.scene && this.now === this.scene.frames.length - 1;
      this.scene = scene;
      this.svg.setAttribute("viewBox", `0 0 ${scene.width} ${scene.height}`);
      this.svg.style.maxWidth = `${scene.width}px`;
      this.time.max = last;
      this.clock.hidden = last === 0;
      this.facts.replaceChildren(...scene.facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
      this.stop();
      this.show(this.now === null ? scene.first : atEnd ? last : this.now);
    }

    // The controls are made once; later answers only set their values.
    list(controls) {
      for (const { name, label, kind, value, ...range } of controls) {
        let field = this.fields.get(name);
        if (!field) {
          field = kind === "choice" ? element("select", {}, ...range.options.map((option) => element("option", {}, option))) : element("input", { type: kind, min: range.min, max: range.max, step: range.step ?? "any" });
          const shown = element("output", {});
          this.controls.append(element("label", {}, element("span", {}, label, " ", kind === "range" ? shown : ""), field));
          field[kind === "range" ? "oninput" : "onchange"] = () => {
            this.values[name] = kind === "choice" ? field.value : +field.value;
            this.ask();
          };
          field.shown = shown;
          this.fields.set(name, field);
        }
        if (document.activeElement !== field || kind !== "number") field.value = value;
        field.shown.textContent = kind === "range" ? +(+value).toFixed(2) : "";
      }
    }

    show(to) {
      const { frames } = this.scene;
      this.now = Math.max(0, Math.min(frames.length - 1, to));
      const { says, shapes } = frames[this.now];
      this.says.textContent = says;
      this.time.value = this.now;
      this.back.disabled = this.now === 0;
      this.step.disabled = this.now === frames.length - 1;
      const kept = new Map();
      for (const shape of shapes) kept.set(shape.key, this.draw(shape));
      for (const [key, old] of this.shapes) if (!kept.has(key)) old.remove();
      this.shapes = kept;
    }

    // A shape that was there before moves to its new place.
    draw({ key, kind, x, y, w, h, class: name, words }) {
      let group = this.shapes.get(key);
      if (!group) {
        group = drawn("g");
        if (kind !== "words") group.append(drawn(kind === "box" ? "rect" : "line"));
        if (kind !== "line") group.append(drawn("text"));
      }
      group.style.transform = `translate(${x}px, ${y}px)`;
      group.setAttribute("class", name.replace(/\S+/g, "m-$&"));
      const [mark, text] = [group.querySelector("rect, line"), group.querySelector("text")];
      if (kind === "box") {
        mark.style.width = `${Math.max(0, w)}px`;
        mark.style.height = `${Math.max(0, h)}px`;
        text.setAttribute("x", w / 2);
        text.setAttribute("y", h / 2 + 4.5);
        text.setAttribute("text-anchor", "middle");
      } else if (kind === "line") {
        mark.setAttribute("x2", w);
        mark.setAttribute("y2", h);
      } else text.setAttribute("y", 12);
      if (text && text.textContent !== words) text.textContent = words;
      // What moves is above what stays.
      this.svg.append(group);
      return group;
    }

    pause(to) {
      this.stop();
      this.show(to);
    }

    toggle() {
      if (this.timer) return this.stop();
      if (this.now === this.scene.frames.length - 1) this.show(0);
      this.play.textContent = "❚❚ pause";
      this.timer = setInterval(() => {
        this.show(this.now + 1);
        if (this.now === this.scene.frames.length - 1) this.stop();
      }, PAUSE);
    }

    stop() {
      clearInterval(this.timer);
      this.timer = null;
      this.play.textContent = "▶ play";
    }
  }

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        watcher.unobserve(target);
        loaded().then((answer) => new Figure(target, answer), () => {});
      }
    },
    { rootMargin: "300px" },
  );
  for (const place of places) watcher.observe(place);
})();
