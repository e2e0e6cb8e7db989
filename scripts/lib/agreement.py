"""Whether the pages agree with the code: what they say is not here must not be, and numbers of tasks are right."""

import re

from lib.pages import BOOK, CODE, FENCE, ROOT, name_of

# A list item, paragraph or row that denies what it names; and a sentence that denies the name that follows.
DENIED = re.compile(r"\bno such option\b|\b[Mm]issing here\b|\bnot (?:available|supported) here\b")
DENIES = re.compile(r"\b(?:has|have|is|are|takes?|knows?) no `([^`]+)`|\b(?:do|does) not (?:have|take|know) `([^`]+)`")
LIBRARIES = "crates/lockstep/src", "crates/c10d/src", "crates/vision/src"
TASKS = re.compile(r"`(?:cargo test -p ex-|lockstep grade )(\d\d)` passes all (\w+) tasks")
NUMBERS = "zero one two three four five six seven eight nine ten".split()


def faults():
    names = interface()
    for page in sorted(BOOK.glob("*.md")):
        text = FENCE.sub("", page.read_text())
        for name in sorted(denied(text) & names):
            yield f"{name_of(page)} says that there is no {name}, and there is"
        yield from (f"{name_of(page)} {fault}" for fault in miscounted(text))


def denied(text):
    """The names that a text says are missing."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*[-*|] )", text)
    spans = {span for block in blocks if DENIED.search(block) for _, span in CODE.findall(block)}
    spans |= {"".join(found) for found in DENIES.findall(" ".join(text.split()))}
    return {found[0] for span in spans if (found := re.match(r"--[a-z][\w-]+|\w+", span))}


def interface():
    """Public functions and fields of the libraries, and the options of the commands."""
    sources = [path.read_text() for folder in LIBRARIES for path in (ROOT / folder).rglob("*.rs")]
    public = {name for source in sources for name in re.findall(r"\bpub (?:const |async )?(?:fn )?(\w+)[(<:]", source)}
    return public | set(re.findall(r"^\s+(?:-\w, )?(--[a-z][\w-]+)", (BOOK / "reference-commands.md").read_text(), re.M))


def miscounted(text):
    for lab, word in TASKS.findall(text):
        lists = [path.read_text() for path in ROOT.glob(f"labs/{lab}-*/lab.toml")]
        count = sum(len(re.findall(r"^\[\[task\]\]$", text, re.M)) for text in lists)
        if word != NUMBERS[count]:
            yield f"counts {word} tasks of lab {lab}, which has {NUMBERS[count]}"
