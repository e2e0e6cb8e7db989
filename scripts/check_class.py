#!/usr/bin/env python3
"""Checks `lockstep class --serve` in a browser: the page follows seats that write while it is open, shows a torn file and a folder that
vanishes, says when the command has ended, and fits a phone with 200 seats; and on the wall, 20 or 40 seats fit the screen. And `lockstep report --serve`: its page follows a run.

    scripts/check_class.py                  all of it
    scripts/check_class.py --pictures DIR   also write pictures with 5, 50 and 200 seats: on a phone and wide, light and dark; of the wall with
                                            20 and 40; and of a report

The seats are made up. Without a browser (scripts/setup.sh --book-tools) this is "not verified here". Needs no package.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from lib import browser  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCKSTEP = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "lockstep"
PHONE, WIDE = 360, 1400
LOOK = (ROOT / "scripts/lib/look.js").read_text()
SECONDS = 60  # for the page to show what has changed: it asks every two
TASKS = [("01", "batches"), ("01", "mean_loss"), ("02", "shard"), ("02", "average"), ("02", "line"), ("03", "environment")]
DIAGNOSES = ["a rank has the whole batch: divide it", "a sum of 3 ranks that was not divided", "both ranks send first and wait"]


def seat(name, done, diagnosis=None, minutes=60):
    """A seat that has passed the first tasks, and whose next one was graded if it has a diagnosis."""
    now = int(time.time())
    begun, tasks = now - 60 * minutes, {}
    for index, (lab, task) in enumerate(TASKS[: done + bool(diagnosis)]):
        at = begun + (index + 1) * 60 * minutes // (len(TASKS) + 1)
        passed = index < done
        found = None if passed else {"verdict": "wrong-value", "diagnosis": diagnosis}
        tasks.setdefault(lab, {})[task] = {"first": at, "last": at, "count": 2, "passed": at if passed else None, "finding": found}
    return {"name": name, "since": begun, "tasks": tasks}


def write(folder, name, content):
    """As a seat does it: the file is replaced as a whole."""
    unfinished = folder / f".{name}"
    unfinished.write_text(content if isinstance(content, str) else json.dumps(content))
    unfinished.rename(folder / f"{name}.json")


def fill(folder, seats):
    draw = random.Random(seats)
    for number in range(seats):
        stuck = draw.choice([None, *DIAGNOSES])
        write(folder, f"seat{number}", seat(f"learner{number:03}@node{number % 12:02}", draw.randint(0, 5), stuck, draw.randint(20, 90)))


@contextlib.contextmanager
def serving(folder, name="class", *words):
    """The running command and the page's address; without a folder, of what the words ask for."""
    command = [LOCKSTEP, name, *([folder] if folder else []), "--serve", "127.0.0.1:0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        silent = threading.Timer(SECONDS, process.kill)
        silent.start()
        line = process.stdout.readline()
        silent.cancel()
        address = re.search(r"http://\S+/", line)
        if not address:
            raise RuntimeError(f"it printed no address: {line!r}")
        yield process, address[0]
    finally:
        process.kill()
        process.wait()


def until(tab, expression, otherwise):
    """Waits until the expression is true on the page, without loading it again."""
    ends = time.monotonic() + SECONDS
    while not tab.ask(expression):
        if time.monotonic() > ends:
            raise RuntimeError(otherwise)
        time.sleep(0.2)


def shows(tab, text, never=False):
    """Waits until the page shows the text, or shows it no longer."""
    shown = f"document.querySelector('main').innerText.includes({json.dumps(text)})"
    until(tab, f"!{shown}" if never else shown, f"the page {'still shows' if never else 'does not show'} {text!r}")


def follows(tab, folder):
    with serving(folder, "class", "--route", "day") as (process, address):
        tab.visit(address, WIDE)
        tab.ask("window.same = true")
        shows(tab, "No seat has reported yet")
        write(folder, "ann", seat("ann <b>@node", 2, DIAGNOSES[0]))
        shows(tab, "ann <b>@node")
        shows(tab, DIAGNOSES[0])
        write(folder, "bob", '{"name": "bo')
        shows(tab, "bob.json: torn")
        write(folder, "bob", seat("bob", 1))
        shows(tab, "2 seats")
        gone = folder.with_name("gone")
        folder.rename(gone)
        shows(tab, "The folder cannot be read")
        shows(tab, "ann <b>@node")
        gone.rename(folder)
        shows(tab, "cannot be read", never=True)
        if not tab.ask("window.same") or tab.complaints:
            raise RuntimeError(f"the page was loaded again, or complained: {tab.complaints}")
        process.send_signal(signal.SIGINT)
        if process.wait(SECONDS) != 0:
            raise RuntimeError(f"it ended with {process.returncode} on Ctrl-C")
        until(tab, "document.body.classList.contains('lost')", "the page does not say that the command has ended")


def fits(tab, folder, seats, pictures):
    fill(folder, seats)
    with serving(folder, "class", "--route", "day") as (_, address):
        for width in (PHONE, WIDE):
            for scheme in ("light", "dark"):
                tab.prefer(color_scheme=scheme)
                tab.visit(f"{address}?route=whole", width, 1200)
                over = tab.ask("document.documentElement.scrollWidth - innerWidth")
                if over > 0:
                    raise RuntimeError(f"with {seats} seats the page is {over} px wider than {width}")
                if unreadable := tab.ask(f"{LOOK}.texts()"):
                    raise RuntimeError(f"in {scheme}, the page {unreadable}")
                if pictures:
                    tab.picture(pictures / f"class-{seats}-{'phone' if width == PHONE else 'wide'}-{scheme}.png")


# What does not fit: seats below the screen, a page that scrolls, words that are cut off (a name may be), letters too small to read.
ON_THE_WALL = """(() => {
  const seats = [...document.querySelectorAll(".all li")], faults = [];
  const below = seats.filter((seat) => seat.getBoundingClientRect().bottom > innerHeight).length;
  if (below) faults.push(`${below} seats are below the screen`);
  const page = document.documentElement;
  if (page.scrollHeight > innerHeight || page.scrollWidth > innerWidth) faults.push(`the page has ${page.scrollWidth} x ${page.scrollHeight} px`);
  for (const part of document.querySelectorAll(".all li > span:not(.who)"))
    if (part.scrollWidth > part.clientWidth + 1) faults.push(`"${part.textContent}" is cut off`);
  for (const who of document.querySelectorAll(".all .who")) if (who.clientWidth < 50) faults.push(`${who.clientWidth} px for a name`);
  const letters = parseFloat(getComputedStyle(document.querySelector(".all")).fontSize);
  if (letters < 12) faults.push(`letters of ${letters} px`);
  return { seats: seats.length, faults: [...new Set(faults)] };
})()"""


def hangs(tab, pictures):
    """A made-up class on the wall: each seat is seen without scrolling."""
    for seats in (20, 40):
        with serving(None, "class", "--demo", str(seats), "--route", "day", "--title", "A day in May") as (_, address):
            for width, height in ((1280, 720), (1920, 1080)):
                for route in ("day", "whole"):
                    tab.visit(f"{address}?route={route}&wall=on", width, height)
                    found = tab.ask(ON_THE_WALL)
                    if found["seats"] != seats or found["faults"]:
                        raise RuntimeError(f"on a wall of {width} x {height}, route {route}, {found['seats']} of {seats} seats: {found['faults']}")
                    shows(tab, "made up")
                    if pictures and route == "day":
                        tab.picture(pictures / f"wall-{seats}-{width}.png")
            for name in ("", "report.html"):
                for scheme in ("light", "dark"):
                    tab.prefer(color_scheme=scheme)
                    tab.visit(f"{address}{name}?route=day", WIDE, 1600)
                    if unreadable := tab.ask(f"{LOOK}.texts()"):
                        raise RuntimeError(f"in {scheme}, /{name} {unreadable}")
                    if pictures:
                        tab.picture(pictures / f"demo-{seats}-{name.removesuffix('.html') or 'page'}-{scheme}.png")


def draws(tab, folder, pictures):
    """Curves that grow, without what the reader has opened being closed."""
    def write_steps(steps):
        with open(folder / "rank-0.jsonl", "a") as file:
            for step in steps:
                line = {"t": time.time(), "rank": 0, "restart": 0, "event": "step", "epoch": 0, "step": step, "loss": 5 / (step + 1), "samples": 8}
                file.write(json.dumps(line) + "\n")

    with serving(folder, "report") as (process, address):
        tab.visit(address, WIDE)
        shows(tab, "No events yet")
        write_steps(range(20))
        shows(tab, "20 steps")
        tab.ask("document.getElementById('loss-numbers').open = window.same = true")
        write_steps(range(20, 40))
        shows(tab, "40 steps")
        if not tab.ask("window.same && document.getElementById('loss-numbers').open") or tab.complaints:
            raise RuntimeError(f"the curves were loaded again, or what was open was closed: {tab.complaints}")
        for width, scheme in ((PHONE, "light"), (WIDE, "dark")):
            tab.prefer(color_scheme=scheme)
            tab.visit(address, width, 1200)
            if tab.ask("document.documentElement.scrollWidth - innerWidth") > 0:
                raise RuntimeError(f"the page of curves is wider than {width}")
            if unreadable := tab.ask(f"{LOOK}.texts()"):
                raise RuntimeError(f"the page of curves {unreadable}")
            if pictures:
                tab.picture(pictures / f"curves-{'phone' if width == PHONE else 'wide'}.png")
        process.send_signal(signal.SIGINT)
        if process.wait(SECONDS) != 0:
            raise RuntimeError(f"lockstep report ended with {process.returncode} on Ctrl-C")


def main():
    pictures = None
    if sys.argv[1:2] == ["--pictures"] and len(sys.argv) == 3:
        pictures = pathlib.Path(sys.argv[2])
        pictures.mkdir(parents=True, exist_ok=True)
    elif sys.argv[1:]:
        print(__doc__)
        return 2
    program = browser.needed("how the page of a class looks in a browser", LOCKSTEP)
    if not program:
        return 0
    with tempfile.TemporaryDirectory() as parent, browser.opened(program) as tab:
        try:
            hangs(tab, pictures)
            for name in ("live", "curves", "5", "50", "200"):
                folder = pathlib.Path(parent) / name
                folder.mkdir()
                if name == "live":
                    follows(tab, folder)
                elif name == "curves":
                    draws(tab, folder, pictures)
                else:
                    fits(tab, folder, int(name), pictures)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"class: FAILED: {error}")
            return 1
    print("class: the page follows seats, and fits a phone and a wide screen with 5, 50 and 200, the wall 20 and 40; the page of curves follows a run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
