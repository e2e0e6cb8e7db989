"""What pages and READMEs show of other files: code, outputs, a table. A page holds a copy, so that it reads whole where no book is built:

    <!-- include: ../../labs/05-collectives/src/by_hand.rs:ring -->
    ```rust,ignore
    (the lines between ANCHOR: ring and ANCHOR_END: ring)
    ```

The path starts at the page. Excerpts of an output follow it, by the beginnings of their first and last lines: "passed" to "of 2 ranks", or to
the end. An output's lines are folded where a screen would fold them.
"""

import pathlib
import re
import textwrap

MARK = re.compile(r"^<!-- include: (?P<path>[^\s:]+)(?P<anchor>:\S+)?(?P<excerpts>(?: \".+?\" to (?:\".+?\"|the end))*) -->\n", re.M)
BLOCK = re.compile(r"(?P<fence>```+)(?P<kind>.*)\n(?P<text>(?:.*\n)*?)(?P=fence)\n")
EXCERPT = re.compile(r"\"(.+?)\" to (?:\"(.+?)\"|the end)")
COLUMNS = 100  # of a screen


def faults(page):
    """The blocks of a page that are not what they include."""
    text = page.read_text()
    for mark in MARK.finditer(text):
        block = BLOCK.match(text, mark.end())
        try:
            now = shown(page, mark)
        except LookupError as error:
            yield f"includes {error}"
            continue
        command = re.match(r"(?:.*\\\n)*.*", now)[0]
        if not block:
            yield f"includes {mark['path']}, but no block of code follows the line"
        elif command.startswith("$ ") and text[: mark.start()].endswith(f"{command}\n```\n\n"):
            yield f"has the command of {mark['path']} twice: its output begins with it"
        elif block["text"] != now:
            yield f"shows an old {mark['path']}{mark['anchor'] or ''}: scripts/check_book.py --include"


def fill(page):
    """Writes the page with all blocks as their files are now. LookupError if a file, an anchor or an excerpt is missing."""
    text = page.read_text()
    parts, end = [], 0
    for mark in MARK.finditer(text):
        block = BLOCK.match(text, mark.end())
        if not block:
            raise LookupError(f"{mark['path']}, but no block of code follows the line")
        parts += [text[end : block.start("text")], shown(page, mark)]
        end = block.end("text")
    filled = "".join([*parts, text[end:]])
    if filled != text:
        page.write_text(filled)


def shown(page, mark):
    """What a mark stands for."""
    path = page.parent / mark["path"]
    if not path.is_file():
        raise LookupError(f"{mark['path']}, which does not exist")
    lines = path.read_text().splitlines()
    if mark["anchor"]:
        lines = anchored(lines, mark["anchor"][1:], mark["path"])
    elif mark["excerpts"]:
        lines = excerpted(lines, EXCERPT.findall(mark["excerpts"]), mark["path"])
    if any(line.startswith("```") for line in lines):
        raise LookupError(f"{mark['path']}, which has a fence of its own")
    if path.suffix == ".txt":
        lines = [part for line in lines for part in folded(line)]
    return "".join(f"{line}\n" for line in lines)


def folded(line):
    """A line of an output on as many lines as a screen needs: a command goes on after a backslash, so that it can be copied; anything
    else after an arrow, beneath the last column that begins in the left half."""
    if len(line) <= COLUMNS:
        return [line]
    if line.startswith("$ "):
        fold = textwrap.TextWrapper(COLUMNS - 2, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
        commands = re.split(r"(?<= &&) |(?<= &) |(?<=;) ", re.sub(r"( --[\w-]+) (?=[^\s-])", "\\1\0", line))  # a flag keeps its value
        parts = [part.replace("\0", " ") for at, command in enumerate(commands) for part in fold.wrap("    " * bool(at) + command)]
        return [*(f"{part} \\" for part in parts[:-1]), parts[-1]]
    column = re.match(rf".{{,{COLUMNS // 2 - 3}}}\S {{2,}}(?=\S)|\s*", line).end()
    return textwrap.wrap(line, COLUMNS, subsequent_indent=" " * column + "↪ ", break_on_hyphens=False)


def anchored(lines, name, path):
    marks = [index for index, line in enumerate(lines) if re.search(rf"\bANCHOR(_END)?: {re.escape(name)}$", line)]
    if len(marks) != 2:
        raise LookupError(f"{path}:{name}, which has no such anchor")
    return [line for line in lines[marks[0] + 1 : marks[1]] if "ANCHOR" not in line]


def excerpted(lines, excerpts, path):
    """The first line, which is the command, the excerpts, and the last, which says where they come from; "…" for what is left out."""
    command, *rest, provenance = lines
    parts = [command]
    for first, last in excerpts:
        rest = rest[index_of(rest, first, path) :]
        length = index_of(rest, last, path) + 1 if last else len(rest)
        parts += ["…", *rest[:length]]
        rest = rest[length:]
    return [*parts, *["…"][: len(rest)], provenance]


def index_of(lines, begin, path):
    for index, line in enumerate(lines):
        if line.lstrip().startswith(begin):
            return index
    raise LookupError(f"{path} from or to the line {begin!r}, which it lacks")
