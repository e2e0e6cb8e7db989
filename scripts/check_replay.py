#!/usr/bin/env python3
"""Checks the page of `lockstep replay` in a browser: it loads without a network or complaints, plays, steps, goes back, zooms and survives
another width, by keyboard alone; its words and lines stand out; its arrows are those of the ranks that wait.

    scripts/check_replay.py                        all of it
    scripts/check_replay.py --pictures DIR FILE…   also write pictures of the pages of these recordings: three moments, on a phone and wide,
                                                   light and dark

The runs are made up, one of them with 8 ranks and 10,000 calls each, or PyTorch's. Without a browser (scripts/setup.sh --book-tools) this is
"not verified here". Needs no package.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from lib import browser  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCKSTEP = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "lockstep"
RECORDINGS = ROOT / "engine" / "launch" / "tests" / "flight_recorder"
BEGAN = 1_764_000_000.0
LOOK = (ROOT / "scripts/lib/look.js").read_text()
PHONE, WIDE = 360, 1400
SECONDS = 60
RANKS, CALLS = 8, 10_000

# What is asked of the page.
STATE = "(() => { const d = document.getElementById('lanes').dataset; return { now: +d.now, from: +d.from, to: +d.to, waits: d.waits, says: document.getElementById('says').textContent }; })()"
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"


def page(recording, folder):
    """The recording's page, made by the command."""
    made = folder / "replay.html"
    done = subprocess.run([LOCKSTEP, "replay", recording, "-o", made], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"lockstep replay {recording} ended with {done.returncode}: {done.stderr.strip()}")
    return made.as_uri()


class Page:
    def __init__(self, tab):
        self.tab = tab

    def state(self):
        self.tab.ask(FRAMES)
        return self.tab.ask(STATE)

    def key(self, name, times=1, shift=False):
        """As a reader presses it: it goes to what has the focus."""
        key = {"key": name, "code": name, "modifiers": 8 if shift else 0, "windowsVirtualKeyCode": {"ArrowLeft": 37, "ArrowRight": 39, "ArrowUp": 38, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9}.get(name, ord(name[0].upper()))}
        text = {"text": name} if len(name) == 1 else {}
        for _ in range(times):
            self.tab.call("Input.dispatchKeyEvent", type="keyDown", **key, **text)
            self.tab.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, name):
        self.tab.ask(f"document.getElementById('{name}').click()")

    def until(self, expression, what):
        """Waits until the expression is true."""
        script = f"new Promise((done) => {{ const at = Date.now(); const look = () => ({expression}) ? done(1) : Date.now() - at > 20000 ? done(0) : setTimeout(look, 20); look(); }})"
        if not self.tab.ask(script):
            raise RuntimeError(what)


def expect(holds, what):
    if not holds:
        raise RuntimeError(what)


def plays(tab, address):
    """Everything that a reader can do, at both widths; the keyboard alone for what it can."""
    at = Page(tab)
    for width in (WIDE, PHONE):
        tab.prefer()
        tab.visit(address, width)
        expect(not tab.ask("document.documentElement.scrollWidth > innerWidth"), f"the page is wider than {width}")
        foreign = {url for url in tab.addresses.values() if not url.startswith(("file:", "data:"))}
        expect(not foreign, f"it loads {foreign}")
        # Tab reaches the picture.
        for _ in range(60):
            if tab.ask("document.activeElement && document.activeElement.id === 'lanes'"):
                break
            at.key("Tab")
        expect(tab.ask("document.activeElement.id === 'lanes'"), "Tab does not reach the picture")
        at.key("Home")
        first = at.state()
        expect(first["now"] == 0, f"Home goes to {first['now']}")
        at.key("ArrowRight")
        second = at.state()
        expect(second["now"] > 0, "the right arrow does not go on")
        at.key("ArrowLeft")
        expect(at.state()["now"] == 0 and at.state()["says"] == first["says"], "the left arrow does not go back to the same")
        at.key("0")
        whole = at.state()
        at.key("+", 2)
        near = at.state()
        expect(near["to"] - near["from"] < (whole["to"] - whole["from"]) / 3, "plus does not zoom in")
        at.key("ArrowRight", shift=True)
        expect(at.state()["from"] > near["from"], "Shift and the right arrow do not move the view")
        at.key("0")
        at.key("End")
        last = at.state()
        expect(last["now"] == last["to"] and tab.ask("document.getElementById('on').disabled"), "End does not go to the end")
        at.key("Home")
        at.key(" ")
        at.until("+document.getElementById('lanes').dataset.now > 0", "space does not play")
        at.key(" ")
        paused = at.state()["now"]
        tab.ask("new Promise((done) => setTimeout(done, 200))")
        expect(at.state()["now"] == paused, "space does not pause")
        chosen = "document.querySelector('#labels [aria-pressed=true]').textContent"
        before = tab.ask(chosen)
        at.key("ArrowUp" if not before.endswith(" 0") else "ArrowDown")
        at.state()
        expect(tab.ask(chosen) != before, "the arrows up and down do not choose a rank")
        # Without gliding, it plays from moment to moment.
        tab.prefer(reduced_motion="reduce")
        at.key("Home")
        at.key(" ")
        at.until("+document.getElementById('lanes').dataset.now > 0", "it does not play where motion is reduced")
        at.key(" ")
        # Another width: the moment stays, and the picture fits.
        before = at.state()
        tab.call("Emulation.setDeviceMetricsOverride", width=PHONE + WIDE - width, height=800, deviceScaleFactor=2, mobile=False)
        at.until("document.getElementById('lanes').width === Math.round(2 * document.getElementById('lanes').clientWidth)", "the picture is not drawn again for another width")
        expect(at.state()["now"] == before["now"], "another width changes the moment")
        expect(not tab.ask("document.documentElement.scrollWidth > innerWidth"), "it is wider than the window after a change")
        # Each button that jumps does.
        for place in range(tab.ask("document.querySelectorAll('[data-jump]').length")):
            to = tab.ask(f"(() => {{ const one = document.querySelectorAll('[data-jump]')[{place}]; one.click(); return JSON.parse(one.dataset.jump)[0]; }})()")
            expect(at.state()["now"] == to[0], f"the button {place} goes to {at.state()['now']}, not {to[0]}")
        rows = tab.ask("document.querySelectorAll('.moments tbody tr').length")
        expect(rows > 0, "there is no table of moments")
        tab.ask("document.querySelector('[data-moment]').click()")
        tab.ask("document.getElementById('listed').open = true")
        at.until("document.querySelectorAll('#listed tbody tr').length > 0", "the calls in view are not listed")
        expect(not tab.complaints, f"it complains: {tab.complaints}")


def contrast(tab, address):
    """Words by 4.5, lines and fills of the picture by 3, against what they are on: WCAG 2.1, 1.4.3 and 1.4.11."""
    for scheme in ("light", "dark"):
        tab.prefer(color_scheme=scheme)
        tab.visit(address, WIDE)
        low = tab.ask("(() => { const { colour, contrast } = " + LOOK.strip() + """.colours();
          const style = getComputedStyle(document.documentElement);
          const value = (name) => style.getPropertyValue("--" + name);
          const ratio = (one, other) => contrast(value(one), 1, colour(value(other)));
          const words = [["text", "card"], ["soft", "card"], ["bad", "card"], ["text", "code"], ["text", "stopped"], ["call-text", "call"]];
          const best = (names, ground) => names.split(" ").sort((one, other) => ratio(other, ground) - ratio(one, ground))[0];
          const lines = [["call", "card"], [best("stalled stalled-line", "card"), "card"], ["dead", "card"], ["bad", "card"], ["text", "card"], ["stopped-line", "card"], ["sign", "card"]];
          return [...words.map((pair) => [pair, 4.5]), ...lines.map((pair) => [pair, 3])].map(([pair, least]) => [...pair, ratio(...pair), least]).filter(([, , found, least]) => found < least);
        })()""")
        expect(not low, f"too little contrast in {scheme}: {low}")
    tab.prefer()


class Recording:
    """Lines as `lockstep run --record` writes them, of ranks on one node."""

    def __init__(self, ranks):
        self.agent, self.ranks, self.attempt = [], [[] for _ in range(ranks)], -1

    def add(self, rank, t, event, **fields):
        self.ranks[rank].append({"t": BEGAN + t, "rank": rank, "event": event, **fields})

    def launcher(self, t, event, **fields):
        self.agent.append({"t": BEGAN + t, "node": "a-1", "event": event, **fields})

    def start(self, t):
        self.attempt += 1
        for rank, lines in enumerate(self.ranks):
            pid = 100 * (self.attempt + 1) + rank
            self.launcher(t, "started", attempt=self.attempt, rank=rank, local_rank=rank, pid=pid)
            self.add(rank, t, "opened", pid=pid, restart=self.attempt, host="a")
            self.add(rank, t, "join", group="0", ranks=list(range(len(self.ranks))))
            self.add(rank, t + 0.001, "joined", group="0")

    def call(self, rank, number, begin, end, operation="all_reduce(Sum) of [4] Float", **fields):
        self.add(rank, begin, "enter", call=number, group="0", kind="collective", number=number + 1, operation=operation, bytes=16, form="blocking", **fields)
        if end is not None:
            self.add(rank, end, "leave", call=number, after=[1.5, "NaN"])

    def text(self):
        files = {"agent-a-1.jsonl": self.agent, **{f"rank-{rank}.jsonl": lines for rank, lines in enumerate(self.ranks)}}
        texts = {name: "".join(json.dumps(line) + "\n" for line in lines) for name, lines in files.items()}
        parts = [{"name": name, "bytes": len(text)} for name, text in texts.items()]
        return json.dumps({"recording": 1, "program": "made up", "parts": parts}) + "\n" + "".join(texts.values())


def mishaps(folder):
    """Three ranks: rank 1 is killed; after the restart, ranks 0 and 2 wait in a barrier for rank 1, which is in an all-reduce."""
    run = Recording(3)
    run.start(0)
    for rank in range(3):
        for number in range(6):
            begin = 0.1 + 0.01 * number
            run.call(rank, number, begin + 0.001 * rank, begin + 0.004, before=[0.5, 3, "inf", -1])
            run.add(rank, begin + 0.005, "step", epoch=0, step=number, loss=1.0, samples=8, lr=0.1)
    run.call(0, 6, 0.2, None)
    run.call(2, 6, 0.201, None)
    run.add(1, 0.205, "fault", message="injected: signal 9 (kill)")
    for rank, code, stopped in ((1, -9, False), (0, -15, True), (2, -15, True)):
        run.launcher(0.21 + 0.001 * rank, "ended", attempt=0, rank=rank, local_rank=rank, pid=100 + rank, code=code, stopped=stopped)
    run.launcher(0.22, "restarting", attempt=0, restarts_left=0, reason="local rank 1 ended with SIGKILL")
    run.start(0.3)
    for rank in range(3):
        run.call(rank, 0, 0.31, 0.312)
        run.call(rank, 1, 0.3121 + 0.0002 * rank, None, **({} if rank == 1 else {"operation": "barrier"}))
    run.launcher(5, "finished", code=1)
    file = folder / "mishaps.recording"
    file.write_text(run.text())
    return file


def many_calls(folder):
    """All-reduces, to each of which rank 3 comes late."""
    run = Recording(RANKS)
    run.start(0)
    for rank in range(RANKS):
        for call in range(CALLS):
            begin = 0.01 + 0.001 * call
            run.call(rank, call, begin + (0.0005 if rank == 3 else 0.0001), begin + 0.0006)
    file = folder / "many.recording"
    file.write_text(run.text())
    return file


def scales(tab, folder):
    """8 ranks with 10,000 calls each: of what is below a pixel only one box is drawn, of the whole run and of a thousandth."""
    tab.visit(page(many_calls(folder), folder), WIDE)
    at = Page(tab)
    tab.ask("document.getElementById('lanes').focus()")
    for what, keys in (("the whole run", "0"), ("a part", "0++++++++++")):
        for key in keys:
            at.key(key)
        frames = "new Promise((done) => { const begun = performance.now(); let left = 20; const next = () => { document.getElementById('on').click(); left-- ? requestAnimationFrame(next) : done((performance.now() - begun) / 20); }; next(); })"
        took = tab.ask(frames)
        drawn, most = int(tab.ask("document.getElementById('lanes').dataset.boxes")), 2 * RANKS * WIDE
        expect(0 < drawn <= most, f"of {what}, {drawn} boxes are drawn, more than {most}")
        print(f"replay: {what} of {RANKS} ranks and {CALLS} calls each: {drawn} boxes, {took:.1f} ms on this machine now", flush=True)
    tab.ask("document.getElementById('whole').click()")
    at.key("Home")
    at.until("document.getElementById('says').textContent.length > 0", "it says nothing")
    # In the middle of a call, all wait for rank 3.
    at.key("ArrowRight", 12)
    found = {at.state()["waits"]}
    for _ in range(20):
        at.key("ArrowRight")
        found.add(at.state()["waits"])
    everyone = " ".join(f"{rank}>3" for rank in range(RANKS) if rank != 3)
    expect(everyone in found, f"no moment shows that all wait for rank 3: {sorted(found)[:4]}")
    expect(not tab.complaints, f"it complains: {tab.complaints}")


def points(tab, folder):
    """Each button shows what its name says: the arrows, and the words below the picture."""
    tab.visit(page(mishaps(folder), folder), WIDE)
    at = Page(tab)
    shown = at.state()
    expect(set(shown["waits"].split()) >= {"0>1", "2>1"}, f"it opens with the arrows {shown['waits']}")
    names = tab.ask("[...document.querySelectorAll('[data-jump]')].map((one) => one.textContent)")
    for place, name in enumerate(names):
        tab.ask(f"document.querySelectorAll('[data-jump]')[{place}].click()")
        says, waits = (at.state()[key] for key in ("says", "waits"))
        if name.startswith("mismatch"):
            expect("0>1" in waits, f"the mismatch has the arrows {waits}: {says}")
        if name.startswith("fault"):
            expect("injected" in says and set(waits.split()) == {"0>1", "2>1"}, f"the fault: {waits}: {says}")
        if name.startswith("restart"):
            expect("SIGKILL" in says, f"the restart: {says}")
    expect([name.split(" (")[0] for name in names] == ["rank that stood still first", "mismatch of calls", "fault", "restart", "longest wait"], f"buttons: {names}")
    # The values, and what is under the pointer.
    tab.ask("document.getElementById('whole').click()")
    tab.ask("document.querySelector('#lanes').focus()")
    at.key("Home")
    seen = set()
    for _ in range(40):
        at.key("ArrowRight")
        at.state()
        seen.add(tab.ask("document.querySelector('#now tbody').innerText"))
    expect(any("0.5, 3, inf, -1 → 1.5, NaN" in text for text in seen), "no moment shows the first elements")
    middle = tab.ask("(() => { const box = document.getElementById('lanes').getBoundingClientRect(); return [box.x + box.width - 60, box.y + 52]; })()")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0], y=middle[1])
    at.state()
    # It begins in the same pixel as a short call ends, and is not taken for a part of that.
    colour = tab.ask(f"(() => {{ const c = document.getElementById('lanes'); const box = c.getBoundingClientRect(); const s = devicePixelRatio; return [...c.getContext('2d').getImageData(({middle[0]} - box.x) * s, ({middle[1]} - box.y) * s, 1, 1).data].join(); }})()")
    call = tab.ask("(() => { const one = document.createElement('canvas').getContext('2d'); one.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--call'); one.fillRect(0, 0, 1, 1); return [...one.getImageData(0, 0, 1, 1).data].join(); })()")
    expect(colour == call, f"a call that lasts is not drawn: {colour} instead of {call}")
    tip = tab.ask("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")
    expect("barrier" in tip and "call 2" in tip and "16 bytes" in tip, f"under the pointer: {tip!r}")
    expect(not tab.complaints, f"it complains: {tab.complaints}")


def photograph(tab, folder, recordings, pictures):
    """Three moments: as it opens, in the middle, and of the whole run."""
    pictures.mkdir(parents=True, exist_ok=True)
    for recording in map(pathlib.Path, recordings):
        address = page(recording, folder)
        for width in (PHONE, WIDE):
            for scheme in ("light", "dark"):
                tab.prefer(color_scheme=scheme)
                tab.visit(address, width, 1000)
                for moment, does in (("opens", ""), ("before", f"for (let k = 0; k < 11; k++) {{ document.getElementById('back').click(); await {FRAMES}; }}"), ("whole", "document.getElementById('whole').click(); const t = document.getElementById('time'); t.value = 500; t.oninput();")):
                    tab.ask(f"(async () => {{ {does} await {FRAMES}; }})()")
                    tall = tab.ask("Math.min(3000, document.documentElement.scrollHeight)")
                    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=tall, deviceScaleFactor=1, mobile=False)
                    tab.ask(FRAMES)
                    name = recording.stem if recording.is_file() else recording.name
                    tab.picture(pictures / f"replay-{name}-{'phone' if width == PHONE else 'wide'}-{scheme}-{moment}.png")
    tab.prefer()


def main():
    words = sys.argv[1:]
    pictures = words[:1] == ["--pictures"] and len(words) > 2
    if words and not pictures:
        print(__doc__)
        return 2
    program = browser.needed("how a replay looks in a browser", LOCKSTEP)
    if not program:
        return 0
    with tempfile.TemporaryDirectory() as parent, browser.opened(program) as tab:
        folder = pathlib.Path(parent)
        try:
            if pictures:
                photograph(tab, folder, words[2:], pathlib.Path(words[1]))
                return 0
            for recording in (mishaps(folder), RECORDINGS / "behind" / "rank_0"):
                address = page(recording, folder)
                plays(tab, address)
                contrast(tab, address)
            points(tab, folder)
            scales(tab, folder)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"replay: FAILED: {error}")
            return 1
    print("replay: the pages play, step, go back, zoom and jump by keyboard, at both widths, light and dark, and with 80,000 calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
