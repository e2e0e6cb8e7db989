"""The built book as files: nothing is loaded from elsewhere, every link within it has a target, every picture has alternative text."""

import html.parser
import re
import urllib.parse

REMOTE = re.compile(r"(?:https?:)?//")
# Attributes from which a browser loads, by element; <a href> only links.
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "embed": "src", "object": "data", "use": "href"}


class Page(html.parser.HTMLParser):
    """What a page loads, its links, and the names that links to it may use."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.leads, self.names, self.faults, self.base = [], [], set(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names.update(found[name] for name in ("id", "name") if found.get(name))
        if tag == "base":
            self.base = found.get("href", "")
        elif tag == "a" and "href" in found:
            self.leads.append(found["href"])
        elif tag in LOADS and found.get(LOADS[tag]):
            self.loads.append(found[LOADS[tag]])
        if tag == "img" and not found.get("alt"):
            self.faults.append(f"has the image {found.get('src')} without words for those who cannot see it (alt)")
        if tag == "svg" and "drawing" in found.get("class", "") and not (found.get("aria-labelledby") or found.get("aria-label")):
            self.faults.append("has a drawing without words for those who cannot see it (aria-labelledby)")


def faults(folder):
    pages = {path.relative_to(folder).as_posix(): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    for name, page in pages.items():
        yield from (f"{name} {fault}" for fault in page.faults)
        for target in [*page.loads, *page.leads]:
            yield from (f"{name} {fault}" for fault in unresolved(folder, pages, name, target, target in page.loads))
    for style in sorted(folder.rglob("*.css")):
        for target in re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", style.read_text()):
            if REMOTE.match("".join(target)):
                yield f"{style.relative_to(folder)} loads {''.join(target)} from elsewhere"


def unresolved(folder, pages, name, target, loaded):
    if REMOTE.match(target):
        if loaded:
            yield f"loads {target} from elsewhere"
        return
    if re.match(r"[a-z]+:", target):
        return  # data:, mailto:, javascript:
    path, _, fragment = target.partition("#")
    path = urllib.parse.urljoin(f"/{pages[name].base.strip('/') or name}", urllib.parse.unquote(path)).lstrip("/")
    path = path if path and not path.endswith("/") else f"{path}index.html"
    if not (folder / path.partition("?")[0]).is_file():
        yield f"links to {target}, which is not there"
    elif fragment and path in pages and urllib.parse.unquote(fragment) not in pages[path].names:
        yield f"links to {target}, but nothing on {path} is called so"
