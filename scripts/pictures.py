#!/usr/bin/env python3
"""Draws the book's pictures: book/src/pictures/NAME.svg.

    scripts/pictures.py            draw them again
    scripts/pictures.py --check    draw nothing: is every file as this script draws it?

Each function of scripts/lib/pictures draws one, in two forms: for a desk, and `narrow`, for a phone. A host of code shows the file, which
is the first. In the built book both are part of the page, in the theme's colours: mdBook starts this script as its preprocessor
(book/book.toml), which puts them where a page has `![…](pictures/NAME.svg)`. check_book.py looks at them in a browser.
"""

import inspect
import json
import re
import sys

sys.dont_write_bytecode = True
from lib import figures  # noqa: E402
from lib.pages import BOOK  # noqa: E402
from lib.pictures import communication, course, parallelism, processes, training  # noqa: E402

SUBJECTS = course, training, communication, processes, parallelism
PICTURES = [picture for subject in SUBJECTS for _, picture in inspect.getmembers(subject, inspect.isfunction)]


IMAGE = re.compile(r"^!\[[^\]]*\]\(pictures/([\w-]+)\.svg\)$", re.M)


def files():
    """Each picture's file, and what it contains."""
    desks = [picture(False) for picture in PICTURES]
    return {BOOK / "pictures" / f"{desk.name}.svg": desk.picture() for desk in desks}


def faults():
    """The pictures that are not as this script draws them, and files that it does not draw."""
    drawn = files()
    for path, text in drawn.items():
        if not path.exists() or path.read_text() != text:
            yield f"{path.name} is not as scripts/pictures.py draws it"
    for path in sorted({*(BOOK / "pictures").glob("*.svg")} - set(drawn)):
        yield f"{path.name} is drawn by no function of scripts/lib/pictures"


def preprocess():
    """mdBook's preprocessor: the book from stdin, with drawings for images, to stdout. Also builds the module of the figures that move."""
    figures.build()
    both = [[picture(narrow) for narrow in (False, True)] for picture in PICTURES]
    forms = {desk.name: f'<div class="picture">\n{desk.svg()}{phone.svg()}</div>' for desk, phone in both}
    _, book = json.load(sys.stdin)
    chapters = [item["Chapter"] for item in book["items"] if "Chapter" in item]
    while chapters:
        chapter = chapters.pop()
        chapter["content"] = IMAGE.sub(lambda image: forms[image[1]], chapter["content"])
        chapters += [item["Chapter"] for item in chapter["sub_items"] if "Chapter" in item]
    json.dump(book, sys.stdout)


def main(arguments):
    if arguments == ["--check"]:
        found = list(faults())
        print("\n".join(f"pictures: {fault}" for fault in found) or "pictures: in order")
        return 1 if found else 0
    if arguments[:1] == ["preprocess"]:
        return preprocess() if len(arguments) == 1 else 0  # "supports html" asks whether it can
    if arguments:
        print(__doc__.strip())
        return 0 if arguments == ["--help"] else 2
    for path, text in files().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
