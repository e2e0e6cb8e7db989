"""The routes through the course (labs/routes.toml) as tables of the book, whether what they name is there, and whether a reader who follows
one finds each word of the glossary explained or linked where it first comes. Also the head of each chapter: goals and minutes."""

import collections
import re

from lib.pages import BOOK, CODE, FENCE, HEADING, ROOT, fragment_of

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    tomllib = None

MARK = re.compile(r"^<!-- route: ([\w-]+) -->\n(?:(?:\|.*\n)*\n)?", re.M)

# A chapter's goals, and the minutes to plan for it, which stand between its title and its first section.
GOALS = re.compile(r"^\*\*After this chapter you can\*\*\n\n(?:- .+\n(?:  .+\n)*){2,4}$", re.M)
MINUTES = re.compile(r"^<!-- minutes -->\n(?:Plan .*\n)?", re.M)

TERM = re.compile(r"<dfn id=\"([^\"]+)\">([^<]+)</dfn>")
# Terms that are everyday words, too: they mostly are no terms where they first come.
EVERYDAY = set("attempt batch buffer checkpoint deadline event gather overlap reduce restart ring root seat shard step stream work".split())
# What is no sentence of a page, besides code: a route's table, notes, pictures, headings.
NO_PROSE = re.compile(rf"{MARK.pattern}|<!--.*?-->|!\[[^\]]*\]\([^)]*\)|^#.*$", re.M)
EXPLAINED = re.compile(r"\[[^\]]*\]\([^)]*\)|(?<![*\w])(\*\*?)(?=\S)[^*]+\1(?![*\w])")  # a link, or emphasis


def routes():
    return {route["name"]: route for route in tomllib.loads((ROOT / "labs/routes.toml").read_text())["route"]}


def pages_of(route):
    """The steps of a route that are no breaks."""
    return [step for step in route["step"] if "page" in step]


def faults():
    for name, route in routes().items():
        for step in pages_of(route):
            yield from (f"labs/routes.toml, {name}: {fault}" for fault in faults_of(step))
        yield from (f"{page}, on the route {name}: {fault}" for page, fault in unexplained(route))
    yield from unplanned()
    yield from without_head()
    for page in sorted(BOOK.glob("*.md")):
        text = page.read_text()
        if filled(page.name, text) != text:
            yield f"{page.name} shows an old route: scripts/check_book.py --include"


def unplanned():
    """Chapters for which the course's map or the speaker's notes plan other minutes than the route through all."""
    course_map, notes = ((BOOK / name).read_text() for name in ("course-map.md", "speakers-notes.md"))
    for page, planned in whole().items():
        rows = re.findall(rf"^\| \S* *\| \[[^\]]+\]\({re.escape(page)}\) \|.*\| (\d+) \|.*\|$", course_map, re.M)
        titles = re.findall(rf"^## {re.escape(headings(page)[0])}: (\d+) minutes$", notes, re.M)
        for where, found in (("course-map.md", rows), ("speakers-notes.md", titles)):
            yield from (f"{where} plans {other} minutes for {page}, the route whole {planned}" for other in found if int(other) != planned)


def whole():
    """The minutes of each page on the route through all."""
    minutes = collections.Counter()
    for step in pages_of(routes()["whole"]):
        minutes[step["page"]] += step["minutes"]
    return minutes


def without_head():
    """Chapters that do not say at once what a reader can do afterwards, what it takes, and how long."""
    for page in sorted(BOOK.glob("[0-9][0-9]-*.md")):
        head, *sections = page.read_text().split("\n## ")
        for part, found in (("its goals", GOALS.search(head)), ("its minutes", MINUTES.search(head))):
            if not found:
                yield f"{page.name} does not begin with {part}, as other chapters do"
        if not whole()[page.name]:
            yield f"{page.name} is not on the route whole of labs/routes.toml, which has its minutes"
        if page.name[:2] != "00" and not sections[0].startswith("Before You Begin\n"):
            yield f"{page.name} has no section Before You Begin after its goals"


def faults_of(step):
    if not (BOOK / step["page"]).is_file():
        yield f"there is no page {step['page']}"
        return
    if "until" in step and step["until"] not in headings(step["page"]):
        yield f"{step['page']} has no heading {step['until']!r}"
    known = ["all", *(task["name"] for task in lab_tasks(step["page"]))]
    yield from (f"the lab of {step['page']} has no task {task!r}" for task in step.get("tasks", []) if task not in known)


def unexplained(route):
    """The terms of the glossary whose first use on a route is no link and not emphasized."""
    known = set(EVERYDAY)
    for step in pages_of(route):
        text = read(step)
        for term, names in TERM.findall((BOOK / "glossary.md").read_text()):
            found = term not in known and pattern_of(names).search(text)
            if found:
                known.add(term)
                if not any(at.start() <= found.start() < at.end() for at in EXPLAINED.finditer(text)):
                    where = " ".join(text[max(0, found.start() - 40) : found.end() + 20].split())
                    yield step["page"], f"“{where}” uses a word first: [{found[0]}](glossary.md#{term})"


def read(step):
    """The sentences of a page that a step's reader reads, at the same places as in the page."""
    text = (BOOK / step["page"]).read_text()
    prose = FENCE.sub(blank, text)
    until = re.search(rf"^#+ {re.escape(step.get('until', ''))}$.*?(?=^## )", prose, re.M | re.S)
    return CODE.sub(blank, NO_PROSE.sub(blank, prose[: until.end()] if until else prose))


def blank(found):
    return " " * len(found[0])


def pattern_of(names):
    """Finds a term, or its plural, in small letters or at the beginning of a sentence."""
    forms = [rf"[{name[0]}{name[0].lower()}]" + re.escape(name[1:]).replace(r"\ ", r"\s+") for name in names.split(", ")]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(forms)})(?:e?s)?(?![\w-])")


def fill(page):
    text = page.read_text()
    if filled(page.name, text) != text:
        page.write_text(filled(page.name, text))


def filled(page, text):
    text = MARK.sub(lambda mark: f"<!-- route: {mark[1]} -->\n{table(routes()[mark[1]])}", text)
    return MINUTES.sub(lambda _: f"<!-- minutes -->\n{minutes_of(page)}\n", text)


def minutes_of(page):
    tasks = lab_tasks(page)
    its = f", and {sum(task['minutes'] for task in tasks)} for its {f'{len(tasks)} tasks' if len(tasks) > 1 else 'task'}" if tasks else ""
    return f"Plan {whole()[page]} minutes for the chapter{its}."


def table(route):
    rows = ["| minutes | read, then do | run |", "|---|---|---|"]
    work, breaks = 0, 0
    for step in route["step"]:
        if "pause" in step:
            breaks += step["minutes"]
            rows.append(f"| {step['minutes']} | *{step['pause']}* | |")
            continue
        for minutes, what, command in [reading(step), *doing(step)]:
            work += minutes
            rows.append(f"| {minutes} | {what} | {f'`{command}`' if command else ''} |")
    with_breaks = f", and {breaks} of breaks" if breaks else ""
    return "\n".join([*rows, f"| **{work}** | together{with_breaks} | |", "", ""])


def reading(step):
    until = f", to the end of *{step['until'].removeprefix('Try: ')}*" if "until" in step else ""
    return step["minutes"], f"[{headings(step['page'])[0]}]({step['page']}){until}", step.get("run", "")


def doing(step):
    """The tasks of a step, all of a lab's as one row."""
    chosen, tasks, lab = step.get("tasks", []), lab_tasks(step["page"]), step["page"][:2]
    if chosen == ["all"]:
        yield sum(task["minutes"] for task in tasks), f"its {len(tasks)} tasks", f"lockstep grade {lab}"
        return
    for task in (task for name in chosen for task in tasks if task["name"] == name):
        yield task["minutes"], f"task [{task['name']}]({step['page']}#{fragment_of(task['section'])})", f"lockstep grade {lab} {task['name']}"


def lab_tasks(page):
    found = list(ROOT.glob(f"labs/{page[:2]}-*/lab.toml"))
    return tomllib.loads(found[0].read_text()).get("task", []) if found else []


def headings(page):
    return HEADING.findall(FENCE.sub("", (BOOK / page).read_text()))
