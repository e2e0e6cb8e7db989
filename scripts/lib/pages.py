"""The book's pages and the READMEs as text: what they include, what they link to, which files they name. shell.py
checks the commands in them."""

import pathlib
import re

from lib import included, preprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BOOK = ROOT / "book" / "src"
# Folders of the checkout that need no README.
PARTS = "labs", "crates", "engine", "harness", "scripts", "containers", "book"

DIRECTIVE = re.compile(r"(?<!\\)\{\{\s*#[^}]*\}\}")
LINK = re.compile(r"\]\(([^)\s]*)\)|^\[[^\]]+\]:\s*(\S+)|\b(?:href|src)=\"([^\"]*)\"", re.M)
FENCE = re.compile(r"^([> ]*)(```+)(.*?)$(.*?)^[> ]*\2[^\S\n]*$", re.M | re.S)
CODE = re.compile(r"(`+)(.+?)\1", re.S)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.M)
NAMED = re.compile(rf"(?:{'|'.join(PARTS)})/[\w./*-]+")
# Stands for a name that the reader chooses: labs/NN-name, procs_NAME.rs.
PLACEHOLDER = re.compile(r"NN|NAME|\bLAB\b")


def documents():
    """Every page and README that a reader may come to."""
    readmes = {path for part in PARTS for path in (ROOT / part).rglob("README.md")}
    return [*sorted(BOOK.glob("*.md")), *sorted(ROOT.glob("*.md")), *sorted(readmes)]


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def text_of(page):
    """The page's text, with the reference page that the built book has there."""
    return preprocess.filled(page.read_text())


def faults():
    """What is missing in the sources of the book and the READMEs."""
    try:
        "".join(map(text_of, BOOK.glob("*.md")))
    except LookupError as error:
        yield str(error)
        return
    shown = "".join(page.read_text() for page in documents())
    for drawing in sorted((BOOK / "pictures").iterdir()):
        if f"pictures/{drawing.name})" not in shown:
            yield f"no page shows {name_of(drawing)}"
    summary = (BOOK / "SUMMARY.md").read_text()
    for page in sorted(BOOK.glob("*.md")):
        if page.name not in re.findall(r"\(([^)]+)\)", summary) + ["SUMMARY.md"]:
            yield f"{name_of(page)} is not in SUMMARY.md"
    for page in documents():
        yield from (f"{name_of(page)} {fault}" for fault in [*holes(page), *included.faults(page), *unlinked(page), *unnamed(page), *wide(page)])


def holes(page):
    """What only mdBook fills: a host of code shows the page without it."""
    for directive in DIRECTIVE.findall(page.read_text()) if page.parent == BOOK else ():
        yield f"has {directive}, which a host of code does not show: <!-- include: FILE --> above a block of code"


def unlinked(page):
    for found in sorted({"".join(found) for found in LINK.findall(prose(page))}):
        target, _, fragment = found.partition("#")
        if re.match(r"\w+:|//", target):
            continue  # another site's
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or not path.is_relative_to(ROOT):
            yield f"links to {target}, which does not exist"
        elif page.parent == BOOK and not path.is_relative_to(BOOK):
            yield f"links to {target}, which is no part of the built book: name the file instead"
        elif fragment and path.suffix == ".md" and fragment not in fragments(path) and not preprocess.REFERENCE.search(text_of(path)):
            yield f"links to {target}#{fragment}, but no heading is called so"


def unnamed(page):
    """Files named in backticks by their path from the root of the checkout."""
    for name in sorted({span.split()[0] for span in spans(page) if NAMED.fullmatch(span.split()[0])}):
        if not PLACEHOLDER.search(name) and not any(ROOT.glob(name.rstrip("/."))):
            yield f"names {name}, which does not exist"


def wide(page):
    """Commands and outputs for learners that are wider than a screen."""
    if page.parent != BOOK and not page.is_relative_to(ROOT / "labs"):
        return
    for fence in FENCE.finditer(page.read_text()):
        if fence[3].strip() in ("console", "text", ""):
            yield from (f"has a line of {len(line)} columns: {line[:40]}…" for line in fence[4].splitlines() if len(line) > included.COLUMNS)


def prose(page):
    """The text of a page without its code."""
    return CODE.sub("", FENCE.sub("", text_of(page)))


def spans(page):
    """The texts in backticks that are on one line each."""
    return [" ".join(code.split()) for _, code in CODE.findall(FENCE.sub("", text_of(page))) if code.strip()]


def fragments(page):
    """The names that a link may have after its '#': of headings, as mdBook and code hosts derive them, and those given by hand."""
    text = FENCE.sub("", text_of(page))
    known = set(re.findall(r"\bid=\"([^\"]+)\"", text))
    for title in HEADING.findall(text):
        name = fragment_of(title)
        repeated = sum(1 for other in known if re.fullmatch(rf"{re.escape(name)}(-\d+)?", other))
        known.add(f"{name}-{repeated}" if repeated else name)
    return known


def fragment_of(title):
    title = re.sub(r"\]\([^)]*\)|<[^>]+>", "", title)
    return "".join(c for c in title.strip().lower().replace(" ", "-") if c.isalnum() or c in "_-")
