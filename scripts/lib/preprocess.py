"""mdBook's preprocessor (book/book.toml): the book from stdin to stdout, with what only a built book has.

- A drawing, `![…](pictures/NAME.svg)`, becomes a part of its page, in the theme's colours. A host of code shows the file, in colours of its own.
- The figures that move get their module (figures.py).
- `<!-- reference: NAME -->` becomes the page that `lockstep course reference NAME` prints. Where the program is not built, the page only says
  how to print it.
"""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from lib import figures  # noqa: E402
LOCKSTEP = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "lockstep"
DRAWING = re.compile(r"^!\[[^\]]*\]\(pictures/([\w-]+\.svg)\)$", re.M)
STYLE = re.compile(r"<style>.*?</style>\n", re.S)
REFERENCE = re.compile(r"^<!-- reference: ([\w-]+) -->$", re.M)
SECONDS = 60


def drawn(text):
    def picture(image):
        return f'<div class="picture">\n{STYLE.sub("", (ROOT / "book/src/pictures" / image[1]).read_text())}</div>'

    return DRAWING.sub(picture, text)


@functools.cache
def reference(name):
    """The page without its title; LookupError if the program does not print it."""
    printed = subprocess.run([LOCKSTEP, "course", "reference", name], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    if printed.returncode:
        raise LookupError(f"`lockstep course reference {name}` fails: {printed.stderr.strip()}")
    return printed.stdout.partition("\n\n")[2]


def filled(text):
    """The text with its reference pages, where the program is built."""
    return REFERENCE.sub(lambda mark: reference(mark[1]), text) if LOCKSTEP.exists() else text


def main(arguments):
    if arguments:
        return 0  # "supports html" asks whether it can
    _, book = json.load(sys.stdin)
    figures.build()
    chapters = [item["Chapter"] for item in book["items"] if "Chapter" in item]
    while chapters:
        chapter = chapters.pop()
        try:
            chapter["content"] = drawn(filled(chapter["content"]))
        except (LookupError, OSError, subprocess.TimeoutExpired) as error:
            return f"book: {chapter['name']}: {error}"
        chapters += [item["Chapter"] for item in chapter["sub_items"] if "Chapter" in item]
    json.dump(book, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
