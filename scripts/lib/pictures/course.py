"""Drawings of the course: its labs, its tour, and a package of one's own."""

import re

from lib.drawing import Drawing
from lib.pages import BOOK


def the_labs(narrow):
    d = Drawing(
        "the-labs", *((340, 556) if narrow else (672, 346)), "Which lab builds on which",
        """Set-up comes first, then labs 01 (one device), 02 (spawn and DDP) and 03 (a launcher), in this order. After 03 the course forks:
        to 04 (messages) and then 05 (collectives), which leads to 10 (NCCL), to 11 (scaling) and to 12 (parallelism); and to 06
        (snapshots), which leads to 07 (ResNet), to 08 (photographs) and to 09 (many nodes).""", narrow,
    )  # fmt: skip

    def lab(x, y, number, words, width=92):
        d.box(x, y, width, 44, number, "cell" if number == "Set-up" else "compute", words)

    if narrow:
        for row, (number, words) in enumerate((("Set-up", "libtorch"), ("01", "one device"), ("02", "spawn, DDP"), ("03", "a launcher"))):
            lab(124, 8 + 60 * row, number, words)
            if row:
                d.arrow(170, 60 * row - 8, 170, 60 * row + 8)
        columns = (
            (16, (("04", "messages"), ("05", "collectives"), ("10", "NCCL"), ("11", "scaling"), ("12", "parallelism"))),
            (212, (("06", "snapshots"), ("07", "ResNet"), ("08", "photographs"), ("09", "many nodes"))),
        )
        for x, labs in columns:
            d.arrow(170, 232, 170, 244, x + 46, 244, x + 46, 260)
            # The last one that leads to all that follow.
            root = 1 if x == 16 else 0
            for row, (number, words) in enumerate(labs):
                y = 260 + 60 * row
                lab(x + (16 if row > root else 0), y, number, words)
                if row > root:
                    d.arrow(x + 6, 304 + 60 * root, x + 6, y + 22, x + 16, y + 22)
                elif row:
                    d.arrow(x + 46, y - 16, x + 46, y)
        return d
    lab(8, 142, "Set-up", "libtorch", 74)
    lab(104, 142, "01", "one device", 86)
    lab(212, 142, "02", "spawn, DDP", 98)
    lab(332, 142, "03", "a launcher")
    for x1, x2 in ((82, 104), (190, 212), (310, 332)):
        d.arrow(x1, 164, x2, 164)
    for y in 96, 232:
        d.arrow(424, 164, 438, 164, 438, y, 456, y)
    lab(456, 210, "04", "messages")
    lab(570, 210, "05", "collectives")
    d.arrow(548, 232, 570, 232)
    lab(456, 74, "06", "snapshots")
    for y, number, words in ((14, "07", "ResNet"), (74, "08", "photographs"), (134, "09", "many nodes")):
        lab(570, y, number, words)
        d.arrow(548, 96, 558, 96, 558, y + 22, 570, y + 22)
    for x, number, words in ((342, "10", "NCCL"), (456, "11", "scaling"), (570, "12", "parallelism")):
        lab(x, 290, number, words)
        d.arrow(616, 254, 616, 270, x + 46, 270, x + 46, 290)
    return d


def a_killed_rank(narrow):
    d = Drawing(
        "a-killed-rank", *((340, 304) if narrow else (712, 236)), "The tour: the same training twice, once with a kill",
        """Two timelines. In run A ranks 0 and 1 train for three epochs, with a snapshot after every half epoch. In run B rank 1 is
        killed in the middle of epoch 1, some steps after a snapshot. Rank 0 is stopped, both ranks start again, read the snapshot and
        repeat these steps. Both runs end with equal weights, to the bit.""", narrow,
    )
    lost = int(re.search(r"(\d+) steps of 192", (BOOK / "recorded/tour.txt").read_text())[1])
    killed, rest = 96 + lost, 96 - lost
    step, left, gap, below, edge = (1.25, 48, 24, 160, 334) if narrow else (2.6, 92, 50, 124, 700)
    death, again = left + killed * step, left + killed * step + gap
    for y, run in ((30, "Run A"), (below, "Run B")):
        d.text(8, y, run, "strong", "start")
        for rank in 0, 1:
            d.text(8, y + 25 + 28 * rank, f"rank {rank}", anchor="start")
    for rank in 0, 1:
        d.box(left, 40 + 28 * rank, 192 * step, 22, kind="compute")
        y = below + 10 + 28 * rank
        d.box(left, y, killed * step, 22, kind="compute")
        d.box(again, y, lost * step, 22, kind="send")
        d.box(again + lost * step, y, rest * step, 22, kind="compute")
    for half in range(1, 7):
        d.diamond(left + 32 * half * step, 51)
    for half in range(1, 4):
        d.diamond(left + 32 * half * step, below + 21)
        d.diamond(again + 32 * half * step, below + 21)
    for epoch in range(3):
        d.text(left + (64 * epoch + 32) * step, 34, f"epoch {epoch}", "faint")
    d.cross(death, below + 49)
    d.arrow(death, below + 90, death, below + 60)
    d.text(death, below + 104, "rank 1 is killed", "faint")
    snapshot = left + 96 * step
    d.arrow(snapshot, below + 14, snapshot, below - 6, again, below - 6, again, below + 10, kind="dotted")
    d.text((snapshot + again) / 2, below - 13, "both go on from the snapshot", "faint")
    repeated = again + lost / 2 * step
    if narrow:
        d.line(repeated, below + 62, repeated, below + 70)
        d.text(edge, below + 83, f"{lost} steps are done again", "faint", "end")
    else:
        d.line(repeated, below + 62, repeated, below + 82, repeated + 5 * step, below + 82)
        d.text(again + 10 * step, below + 86, f"{lost} steps are done again", "faint", "start")
    d.line(left + 192 * step, 79, edge, 79, edge, below + 49, again + 96 * step, below + 49)
    d.lines(edge - 6, 104 if narrow else 112, "equal weights,\nto the bit", anchor="end")
    d.diamond(14, below + (128 if narrow else 104))
    d.text(26, below + (132 if narrow else 108), "a snapshot", "faint", "start")
    return d


def your_own_model(narrow):
    d = Drawing(
        "your-own-model", *((340, 338) if narrow else (700, 208)), "What makes a package distributed, on two ranks",
        """Both ranks run the same program. One, join: they become a group. Two, share: each reads its own share of the data set, which is
        yours. Three, wrap: DDP copies rank 0's weights to both networks, which are yours. Four, step: each runs forward and backward on its
        batch, and the gradients are averaged. Join, wrap and step reach over all ranks.""", narrow,
    )  # fmt: skip
    if narrow:
        for rank, x in enumerate((92, 248)):
            d.text(x, 18, f"rank {rank}", "strong")
            for y, words in ((86, "a share of the data"), (206, "forward, backward")):
                d.box(x - 70, y, 140, 36, words, "compute")
            for y1, y2 in ((64, 86), (122, 146), (182, 206), (242, 266)):
                d.arrow(x, y1, x, y2)
        calls = (28, "1. join: one group"), (146, "3. wrap: rank 0's weights, on both"), (266, "4. step: the mean of the gradients")
        for y, words in calls:
            d.box(22, y, 296, 36, words, "send")
        d.text(170, 80, "2. share", "faint")
        d.text(170, 330, "grey is yours, colour goes over all ranks", "faint")
        return d
    for rank, y in enumerate((36, 116)):
        d.text(8, y + 23, f"rank {rank}", "strong", "start")
        for x, width, words in ((176, 140, "a share of the data"), (456, 124, "forward, backward")):
            d.box(x, y, width, 36, words, "compute")
        for x1, x2 in ((156, 176), (316, 336), (436, 456), (580, 600)):
            d.arrow(x1, y + 18, x2, y + 18)
    for x, width, words in ((64, 92, "one group"), (336, 100, "rank 0's\nweights,\non both"), (600, 92, "the mean of\nthe gradients")):
        d.box(x, 26, width, 136, kind="send")
        d.lines(x + width / 2, 99 - 8 * words.count("\n"), words, "")
    for x, words in ((110, "1. join"), (246, "2. share"), (386, "3. wrap"), (646, "4. step")):
        d.text(x, 16, words, "strong")
    d.text(378, 196, "grey is yours, colour goes over all ranks", "faint")
    return d
