#!/usr/bin/env python3
"""Checks the book and the READMEs: they show other files as these are, every link and named file exists, every shell line would work,
and the built book reads well in a browser, also on a phone.

    scripts/check_book.py                  all of it
    scripts/check_book.py --include        check nothing: write again what the pages show of other files, and the routes
    scripts/check_book.py --pictures DIR   also write a picture of every page: on a phone and wide, light and dark

Checks that need a missing program (mdbook and Chromium: scripts/setup.sh --book-tools; a lab that is not built) are reported as "not
verified here". No shell line is executed, except --help of the programs that are built. record.py checks whether recordings are up to
date. Needs no package.
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
from lib import browser, figures, included, pages, preprocess, routes, shell, site  # noqa: E402
from record import RECORDINGS  # noqa: E402

ROOT = pages.ROOT
BUILT = ROOT / "target" / "book"
BUILD_SECONDS = 1200  # with the figures' module from nothing
PHONE, WIDE = 360, 1200
PROJECTORS = (1280, 720), (1920, 1080)
TALLEST = 16000  # px, of a picture of a page
LIGHT, DARK = "light", "navy"  # mdBook's themes for a reader's system that prefers light or dark
# A word that the pages certainly contain, and one that no page contains.
WORD, NO_WORD = "reducer", "xyzzyplugh"


class Report:
    def __init__(self):
        self.faults = 0

    def part(self, name, faults):
        count = 0
        for count, fault in enumerate(faults, 1):
            print(f"check-book: {fault}", file=sys.stderr, flush=True)
        self.faults += count
        print(f"check-book: {name}: {f'{count} faults' if count else 'in order'}", flush=True)


def unverified(what):
    print(f"check-book: not verified here: {what}", flush=True)


def main(arguments):
    if arguments == ["--include"]:
        return include()
    if arguments and (len(arguments) != 2 or arguments[0] != "--pictures"):
        print(__doc__.strip())
        return 0 if arguments == ["--help"] else 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through all that is open
    report = Report()
    report.part(f"{len(pages.documents())} pages and READMEs", pages.faults())
    if not preprocess.LOCKSTEP.exists():
        unverified("the reference pages: lockstep, which prints them, is not built (cargo build -p lockstep-harness)")
    if routes.tomllib:
        report.part("routes through the course", routes.faults())
    else:
        unverified("the routes through the course: they need Python 3.11")
    check_shell(report)
    program = mdbook()
    if not program:
        unverified(f"the built book: mdbook {pinned()} is not here (scripts/setup.sh --book-tools installs it)")
        return 1 if report.faults else 0
    report.part("mdbook build", build(program))
    if (BUILT / "index.html").exists():
        report.part("links and loads of the built pages", site.faults(BUILT))
        check_browser(report, pathlib.Path(arguments[1]) if arguments else None)
    return 1 if report.faults else 0


def include():
    try:
        for page in pages.documents():
            included.fill(page)
            routes.fill(page)
    except LookupError as error:
        sys.exit(f"check-book: {pages.name_of(page)} includes {error}")
    return 0


def check_shell(report):
    dry_run = shell.DryRun(command for command, *_ in RECORDINGS.values())
    for page in pages.documents():
        if page.name != "CHANGELOG.md":  # which names what has left, too
            dry_run.page(page)
    count = dry_run.count
    report.part(f"shell lines ({count['dry-run']} dry-run, {count['recorded']} recorded)", dry_run.faults)
    for gap in sorted(dry_run.gaps):
        unverified(gap)


# ---- the built book


def pinned():
    """The version that lib/book.sh installs."""
    return re.search(r"^MDBOOK_VERSION=(.+)$", (ROOT / "scripts/lib/book.sh").read_text(), re.M)[1]


def mdbook():
    for program in filter(None, [shutil.which("mdbook"), shutil.which(ROOT / ".tools/bin/mdbook")]):
        found = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=BUILD_SECONDS).stdout
        if found.split()[-1:] == [f"v{pinned()}"]:
            return program
    return None


def build(program):
    try:
        done = subprocess.run([program, "build", "book"], cwd=ROOT, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        yield f"mdbook build book has not ended after {BUILD_SECONDS} s"
        return
    lines = [line for line in (done.stdout + done.stderr).splitlines() if re.match(r"\S*\s*(WARN|ERROR)", line) or done.returncode]
    yield from (f"mdbook build book: {line}" for line in lines)
    if done.returncode and not lines:
        yield f"mdbook build book ended with exit code {done.returncode}"


# ---- the book in a browser


def check_browser(report, folder):
    program = browser.find()
    if not program:
        return unverified(f"how the book looks in a browser: none of {', '.join(browser.NAMES)} is on PATH")
    started = False
    try:
        with browser.served(BUILT) as address, browser.opened(program) as tab:
            started = True
            look_through(report, tab, address, folder)
    except (OSError, RuntimeError) as error:  # a deadline is an OSError
        if not started:
            return unverified(f"how the book looks in a browser: {program} does not start ({error})")
        report.part("browser", [error])


def look_through(report, tab, address, folder):
    names = sorted(path.relative_to(BUILT).as_posix() for path in BUILT.rglob("*.html") if path.name != "toc.html")
    report.part(f"{len(names)} pages in a browser, {PHONE} and {WIDE} px wide", looks(tab, address, names))
    report.part("search", searches(tab, address))
    report.part(f"{len(names)} pages on a projector", projected(tab, address, names))
    if (BUILT / figures.MODULE.name).exists():
        report.part("figures that move", moves(tab, address))
    else:
        unverified(f"the figures that move: {figures.missing()}")
    if folder:
        photograph(tab, address, names, folder)


def looks(tab, address, names):
    script = (ROOT / "scripts/lib/look.js").read_text()
    for name in names:
        for width, scheme in ((PHONE, "light"), (WIDE, "dark")):
            tab.prefer(color_scheme=scheme)
            tab.visit(address + name, width)
            tab.open_folds()
            found = [fault for look in ("sideways", "words", "texts") for fault in tab.ask(f"{script}.{look}()")]
            if width == PHONE:
                found += [fault for theme in (LIGHT, DARK) for fault in tab.ask(f"{script}.drawings({json.dumps(theme)})")]
            foreign = {url for url in tab.addresses.values() if not url.startswith((address, "data:"))}
            found += tab.complaints + [f"loads {url} from elsewhere" for url in sorted(foreign)]
            yield from (f"{name} at {width} px, {scheme}: {fault}" for fault in found)
    tab.prefer()


def moves(tab, address):
    """Each figure loads, steps, plays and goes back, also by keyboard, and survives another width."""
    script = (ROOT / "scripts/lib/look.js").read_text()
    found = [(page, name) for page in sorted(pages.BOOK.glob("*.md")) for name in re.findall(r'data-figure="(\w+)"', page.read_text())]
    if not found:
        yield "no page has a figure that moves"
    for page, name in found:
        for width in (PHONE, WIDE):
            tab.visit(f"{address}{page.stem}.html", width)
            tab.open_folds()
            told = tab.ask(f"{script}.moves({json.dumps(name)})")
            # It is drawn again for another width.
            tab.call("Emulation.setDeviceMetricsOverride", width=PHONE + WIDE - width, height=800, deviceScaleFactor=1, mobile=False)
            told += tab.ask(f"{script}.resized({json.dumps(name)})") + tab.ask(f"{script}.words()")
            told += [fault for theme in (LIGHT, DARK) for fault in tab.ask(f"{script}.drawings({json.dumps(theme)})")]
            yield from (f"{page.name}, figure {name} at {width} px: {fault}" for fault in told + tab.complaints)


def searches(tab, address):
    for word, there in ((WORD, True), (NO_WORD, False)):
        tab.visit(f"{address}index.html?search={word}", WIDE)
        # The index is loaded on the first search; its result has a heading in either case.
        tab.ask(
            "new Promise((done, late) => { const at = Date.now(); const look = () => /result/.test((document.querySelector("
            "'[id$=searchresults-header]') || {}).textContent) ? done(1) : Date.now() - at > 10000 ? done(0) : setTimeout(look, 50); look(); })"
        )
        found = tab.ask("[...document.querySelectorAll('[id$=searchresults] a')].map(a => a.getAttribute('href')).length")
        if bool(found) != there:
            yield f"a search for {word} finds {found or 'nothing'}"
        yield from (f"search for {word}: {complaint}" for complaint in tab.complaints)


def projected(tab, address, names):
    """`?project` makes letters large and leaves out the sidebar, on each page to which links lead, until its link back; not in print."""
    script = (ROOT / "scripts/lib/look.js").read_text()
    size = "parseFloat(getComputedStyle(document.querySelector('main p')).fontSize)"
    is_projected = "document.documentElement.classList.contains('project')"
    first = "introduction.html"
    for width, height in PROJECTORS:
        tab.visit(address + first, width, height)
        normal = tab.ask(size)
        tab.visit(f"{address}{first}?project", width, height)
        if tab.ask(size) < 1.15 * normal:
            yield f"at {width} px, letters have {tab.ask(size)} px on a projector, and {normal} px otherwise"
        if tab.ask("document.querySelector('main').clientWidth") < 0.7 * width:
            yield f"at {width} px, a projector's page uses only {tab.ask('document.querySelector(`main`).clientWidth')} px"
        if tab.ask("document.getElementById('mdbook-sidebar').getClientRects().length"):
            yield f"at {width} px, the sidebar is there"
        tab.call("Emulation.setEmulatedMedia", media="print")
        if tab.ask(size) > 1.15 * normal:
            yield "the letters are large in print, too"
        tab.call("Emulation.setEmulatedMedia", media="")
        for link in (".nav-chapters.next", "main a[href$='.html?project']"):
            tab.visit(f"{address}{first}?project", width, height)
            tab.visit(tab.ask(f"document.querySelector({json.dumps(link)}).href"), width, height)
            if not tab.ask(is_projected):
                yield f"the link {link} of {first} does not keep the large letters"
        tab.visit(tab.ask("document.querySelector('.leave-project').href"), width, height)
        if tab.ask(is_projected):
            yield "the link back does not lead to normal letters"
    for name in names:
        tab.visit(f"{address}{name}?project", *PROJECTORS[0])
        tab.open_folds()
        yield from (f"{name} on a projector: {fault}" for fault in tab.ask(f"{script}.sideways()") + tab.complaints)


def photograph(tab, address, names, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for theme, width in ((LIGHT, PHONE), (DARK, PHONE), (LIGHT, WIDE), (DARK, WIDE)):
            tab.visit(address + name, width)
            tab.ask(f"localStorage.setItem('mdbook-theme', {json.dumps(theme)})")
            tall = tab.ask("document.documentElement.scrollHeight")
            tab.visit(address + name, width, min(tall, TALLEST))
            tab.picture(folder / f"{name.removesuffix('.html').replace('/', '-')}-{theme}-{width}.png")
        tab.visit(f"{address}{name}?project", *PROJECTORS[1])
        tab.picture(folder / f"{name.removesuffix('.html').replace('/', '-')}-projector.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
