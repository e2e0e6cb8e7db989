#!/usr/bin/env python3
"""Draws the book's pictures: book/src/pictures/NAME.svg.

    scripts/pictures.py            draw them again
    scripts/pictures.py --check    draw nothing: is every file as this script draws it?

Each function of scripts/lib/pictures draws one, in two forms: for a desk, and `narrow`, for a phone. check_book.py looks at them in a
browser.
"""

import inspect
import sys

sys.dont_write_bytecode = True
from lib.pages import BOOK  # noqa: E402
from lib.pictures import communication, course, parallelism, processes, training  # noqa: E402

SUBJECTS = course, training, communication, processes, parallelism
PICTURES = [picture for subject in SUBJECTS for _, picture in inspect.getmembers(subject, inspect.isfunction)]


def drawn(picture):
    """The picture's file, and what it contains: both forms."""
    forms = [picture(narrow) for narrow in (False, True)]
    return BOOK / "pictures" / f"{forms[0].name}.svg", "".join(form.svg() for form in forms)


def faults():
    """The pictures that are not as this script draws them, and files that it does not draw."""
    files = dict(map(drawn, PICTURES))
    for path, text in files.items():
        if not path.exists() or path.read_text() != text:
            yield f"{path.name} is not as scripts/pictures.py draws it"
    for path in sorted({*(BOOK / "pictures").glob("*.svg")} - set(files)):
        yield f"{path.name} is drawn by no function of scripts/lib/pictures"


def main(arguments):
    if arguments == ["--check"]:
        found = list(faults())
        print("\n".join(f"pictures: {fault}" for fault in found) or "pictures: in order")
        return 1 if found else 0
    if arguments:
        print(__doc__.strip())
        return 0 if arguments == ["--help"] else 2
    for path, text in map(drawn, PICTURES):
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
