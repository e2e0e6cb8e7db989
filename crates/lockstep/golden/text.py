#!/usr/bin/env python3
"""Writes text.json: byte pairs learned from a text, by an implementation without any shortcut.

Needs Python only. Words are cut by a regular expression, every word of the text is merged by itself, and nothing is kept between merges.
"""

import json
import pathlib
import re
from collections import Counter

OUT = pathlib.Path(__file__).with_name("text.json")
WORDS = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+", re.UNICODE)
TEXT = (
    "Each rank computes gradients of its own shard, and all ranks add them up. The ranks that wait for others lose time;\n"
    "the others do not.  A rank_3 that ends early, at step 120 of 1200, leaves 3 ranks: \"all-reduce\" waits until its timeout.\n\n"
    "\tL’été, où les processus s’arrêtent… 漢字と漢字。 Ranks, ranks, ranks! 🦀🦀 the theme of the thesis is there then.   \n"
) * 2
OTHER = "  Other ranks' theses: 12003 étés of 漢字🦀, then\n\n all-reduce.\r\n"


def words(text):
    """As the regular expression `\\s+(?!\\S)` of GPT-2: of several spaces before a word, the last one belongs to it."""
    out, at = [], 0
    while at < len(text):
        if text[at].isspace():
            end = at
            while end < len(text) and text[end].isspace():
                end += 1
            if end < len(text) and text[end - 1] == " ":
                end -= 1
            if end > at:
                out.append(text[at:end])
                at = end
                continue
        found = WORDS.match(text, at)
        out.append(found.group())
        at = found.end()
    assert "".join(out) == text
    return out


def merge(word, pair, token):
    out, at = [], 0
    while at < len(word):
        if tuple(word[at : at + 2]) == pair:
            out.append(token)
            at += 2
        else:
            out.append(word[at])
            at += 1
    return out


def learn(text, vocabulary):
    lists = [list(word.encode()) for word in words(text)]
    pairs = []
    while 256 + len(pairs) < vocabulary:
        counts = Counter(pair for word in lists for pair in zip(word, word[1:]))
        if not counts or max(counts.values()) < 2:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        lists = [merge(word, best, 256 + len(pairs)) for word in lists]
        pairs.append(best)
    return pairs


def encode(text, pairs):
    tokens = []
    for word in words(text):
        word = list(word.encode())
        for number, pair in enumerate(pairs):
            word = merge(word, pair, 256 + number)
        tokens += word
    return tokens


cases = []
for vocabulary in (256, 270, 400, 5000):
    pairs = learn(TEXT, vocabulary)
    cases.append({"vocabulary": vocabulary, "learned": 256 + len(pairs), "text": encode(TEXT, pairs), "other": encode(OTHER, pairs)})
OUT.write_text(json.dumps({"text": TEXT, "other": OTHER, "cases": cases}) + "\n")
