"""A pen for the book's drawings: boxes, arrows and words as SVG, in the classes of book/lockstep.css, which give them the
theme's colours. Positions are in pixels of the drawing's own width, and every drawing has a title and a text alternative.

Each drawing has two forms, of which the page shows the one that fits: about 700 px for a desk, and 340 px for a phone, where nothing must
be scrolled. In the built book a drawing is part of its page; a host of code shows the desk's form as a picture, with STYLE."""

import html
import math

# The classes of book/lockstep.css for a picture on a page of unknown style, which is light or dark.
STYLE = """<style>
svg { color: #1f2328; font-family: system-ui, sans-serif; --links: #0969da; }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; --links: #4493f8; } }
text { fill: currentColor; font-size: 13px; }
.strong { font-weight: bold; }
.faint { font-size: 12px; fill-opacity: 0.8; }
.line, .dotted, .cell, .compute { stroke: currentColor; fill: none; }
.dotted { stroke-dasharray: 2 3; }
.head { fill: currentColor; }
.compute { fill: currentColor; fill-opacity: 0.12; }
.send, .done { fill: var(--links); fill-opacity: 0.3; stroke: var(--links); }
</style>"""


class Drawing:
    def __init__(self, name, width, height, title, description, narrow):
        """`narrow` is True for a phone's form and False for a desk's."""
        self.name = name
        form = "phone" if narrow else "desk"
        of = f"{name}-narrow" if narrow else name
        ids = f"{of}-title {of}-desc"
        self.parts = [
            f'<svg class="drawing {form}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{ids}" '
            'xmlns="http://www.w3.org/2000/svg">',
            f'<title id="{of}-title">{html.escape(title, quote=False)}</title>',
            f'<desc id="{of}-desc">{html.escape(" ".join(description.split()), quote=False)}</desc>',
        ]

    def svg(self):
        """The drawing as a part of a page."""
        return "\n".join([*self.parts, "</svg>", ""])

    def picture(self):
        """The drawing as a file of its own."""
        return "\n".join([self.parts[0], STYLE, *self.parts[1:], "</svg>", ""])

    def text(self, x, y, words, kind="", anchor="middle"):
        """A line of words whose baseline is at y. Kinds: strong, faint."""
        label = f'class="{kind}" ' if kind else ""
        self.parts.append(f'<text {label}x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words, quote=False)}</text>')

    def lines(self, x, y, words, kind="faint", anchor="middle"):
        """Several lines of words, the first at y."""
        for row, line in enumerate(words.split("\n")):
            if line:
                self.text(x, y + 16 * row, line, kind, anchor)

    def box(self, x, y, width, height, words="", kind="cell", below=""):
        """A box with a line of words in its middle, or two. Kinds: cell (empty), compute (grey), send and done (coloured)."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2"></rect>')
        middle, base = x + width / 2, y + height / 2 + 5
        if words:
            self.text(middle, base - 8 if below else base, words, "strong" if below else "")
        if below:
            self.text(middle, base + 9, below, "faint")

    def half(self, x, y, width, height, kind):
        """The part of a box under its diagonal."""
        self.parts.append(f'<path class="{kind}" d="M{x:g} {y:g} L{x:g} {y + height:g} L{x + width:g} {y + height:g} Z"></path>')

    def line(self, *points, kind="line"):
        """A line through points: x1, y1, x2, y2, …"""
        pairs = list(zip(points[::2], points[1::2]))
        self.parts.append(f'<path class="{kind}" d="M{" L".join(f"{x:g} {y:g}" for x, y in pairs)}"></path>')

    def arrow(self, *points, kind="line"):
        """A line whose last point has a head."""
        *_, x1, y1, x2, y2 = points
        length = math.hypot(x2 - x1, y2 - y1)
        back = (x2 - 5 * (x2 - x1) / length, y2 - 5 * (y2 - y1) / length)
        self.line(*points[:-2], *(round(at, 1) for at in back), kind=kind)
        turn = round(math.degrees(math.atan2(y2 - y1, x2 - x1)), 1)
        turned = f' transform="rotate({turn:g} {x2:g} {y2:g})"' if turn else ""
        self.parts.append(f'<path class="head" d="M{x2:g} {y2:g} l-7 -4 v8 z"{turned}></path>')

    def time(self, x1, x2, y, gap=8):
        """The axis of time, with its name after the arrow."""
        self.arrow(x1, y, x2, y)
        self.text(x2 + gap, y + 4, "time", "faint", "start")

    def lanes(self, *lanes):
        """The names of lanes, each with its baseline."""
        for y, name in lanes:
            self.text(8, y, name, "strong", "start")

    def span(self, x1, x2, y, words):
        """A bracket over x1 to x2, with words above it."""
        self.line(x1, y + 4, x1, y, x2, y, x2, y + 4)
        self.text((x1 + x2) / 2, y - 6, words, "faint")

    def cross(self, x, y, size=6):
        """A process that is killed."""
        self.line(x - size, y - size, x + size, y + size)
        self.line(x - size, y + size, x + size, y - size)

    def diamond(self, x, y):
        """A snapshot."""
        self.parts.append(f'<path class="head" d="M{x:g} {y - 6:g} l6 6 l-6 6 l-6 -6 z"></path>')
