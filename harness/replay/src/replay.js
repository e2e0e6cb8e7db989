// The lanes of a replay: what is in view, the moment, and who waits for whom. `page.rs` writes the scene. Times are nanoseconds or, where the
// recording has none, numbers of calls.
(() => {
  const scene = JSON.parse(document.getElementById("scene").textContent);
  const { lanes, ops, groups, kinds, timed } = scene;
  const find = (id) => document.getElementById(id);
  const element = (name, attributes = {}, ...inside) => {
    const made = document.createElement(name);
    Object.assign(made, attributes);
    made.append(...inside);
    return made;
  };
  const [picture, strip, labels, tip] = ["lanes", "overview", "labels", "tip"].map(find);
  const [says, table, time, play, pace] = ["says", "now", "time", "play", "pace"].map(find);
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const LENGTH = Math.max(1, scene.length);
  const CLOSEST = timed ? 2000 : 4; // the narrowest view
  const AXIS = 24;
  const EDGE = 9;
  const PAUSE = 900; // ms between two moments, if nothing may glide
  const MOST_ARROWS = 24;
  const MOST_LISTED = 200;
  const MOST_ROWS = 16;

  // ---- what happens when

  // The first index from which on `is` holds, of a list of `length`.
  const first = (length, is) => {
    let [low, high] = [0, length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (is(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  for (const lane of lanes) {
    let before = 0;
    lane.from = lane.from.map((after) => (before += after));
    lane.to = lane.from.map((from, index) => from + lane.lasts[index]);
    lane.open = new Set(lane.open);
    // In a row, one span ends before the next begins; in the last row they may overlap, so `ends` has the latest so far.
    lane.byRow = Array.from({ length: lane.rows }, () => []);
    lane.from.forEach((_, index) => lane.byRow[lane.row[index]].push(index));
    lane.ends = lane.byRow.map((row) => {
      let latest = 0;
      return row.map((index) => (latest = Math.max(latest, lane.to[index])));
    });
  }
  const members = ops.map(() => []);
  lanes.forEach((lane, at) => lane.op.forEach((op, index) => members[op].push([at, index])));

  // All moments at which something changes.
  const times = (() => {
    const all = [[0, LENGTH], scene.marks.map(([at]) => at)];
    for (const lane of lanes) all.push(lane.from, lane.to, ...[lane.lives, lane.steps, lane.waits].map((list) => list.flatMap(([from, to]) => [from, to])));
    const sorted = Float64Array.from(all.flat()).sort();
    return sorted.filter((at, index) => index === 0 || at !== sorted[index - 1]);
  })();

  // What is open at the end still is at the last moment.
  const within = (at) => Math.min(at, LENGTH - 0.5);
  const inside = (list, at) => {
    const found = list[first(list.length, (k) => list[k][0] > within(at)) - 1];
    return found && within(at) < found[1] ? found : undefined;
  };
  // The spans of a lane that are open at a moment, row by row.
  const openAt = (lane, at) =>
    lane.byRow.flatMap((row, number) => {
      const found = [];
      const moment = within(at);
      for (let k = first(row.length, (k) => lane.ends[number][k] > moment); k < row.length && lane.from[row[k]] <= moment; k++) if (lane.to[row[k]] > moment) found.push(row[k]);
      return found;
    });
  const waitAt = (lane, at) => inside(lane.waits, at);
  // For which lanes, of those that have not come yet.
  const awaited = (wait) => (wait ? wait[3].filter(([, until]) => until > within(now)).map(([at]) => at) : []);
  const stepAt = (lane, at) => inside(lane.steps, at);
  const lifeAt = (lane, at) => lane.lives.findLast(([from]) => from <= at);

  // ---- words

  const digits = () => Math.min(9, Math.max(1, 3 - Math.floor(Math.log10((view[1] - view[0]) / 1e9))));
  const clock = (at) => (timed ? `${(at / 1e9).toFixed(digits())} s` : `call ${Math.floor(at)}`);
  const lasting = (width) => (!timed ? "" : width >= 1e9 ? `${(width / 1e9).toFixed(2)} s` : width >= 1e6 ? `${(width / 1e6).toFixed(2)} ms` : `${(width / 1e3).toFixed(1)} µs`);
  const amount = (bytes) => (bytes === null ? "" : bytes >= 1 << 20 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : bytes >= 1 << 10 ? `${(bytes / 2 ** 10).toFixed(1)} KiB` : `${bytes} bytes`);
  const ranks = (list) => {
    const names = list.map((at) => lanes[at].rank);
    return names.length > 1 ? `ranks ${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : `rank ${names[0]}`;
  };
  const place = (op) => {
    const [group, number] = ops[op];
    return [group < 0 ? "" : groups[group], number === null ? "" : String(number)];
  };
  const named = (lane, index) => {
    const [group, number] = place(lane.op[index]);
    return `${kinds[lane.kind[index]].name}${number && `, call ${number}`}${group && ` of group ${group}`}`;
  };

  // ---- the view

  let view = [0, LENGTH];
  let now = scene.first;
  let chosen = scene.lane;
  let over = null; // the span under the pointer: lane and index
  let timer = null;
  let asked = false;
  let size = { width: 0, lane: 0, gap: 0, height: 0 };
  // The first and the last moment have some room.
  const room = () => size.width - 2 * EDGE;
  const x = (at) => EDGE + ((at - view[0]) / (view[1] - view[0])) * room();
  const at = (x) => view[0] + ((x - EDGE) / room()) * (view[1] - view[0]);
  const middle = (lane) => AXIS + lane * size.lane + size.gap + (size.lane - size.gap - 3) / 2;

  const look = (from, to) => {
    const width = Math.min(LENGTH, Math.max(CLOSEST, to - from));
    const begin = Math.min(Math.max(0, (from + to - width) / 2), LENGTH - width);
    view = [begin, begin + width];
    ask();
  };
  const zoom = (factor, around = now) => {
    const share = (around - view[0]) / (view[1] - view[0]);
    const width = Math.min(LENGTH, Math.max(CLOSEST, (view[1] - view[0]) / factor));
    const begin = around - Math.min(1, Math.max(0, share)) * width;
    look(begin, begin + width);
  };
  const move = (by) => look(...view.map((edge) => edge + Math.min(Math.max(by, -view[0]), LENGTH - view[1])));
  // Goes to a moment, and keeps it in view.
  const go = (to) => {
    now = Math.min(LENGTH, Math.max(0, to));
    const width = view[1] - view[0];
    if (now < view[0] || now > view[1]) look(now - width / 2, now + width / 2);
    ask();
  };
  const choose = (lane) => {
    chosen = lane;
    ask();
  };
  const pause = (to) => {
    stop();
    go(to);
  };
  const next = (way) => {
    const found = way > 0 ? first(times.length, (k) => times[k] > now) : first(times.length, (k) => times[k] >= now) - 1;
    return times[Math.min(times.length - 1, Math.max(0, found))];
  };
  const show = ([to, lane, from, until]) => {
    chosen = lane;
    stop();
    now = to;
    look(from, until);
  };

  const stop = () => {
    cancelAnimationFrame(timer?.frame);
    clearInterval(timer?.interval);
    timer = null;
    play.textContent = "▶ play";
    says.ariaLive = "polite";
  };
  const start = () => {
    if (now >= LENGTH) go(0);
    play.textContent = "❚❚ pause";
    says.ariaLive = "off"; // a reader of the screen could not follow
    if (still.matches) {
      const interval = setInterval(() => (now < LENGTH ? go(next(1)) : stop()), PAUSE);
      timer = { interval };
      return;
    }
    let before = performance.now();
    const frame = (moment) => {
      const rate = (view[1] - view[0]) / (1000 * pace.value);
      go(now + rate * Math.max(0, moment - before));
      before = moment;
      if (now >= LENGTH) return stop();
      timer.frame = requestAnimationFrame(frame);
    };
    timer = { frame: requestAnimationFrame(frame) };
  };

  // ---- the picture

  let colours = {};
  let hatch = {};
  let whole = null; // the whole run, drawn once for each width and set of colours
  let boxes = 0; // how many were drawn, which checks look at
  const recolour = () => {
    const style = getComputedStyle(document.documentElement);
    const names = ["card", "text", "soft", "line", "call", "call-text", "starting", "stalled", "stalled-line", "dead", "dead-line", "stopped", "stopped-line", "sign", "bad"];
    colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    const striped = (ground, lines, slope) => {
      const made = document.createElement("canvas");
      made.width = made.height = 6;
      const pen = made.getContext("2d");
      pen.fillStyle = ground;
      pen.fillRect(0, 0, 6, 6);
      pen.strokeStyle = lines;
      pen.lineWidth = 1.6;
      pen.beginPath();
      for (const shift of [-6, 0, 6]) {
        pen.moveTo(shift, slope ? 6 : -1);
        pen.lineTo(slope ? shift + 6 : shift, slope ? 0 : 7);
      }
      pen.stroke();
      return pen.createPattern(made, "repeat");
    };
    whole = null;
    hatch = {
      wait: striped(colours.stalled, colours["stalled-line"], false),
      never: striped(colours.dead, colours["dead-line"], true),
      gap: striped(colours.card, colours["stopped-line"], true),
    };
  };

  const canvas = (element, height) => {
    const scale = window.devicePixelRatio || 1;
    const width = element.clientWidth;
    if (element.width !== Math.round(width * scale) || element.height !== Math.round(height * scale)) {
      element.width = Math.round(width * scale);
      element.height = Math.round(height * scale);
      element.style.height = `${height}px`;
    }
    const pen = element.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  };

  // Calls `box` for what is in view of spans in the order of their beginnings; those below a pixel are one.
  const inView = (length, from, to, box) => {
    const pixel = (view[1] - view[0]) / room();
    let k = first(length, (k) => to(k) > view[0]);
    while (k < length && from(k) < view[1]) {
      boxes++;
      const [begin, end] = [from(k), to(k)];
      if (end - begin >= pixel) {
        box(begin, end, k, 1);
        k++;
        continue;
      }
      const edge = begin + pixel;
      // One that begins in this pixel and ends after it is drawn.
      const after = Math.max(
        k + 1,
        first(length, (k) => to(k) > edge),
      );
      box(begin, edge, k, after - k);
      k = after;
    }
  };

  const draw = () => {
    const rows = Math.max(...lanes.map((lane) => lane.rows));
    const gap = lanes.length <= 16 && lanes.some((lane) => lane.steps.length) ? 17 : 5;
    const tall = lanes.length <= 8 ? gap + Math.max(32, 15 * rows) : lanes.length <= 16 ? gap + Math.max(24, 8 * rows) : lanes.length <= 48 ? 26 : 16;
    size = { width: picture.clientWidth, lane: tall, gap, height: AXIS + tall * lanes.length + 4 };
    if (!size.width) return;
    labels.style.setProperty("--lane", `${tall}px`);
    boxes = 0;
    const pen = canvas(picture, size.height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    axis(pen);
    lanes.forEach((lane, number) => drawLane(pen, lane, number));
    signs(pen);
    const waiting = arrows(pen);
    const edge = x(now);
    pen.fillStyle = colours.text;
    pen.fillRect(edge - 0.75, 0, 1.5, size.height);
    pen.beginPath();
    pen.moveTo(edge - 6, 0);
    pen.lineTo(edge + 6, 0);
    pen.lineTo(edge, 8);
    pen.fill();
    overview();
    Object.assign(picture.dataset, { now, from: view[0], to: view[1], boxes, waits: waiting.map(([from, to]) => `${lanes[from].rank}>${lanes[to].rank}`).join(" ") });
  };

  const axis = (pen) => {
    const least = ((view[1] - view[0]) * 110) / room();
    const power = 10 ** Math.floor(Math.log10(least));
    const step = Math.max(1, [1, 2, 5, 10].map((by) => by * power).find((by) => by >= least));
    for (let tick = Math.ceil(view[0] / step) * step; tick <= view[1]; tick += step) {
      const edge = x(tick);
      pen.fillStyle = colours.line;
      pen.fillRect(edge, AXIS - 5, 1, size.height);
      pen.fillStyle = colours.soft;
      pen.textAlign = edge < 24 ? "left" : edge > size.width - 30 ? "right" : "center";
      pen.fillText(timed ? `${+(tick / 1e9).toFixed(9)} s` : String(tick), edge, 11);
    }
  };

  const label = (pen, words, left, right, top, height, colour) => {
    const [seen, until] = [Math.max(0, left), Math.min(size.width, right)];
    if (until - seen < 24) return;
    pen.save();
    pen.beginPath();
    pen.rect(seen, top, until - seen - 2, height);
    pen.clip();
    pen.textAlign = "left";
    pen.fillStyle = colour;
    pen.fillText(words, seen + 4, top + height / 2 + 0.5);
    pen.restore();
  };

  const drawLane = (pen, lane, number) => {
    const top = AXIS + number * size.lane;
    const gap = size.gap;
    const high = size.lane - gap - 3;
    const edge = lane.recorded ? colours["stopped-line"] : colours.stopped;
    pen.fillStyle = edge;
    for (let dot = 0; dot < size.width; dot += 6) pen.fillRect(dot, top + gap + high / 2, 1.5, 1);
    if (number === chosen) {
      pen.fillStyle = colours.line;
      pen.globalAlpha = 0.45;
      pen.fillRect(0, top, size.width, size.lane);
      pen.globalAlpha = 1;
    }
    for (const [from, to] of lane.lives) {
      if (to < view[0] || from > view[1]) continue;
      pen.fillStyle = colours.starting;
      pen.globalAlpha = 0.55;
      pen.fillRect(x(from), top + gap, Math.max(1, x(to) - x(from)), high);
      pen.globalAlpha = 1;
    }
    // What is not recorded.
    pen.fillStyle = hatch.gap;
    inView(lane.gaps.length, (k) => lane.gaps[k][0], (k) => lane.gaps[k][1], (begin, end) => {
      pen.fillRect(Math.max(-2, x(begin)), top + gap, Math.max(1, Math.min(size.width + 2, x(end)) - Math.max(-2, x(begin))), high);
    });
    // Steps are above the calls in them.
    inView(lane.steps.length, (k) => lane.steps[k][0], (k) => lane.steps[k][1], (begin, end, k, count) => {
      const [left, right] = [Math.max(-2, x(begin)), Math.min(size.width + 2, x(end))];
      pen.fillStyle = colours["stopped-line"];
      pen.fillRect(left, top + 2, Math.max(1, right - left - 1), 2);
      if (count > 1 || right - left < 40 || size.gap < 14) return;
      label(pen, lane.steps[k][2], left, right, top + 4, 12, colours.soft);
    });
    const each = high / lane.rows;
    lane.byRow.forEach((row, at) => {
      const y = top + gap + at * each;
      inView(row.length, (k) => lane.from[row[k]], (k) => lane.ends[at][k], (begin, end, k, count) => {
        const index = row[k];
        if (count === 1) [begin, end] = [lane.from[index], lane.to[index]];
        const [left, right] = [Math.max(-2, x(begin)), Math.min(size.width + 2, x(end))];
        const never = count === 1 && lane.open.has(index);
        const { short, class: kind } = kinds[lane.kind[index]];
        pen.fillStyle = kind === "other" ? colours.stopped : colours.call;
        pen.fillRect(left, y + 0.5, Math.max(1, right - left), each - 1);
        if (never) {
          pen.fillStyle = hatch.never;
          pen.fillRect(left, y + each * 0.72, right - left, each * 0.28 - 0.5);
        }
        if (right - left > 3) {
          pen.strokeStyle = colours.card;
          pen.lineWidth = 1;
          pen.strokeRect(left + 0.5, y + 0.5, right - left - 1, each - 1);
        }
        if (right - left < 30 || each < 11 || count > 1) return;
        label(pen, short, left, right, y, Math.min(each, each * 0.8 + 2), colours[kind === "other" ? "text" : "call-text"]);
      });
    });
    // While it waits for others.
    pen.fillStyle = hatch.wait;
    inView(lane.waits.length, (k) => lane.waits[k][0], (k) => lane.waits[k][1], (begin, end) => {
      const left = Math.max(-2, x(begin));
      pen.fillRect(left, top + size.lane - 9, Math.max(1, Math.min(size.width + 2, x(end)) - left), 6);
    });
    // The same operation on all ranks.
    if (over) {
      for (const [at, index] of members[lanes[over[0]].op[over[1]]]) {
        if (at !== number) continue;
        pen.strokeStyle = colours.text;
        pen.lineWidth = 2;
        pen.strokeRect(x(lane.from[index]), top + gap + lane.row[index] * each, Math.max(2, x(lane.to[index]) - x(lane.from[index])), each);
      }
    }
  };

  const SIGNS = {
    fault: { path: "M-6,-9 h12 L0,1 Z", fill: "dead", stroke: "card" },
    died: { path: "M-7,0 a7,7 0 1 0 14,0 a7,7 0 1 0 -14,0 Z", fill: "dead", stroke: "card", over: "M-3,-3 L3,3 M3,-3 L-3,3" },
    restart: { path: "M-4,-7 L7,0 L-4,7 Z", fill: "card", stroke: "sign" },
    end: { path: "M-1.5,-7 h3 v14 h-3 Z", fill: "sign", stroke: "card" },
    note: { path: "M-4,0 a4,4 0 1 0 8,0 a4,4 0 1 0 -8,0 Z", fill: "stalled", stroke: "sign" },
  };
  const signs = (pen) => {
    const last = new Map();
    let k = first(scene.marks.length, (k) => scene.marks[k][0] >= view[0]);
    for (; k < scene.marks.length && scene.marks[k][0] <= view[1]; k++) {
      const [moment, lane, kind] = scene.marks[k];
      const place = x(moment);
      // One sign for those of a kind that would lie on each other.
      if (place - (last.get(`${lane} ${kind}`) ?? -99) < 8) continue;
      last.set(`${lane} ${kind}`, place);
      pen.save();
      if (lane < 0) {
        // Of the whole job.
        pen.strokeStyle = colours.soft;
        pen.setLineDash([3, 3]);
        pen.beginPath();
        pen.moveTo(place, AXIS);
        pen.lineTo(place, size.height);
        pen.stroke();
        pen.setLineDash([]);
      }
      pen.translate(place, lane < 0 ? AXIS - 3 : middle(lane) - (kind === "fault" ? size.lane / 5 : 0));
      const { path, fill, stroke, over } = SIGNS[kind];
      pen.fillStyle = colours[fill];
      pen.strokeStyle = colours[stroke];
      pen.lineWidth = 1.4;
      pen.fill(new Path2D(path));
      pen.stroke(new Path2D(path));
      pen.strokeStyle = "#fff";
      if (over) pen.stroke(new Path2D(over));
      pen.restore();
    }
  };

  // From each rank that waits to those that it waits for.
  const arrows = (pen) => {
    const all = lanes.flatMap((lane, number) => awaited(waitAt(lane, now)).map((at) => [number, at]));
    const drawn = all.length > MOST_ARROWS ? all.filter(([from], k) => k === all.findIndex(([other]) => other === from)).slice(0, 4 * MOST_ARROWS) : all;
    const edge = x(now);
    for (const [from, to] of drawn) {
      const way = edge > size.width - 90 ? -1 : 1;
      const bow = way * Math.min(80, 22 + 14 * Math.abs(from - to));
      const [begin, end] = [middle(from), middle(to) + (from < to ? -4 : 4)];
      for (const [colour, thick] of [[colours.card, 5], [colours.bad, 2]]) {
        pen.strokeStyle = pen.fillStyle = colour;
        pen.lineWidth = thick;
        pen.beginPath();
        pen.moveTo(edge, begin);
        pen.bezierCurveTo(edge + bow, begin, edge + bow, end, edge + way * 7, end);
        pen.stroke();
        pen.beginPath();
        pen.moveTo(edge + way, end);
        pen.lineTo(edge + way * 9, end - 5);
        pen.lineTo(edge + way * 9, end + 5);
        pen.closePath();
        pen.fill();
        pen.beginPath();
        pen.arc(edge, begin, 3.5, 0, 7);
        pen.fill();
      }
    }
    return all;
  };

  // The whole run, and which part is in view.
  const overview = () => {
    const height = 30;
    const wide = strip.clientWidth;
    const place = (at) => (at / LENGTH) * wide;
    if (whole?.width !== wide) whole = drawWhole(wide, height, place);
    const pen = canvas(strip, height);
    pen.drawImage(whole, 0, 0);
    pen.strokeStyle = colours.text;
    pen.lineWidth = 2;
    pen.strokeRect(Math.max(1, place(view[0])), 1, Math.max(3, place(view[1]) - place(view[0]) - 2), height - 2);
    pen.fillStyle = colours.text;
    pen.fillRect(place(now) - 1, 0, 2, height);
  };
  const drawWhole = (wide, height, place) => {
    const made = element("canvas", { width: wide, height });
    const pen = made.getContext("2d");
    const each = height / lanes.length;
    lanes.forEach((lane, number) => {
      const strip = (from, to) => pen.fillRect(from, number * each, Math.max(1, to - from), Math.max(1, each - 0.5));
      pen.fillStyle = colours.starting;
      for (const [from, to] of lane.lives) strip(place(from), place(to));
      pen.fillStyle = colours.stalled;
      let last = -1;
      for (const [from, to] of lane.waits) {
        const [left, right] = [Math.floor(place(from)), Math.ceil(place(to))];
        if (right <= last) continue;
        strip(Math.max(left, last), right);
        last = right;
      }
    });
    pen.fillStyle = colours.dead;
    for (const [moment, , kind] of scene.marks) if (kind === "died" || kind === "fault") pen.fillRect(place(moment) - 1, 0, 2, height);
    return made;
  };

  // ---- the moment in words

  const sentence = () => {
    const waits = new Map();
    lanes.forEach((lane, number) => {
      const wait = waitAt(lane, now);
      if (!wait) return;
      const [, , span, , any, why] = wait;
      const on = awaited(wait);
      const what = span >= 0 ? named(lane, span) : "";
      const key = why || `${what}|${on}`;
      if (!waits.has(key)) waits.set(key, { who: [], what, on, any, why });
      waits.get(key).who.push(number);
    });
    const marks = scene.marks.filter(([moment]) => moment === now);
    const parts = marks.map(([, lane, , words]) => (lane < 0 ? words : `rank ${lanes[lane].rank}: ${words}`));
    const flying = lanes.reduce((sum, lane) => sum + openAt(lane, now).length, 0);
    for (const { who, what, on, any, why } of waits.values()) {
      const whom = on.length ? ranks(on) : "a rank that is not known";
      const details = why ? `: ${why}` : what && ` in ${what}`;
      parts.push(`${ranks(who)} ${who.length > 1 ? "wait" : "waits"} for ${any ? "any of " : ""}${whom}${details}`);
    }
    if (!waits.size) parts.push(flying ? "no rank waits for another" : "no call is in flight");
    return `${clock(now)}: ${parts.slice(0, 6).join("; ")}${parts.length > 6 ? `; and ${parts.length - 6} more` : ""}.`;
  };

  const COLUMNS = [
    (lane, index) => `${kinds[lane.kind[index]].name}${lane.open.has(index) ? ", which never ended" : lane.errors[index] ? `, which will fail: ${lane.errors[index]}` : ""}`,
    (lane, index) => place(lane.op[index])[0],
    (lane, index) => place(lane.op[index])[1],
    (lane, index) => amount(kinds[lane.kind[index]].bytes),
    (lane, index) => lasting(now - lane.from[index]),
    (lane, index) => lane.values[index] ?? "",
  ];
  // Where a rank is, if it is in no call.
  const elsewhere = (lane) => {
    const life = lifeAt(lane, now);
    if (!lane.recorded) return "not recorded";
    if (!life) return "not started";
    if (within(now) >= life[1]) return life[2] || "ended";
    const step = stepAt(lane, now);
    return step ? `${step[2]}, between calls` : "between calls";
  };
  const row = (lane, number) => {
    const open = openAt(lane, now);
    const wait = waitAt(lane, now);
    const on = awaited(wait);
    const life = lifeAt(lane, now);
    const made = element("tr", { className: `${number === chosen ? "chosen " : ""}${life && within(now) >= life[1] ? life[3] : ""}`, onclick: () => choose(number) });
    made.append(element("th", { scope: "row" }, `rank ${lane.rank}`));
    COLUMNS.forEach((column, k) => {
      // A rank is in several calls if they are asynchronous.
      const lines = open.length ? open.map((index) => column(lane, index)) : [k ? "" : elsewhere(lane)];
      made.append(element("td", { className: k >= 2 && k <= 4 ? "number" : "" }, ...lines.flatMap((line, at) => (at ? [element("br"), line] : [line]))));
    });
    made.append(element("td", { className: wait ? "waits" : "" }, wait ? (on.length ? `${wait[4] ? "any of " : ""}${ranks(on)}` : "not known") : ""));
    [...table.tHead.rows[0].cells].forEach((heading, k) => k && made.cells[k].textContent && (made.cells[k].dataset.name = heading.textContent));
    return made;
  };
  const listed = find("listed");
  let of = "";
  const list = () => {
    if (!listed.open || of === view.join()) return;
    of = view.join();
    const all = [];
    lanes.forEach((lane, number) =>
      lane.from.forEach((from, index) => {
        if (lane.to[index] >= view[0] && from <= view[1]) all.push([from, number, index]);
      }),
    );
    all.sort((one, other) => one[0] - other[0]);
    const rows = all.slice(0, MOST_LISTED).map(([from, number, index]) => {
      const lane = lanes[number];
      const [group, call] = place(lane.op[index]);
      const ends = lane.open.has(index) ? "never" : timed ? clock(lane.to[index]) : "";
      const cells = [clock(from), ends, `rank ${lane.rank}`, kinds[lane.kind[index]].name, group, call, amount(kinds[lane.kind[index]].bytes), lane.values[index] ?? ""];
      return element("tr", {}, ...cells.map((text) => element("td", {}, text)));
    });
    listed.querySelector("tbody").replaceChildren(...rows);
    listed.querySelector("p").textContent = `${all.length} calls are in view${all.length > MOST_LISTED ? `; the first ${MOST_LISTED} are listed: zoom in for the others` : ""}.`;
  };

  const render = () => {
    asked = false;
    draw();
    time.value = Math.round((1000 * now) / LENGTH);
    time.ariaValueText = clock(now);
    const words = sentence();
    if (says.textContent !== words) says.textContent = words;
    // Of many ranks, the chosen one and those that wait.
    const weight = (at) => 2 * (at === chosen) + !!waitAt(lanes[at], now);
    const order = lanes.map((_, at) => at);
    if (lanes.length > MOST_ROWS) order.sort((one, other) => weight(other) - weight(one) || one - other);
    table.tBodies[0].replaceChildren(...order.slice(0, MOST_ROWS).map((at) => row(lanes[at], at)));
    [...labels.querySelectorAll("button")].forEach((button, at) => button.setAttribute("aria-pressed", at === chosen));
    find("back").disabled = now <= 0;
    find("on").disabled = now >= LENGTH;
    list();
  };
  const ask = () => {
    if (!asked) requestAnimationFrame(render);
    asked = true;
  };

  // ---- the reader

  for (const [at, lane] of lanes.entries()) labels.append(element("button", { type: "button", tabIndex: -1, title: lane.place, onclick: () => choose(at) }, `rank ${lane.rank}`));
  play.onclick = () => (timer ? stop() : start());
  find("back").onclick = () => pause(next(-1));
  find("on").onclick = () => pause(next(1));
  time.oninput = () => pause((time.value / 1000) * LENGTH);
  find("closer").onclick = () => zoom(2);
  find("wider").onclick = () => zoom(0.5);
  find("whole").onclick = () => look(0, LENGTH);
  listed.ontoggle = ask;
  for (const button of document.querySelectorAll("[data-moment]"))
    button.onclick = () => {
      show(JSON.parse(button.dataset.moment));
      picture.focus({ preventScroll: true });
      find("replay").scrollIntoView({ block: "start", behavior: "instant" });
    };
  // The moments of a kind, one after the other.
  for (const button of document.querySelectorAll("[data-jump]")) {
    const all = JSON.parse(button.dataset.jump);
    let last = -1;
    button.onclick = () => {
      last = (last + 1) % all.length;
      show(all[last]);
      button.querySelector("span").textContent = all.length > 1 ? ` ${last + 1} of ${all.length}` : "";
    };
  }
  picture.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const width = view[1] - view[0];
    const does = {
      ArrowRight: () => (event.shiftKey ? move(width / 4) : pause(next(1))),
      ArrowLeft: () => (event.shiftKey ? move(-width / 4) : pause(next(-1))),
      ArrowUp: () => (chosen = Math.max(0, chosen - 1)),
      ArrowDown: () => (chosen = Math.min(lanes.length - 1, chosen + 1)),
      Home: () => pause(0),
      End: () => pause(LENGTH),
      PageUp: () => move(-width),
      PageDown: () => move(width),
      " ": () => play.click(),
      "+": () => zoom(2),
      "=": () => zoom(2),
      "-": () => zoom(0.5),
      0: () => look(0, LENGTH),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
    ask();
  };

  // A drag moves the view, a click goes to the moment and chooses the rank, two fingers or Ctrl and the wheel zoom.
  const fingers = new Map();
  let dragged = false;
  const hit = (event) => {
    const [across, down] = [event.offsetX, event.offsetY - AXIS];
    const number = Math.floor(down / size.lane);
    const lane = lanes[number];
    if (!lane || down < 0) return null;
    const height = (size.lane - size.gap - 3) / lane.rows;
    const row = Math.min(lane.rows - 1, Math.max(0, Math.floor((down - number * size.lane - size.gap) / height)));
    const [begin, end] = [at(across - 1), at(across + 1)];
    const all = lane.byRow[row];
    const k = first(all.length, (k) => lane.ends[row][k] >= begin);
    if (k >= all.length || lane.from[all[k]] > end) return { number, index: null };
    return { number, index: all[k], count: first(all.length, (k) => lane.from[all[k]] > end) - k };
  };
  const point = (event) => {
    const found = hit(event);
    over = found && found.index !== null ? [found.number, found.index] : null;
    tip.hidden = !over;
    if (over) {
      const { index, count } = found;
      const lane = lanes[found.number];
      const [group, call] = place(lane.op[index]);
      const { name, bytes } = kinds[lane.kind[index]];
      const facts = [group && `group ${group}`, call && `call ${call}`, amount(bytes)].filter(Boolean);
      const lasts = lane.open.has(index) ? "never ends" : lasting(lane.to[index] - lane.from[index]);
      const more = count > 1 ? `${count} calls here: zoom in` : "";
      const lines = [name, facts.join(" · "), timed ? `${clock(lane.from[index])}, ${lasts}` : "", lane.values[index] ?? "", more];
      tip.replaceChildren(...lines.filter(Boolean).map((line) => element("div", {}, line)));
      tip.style.left = `${Math.max(0, Math.min(event.offsetX + 12, size.width - tip.offsetWidth))}px`;
      tip.style.top = `${event.offsetY + 16}px`;
    }
    ask();
  };
  picture.onpointerdown = (event) => {
    fingers.set(event.pointerId, event.offsetX);
    dragged = false;
    picture.setPointerCapture(event.pointerId);
  };
  picture.onpointermove = (event) => {
    if (!fingers.has(event.pointerId)) return point(event);
    const before = [...fingers.values()];
    const last = fingers.get(event.pointerId);
    if (!dragged && fingers.size === 1 && Math.abs(event.offsetX - last) < 4) return;
    dragged = true;
    fingers.set(event.pointerId, event.offsetX);
    const after = [...fingers.values()];
    if (fingers.size === 1) return move(((before[0] - after[0]) / room()) * (view[1] - view[0]));
    zoom(Math.abs(after[0] - after[1]) / Math.max(1, Math.abs(before[0] - before[1])), at((after[0] + after[1]) / 2));
  };
  picture.onpointerup = picture.onpointercancel = (event) => {
    fingers.delete(event.pointerId);
    if (dragged || event.type === "pointercancel") return;
    const number = Math.floor((event.offsetY - AXIS) / size.lane);
    if (lanes[number]) chosen = number;
    pause(at(event.offsetX));
    point(event);
  };
  picture.onpointerleave = () => {
    over = null;
    tip.hidden = true;
    ask();
  };
  picture.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 200), at(event.offsetX));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(((event.deltaX || event.deltaY) / room()) * (view[1] - view[0]));
    else return;
    event.preventDefault();
  }, { passive: false });
  const centre = (event) => {
    const [middle, half] = [(event.offsetX / strip.clientWidth) * LENGTH, (view[1] - view[0]) / 2];
    look(middle - half, middle + half);
  };
  strip.onpointerdown = (event) => {
    strip.setPointerCapture(event.pointerId);
    centre(event);
  };
  strip.onpointermove = (event) => event.buttons && centre(event);

  const again = () => {
    recolour();
    ask();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  for (const when of ["beforeprint", "afterprint"])
    addEventListener(when, () => {
      recolour();
      render();
    });
  new ResizeObserver(ask).observe(picture);
  recolour();
  find("replay").classList.remove("waits-for-script");
  look(...scene.view);
  render();
})();
