"""The routes through the course (labs/routes.toml) as tables of the book, and whether what they name is there."""

import collections
import re

from lib.pages import BOOK, FENCE, HEADING, ROOT, fragment_of

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    tomllib = None

MARK = re.compile(r"^<!-- route: (\w+) -->\n(?:(?:\|.*\n)*\n)?", re.M)


def routes():
    return {route["name"]: route for route in tomllib.loads((ROOT / "labs/routes.toml").read_text())["route"]}


def faults():
    for name, route in routes().items():
        for step in route["step"]:
            yield from (f"labs/routes.toml, {name}: {fault}" for fault in faults_of(step))
    yield from unplanned()
    for page in sorted(BOOK.glob("*.md")):
        text = page.read_text()
        if filled(text) != text:
            yield f"{page.name} shows an old route: scripts/check_book.py --include"


def unplanned():
    """Chapters for which the course's map or the speaker's notes plan other minutes than the route through all."""
    course_map, notes = ((BOOK / name).read_text() for name in ("course-map.md", "speakers-notes.md"))
    minutes = collections.Counter()
    for step in routes()["whole"]["step"]:
        minutes[step["page"]] += step["minutes"]
    for page, planned in minutes.items():
        rows = re.findall(rf"^\| \S* *\| \[[^\]]+\]\({re.escape(page)}\) \|.*\| (\d+) \|.*\|$", course_map, re.M)
        titles = re.findall(rf"^## {re.escape(headings(page)[0])}: (\d+) minutes$", notes, re.M)
        for where, found in (("course-map.md", rows), ("speakers-notes.md", titles)):
            yield from (f"{where} plans {other} minutes for {page}, the route whole {planned}" for other in found if int(other) != planned)


def faults_of(step):
    if not (BOOK / step["page"]).is_file():
        yield f"there is no page {step['page']}"
        return
    if "until" in step and step["until"] not in headings(step["page"]):
        yield f"{step['page']} has no heading {step['until']!r}"
    known = ["all", *(task["name"] for task in lab_tasks(step["page"]))]
    yield from (f"the lab of {step['page']} has no task {task!r}" for task in step.get("tasks", []) if task not in known)


def fill(page):
    text = page.read_text()
    if filled(text) != text:
        page.write_text(filled(text))


def filled(text):
    return MARK.sub(lambda mark: f"<!-- route: {mark[1]} -->\n{table(routes()[mark[1]])}", text)


def table(route):
    rows = ["| minutes | read, then do | run |", "|---|---|---|"]
    total = 0
    for step in route["step"]:
        for minutes, what, command in [reading(step), *doing(step)]:
            total += minutes
            rows.append(f"| {minutes} | {what} | {f'`{command}`' if command else ''} |")
    return "\n".join([*rows, f"| **{total}** | together | |", "", ""])


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
