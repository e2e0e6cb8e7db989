#!/usr/bin/env python3
"""Draws the book's pictures: book/src/pictures/NAME.svg.

    scripts/pictures.py            draw them again
    scripts/pictures.py --check    draw nothing: is every file as this script draws it?

A function with the parameter `narrow` draws two forms, for a desk and for a phone. check_book.py looks at them in a browser.
"""

import sys

sys.dont_write_bytecode = True
from lib.drawing import Drawing  # noqa: E402
from lib.pages import BOOK  # noqa: E402
from lib.pictures_of_ddp import buckets_and_overlap, one_step_of_two_ranks, ring_all_reduce, the_labs, your_own_model  # noqa: E402


def a_killed_rank(narrow):
    d = Drawing(
        "a-killed-rank", *((340, 304) if narrow else (712, 236)), "The tour: the same training twice, once with a kill",
        """Two timelines. In run A ranks 0 and 1 train for three epochs, with a snapshot after every half epoch. In run B rank 1 is
        killed in the middle of epoch 1, eight steps after a snapshot. Rank 0 is stopped, both ranks start again, read the snapshot and
        repeat these eight steps. Both runs end with equal weights, to the bit.""", narrow,
    )
    step, left, gap, below, edge = (1.25, 48, 24, 160, 334) if narrow else (2.6, 92, 50, 124, 700)
    death, again = left + 104 * step, left + 104 * step + gap
    for y, run in ((30, "Run A"), (below, "Run B")):
        d.text(8, y, run, "strong", "start")
        for rank in 0, 1:
            d.text(8, y + 25 + 28 * rank, f"rank {rank}", anchor="start")
    for rank in 0, 1:
        d.box(left, 40 + 28 * rank, 192 * step, 22, kind="compute")
        y = below + 10 + 28 * rank
        d.box(left, y, 104 * step, 22, kind="compute")
        d.box(again, y, 8 * step, 22, kind="send")
        d.box(again + 8 * step, y, 88 * step, 22, kind="compute")
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
    repeated = again + 4 * step
    if narrow:
        d.line(repeated, below + 62, repeated, below + 70)
        d.text(edge, below + 83, "8 steps are done again", "faint", "end")
    else:
        d.line(repeated, below + 62, repeated, below + 82, repeated + 5 * step, below + 82)
        d.text(again + 10 * step, below + 86, "8 steps are done again", "faint", "start")
    d.line(left + 192 * step, 79, edge, 79, edge, below + 49, again + 96 * step, below + 49)
    d.lines(edge - 6, 104 if narrow else 112, "equal weights,\nto the bit", anchor="end")
    d.diamond(14, below + (128 if narrow else 104))
    d.text(26, below + (132 if narrow else 108), "a snapshot", "faint", "start")
    return d


def the_training_step(narrow):
    d = Drawing(
        "the-training-step", *((340, 416) if narrow else (700, 176)), "The training step as a loop",
        """A batch goes through forward, loss and backward, then the optimizer takes a step, and the loop goes on with the next batch.
        Between backward and the step every gradient is complete and no weight has moved: here ranks will agree. After the last batch of
        the epoch one loss is reported, and a checkpoint is saved if it is due.""", narrow,
    )
    if narrow:
        boxes = (8, "batch", "cell"), (56, "forward", "compute"), (104, "loss", "cell"), (152, "backward", "compute"), (252, "step", "compute")
        for (y, words, kind), (after, *_) in zip(boxes, [*boxes[1:], (300,)]):
            d.box(28, y, 94, 32, words, kind)
            d.arrow(75, y + 32, 75, after)
        d.line(28, 218, 84, 218, kind="dotted")
        d.lines(90, 206, "every gradient is complete,\nno weight has moved:\nhere ranks will agree", anchor="start")
        d.arrow(122, 268, 290, 268, 290, 24, 122, 24)
        d.lines(282, 72, "the next batch, until\nthe epoch is done", anchor="end")
        d.box(16, 300, 180, 44, "one loss", "cell", "over the epoch's samples")
        d.arrow(75, 344, 75, 372)
        d.box(16, 372, 180, 32, "a checkpoint, if due")
        return d
    y = 62
    boxes = (16, 58, "batch", "cell"), (98, 74, "forward", "compute"), (196, 52, "loss", "cell"), (272, 84, "backward", "compute")
    for (x, width, words, kind), (after, *_) in zip(boxes, [*boxes[1:], (432,)]):
        d.box(x, y, width, 36, words, kind)
        d.arrow(x + width, y + 18, after, y + 18)
    d.box(432, y, 52, 36, "step", "compute")
    d.line(394, 42, 394, 118, kind="dotted")
    d.lines(394, 16, "every gradient is complete, no weight has moved:\nhere ranks will agree")
    d.arrow(458, y + 36, 458, 148, 45, 148, 45, y + 36)
    d.text(240, 142, "the next batch, until the epoch is done", "faint")
    d.arrow(484, y + 18, 526, y + 18)
    d.box(526, y - 4, 166, 44, "one loss", "cell", "over the epoch's samples")
    d.arrow(609, y + 40, 609, 132)
    d.box(526, 132, 166, 32, "a checkpoint, if due")
    return d


def shares_of_an_epoch(narrow):
    d = Drawing(
        "shares-of-an-epoch", *((340, 262) if narrow else (700, 226)), "Ten samples on three ranks",
        """All ranks shuffle the numbers 0 to 9 alike: 7 2 9 0 5 3 8 1 6 4. Ten is no multiple of three, so the first two, 7 and 2, are
        appended. Rank 0 takes places 0, 3, 6 and 9: the samples 7, 0, 8, 4. Rank 1 takes 2, 5, 1 and 7. Rank 2 takes 9, 3, 6 and 2. With
        batches of one sample, places 0 to 2 are step 0, places 3 to 5 step 1, and so on.""", narrow,
    )
    order, left, size, top = "729053816472", *((56, 23, 72) if narrow else (160, 44, 52))
    if narrow:
        d.text(8, 16, "shuffled and padded", anchor="start")
    else:
        d.text(8, 71, "shuffled and padded", anchor="start")
    for place, sample in enumerate(order):
        d.box(left + place * size, top, size, 28, sample, "send" if place > 9 else "cell")
    for step in range(4):
        d.span(left + step * 3 * size + 4, left + (step + 1) * 3 * size - 4, top - 12, f"step {step}")
    for rank in range(3):
        y = top + 46 + 36 * rank
        d.text(8, y + 19, f"rank {rank}", "strong", "start")
        for place in range(rank, 12, 3):
            d.line(left + (place + 0.5) * size, top + 28, left + (place + 0.5) * size, y, kind="dotted")
            d.box(left + place * size, y, size, 28, order[place], "send" if place > 9 else "compute")
    if narrow:
        d.lines(332, 238, "7 and 2 come twice,\nso that all ranks have four steps", anchor="end")
    else:
        d.text(688, 220, "7 and 2 come twice, so that all ranks have four steps", "faint", "end")
    return d


def process_trees(narrow):
    d = Drawing(
        "process-trees", *((340, 676) if narrow else (712, 262)), "Who starts the ranks: spawn, a launcher, and both by mistake",
        """Three trees of processes. With spawn, the program is the parent; it starts itself again as rank 0 and rank 1. With a launcher,
        the launcher is the parent, and starts the program as rank 0 and rank 1. With both, a launcher starts the program twice, and each of
        the two starts two workers: there are two processes that say they are rank 0 and two that say they are rank 1.""", narrow,
    )
    places = ((74, 0), (74, 216), (74, 432)) if narrow else ((8, 0), (256, 0), (502, 0))
    trees = (
        ("spawn", "the lab", "trains nothing itself", "the program starts itself again:\nmain runs from the top in each"),
        ("a launcher", "lockstep run", "never runs your code", "it starts the program once\nfor each rank"),
        ("both: a mistake", "torchrun", "starts the lab twice", "two processes claim each rank,\nat one address"),
    )
    for number, ((x, y), (title, parent, below, note)) in enumerate(zip(places, trees)):
        d.text(x + 96, y + 20, title, "strong")
        d.box(x + 16, y + 36, 160, 44, parent, "compute", below)
        d.lines(x + 96, y + (178 if narrow and number < 2 else 220 if narrow else 228), note)
        for side in 0, 1:
            if number < 2:
                d.arrow(x + 96, y + 80, x + 48 + 96 * side, y + 112)
                d.box(x + 6 + 96 * side, y + 112, 84, 44, "the lab", "cell", f"rank {side}")
                continue
            middle = x + 38 + 116 * side
            d.arrow(x + 96, y + 80, middle, y + 112)
            d.box(middle - 42, y + 112, 84, 28, "the lab", "compute")
            for rank in 0, 1:
                d.arrow(middle, y + 140, middle - 28 + 56 * rank, y + 168)
                d.box(middle - 54 + 56 * rank, y + 168, 52, 28, f"rank {rank}", "send")
    return d


def ranks_on_two_nodes(narrow):
    d = Drawing(
        "ranks-on-two-nodes", *((340, 388) if narrow else (690, 204)), "Rank, local rank and node rank",
        """A job of five processes on two nodes, WORLD_SIZE 5. Node 0 has three processes, LOCAL_WORLD_SIZE 3: ranks 0, 1 and 2 with
        local ranks 0, 1 and 2. Node 1 has two, LOCAL_WORLD_SIZE 2: ranks 3 and 4 with local ranks 0 and 1. RANK counts through the job and
        goes into the group and the sampler; LOCAL_RANK begins at 0 on each node and picks the device.""", narrow,
    )
    nodes, pitch = (((104, 0, 3), (104, 158, 2)), 70) if narrow else (((124, 22, 3), (456, 22, 2)), 92)
    rank = 0
    for node, (x, y, count) in enumerate(nodes):
        if narrow or node == 0:
            for row, name, use in ((44, "RANK", "group, sampler"), (94, "LOCAL_RANK", "device")):
                d.text(8, y + row + 12, name, "strong", "start")
                d.text(8, y + row + 29, use, "faint", "start")
        d.box(x, y + 12, count * pitch + 22, 124)
        d.text(x + 12, y + 30, f"node {node}", "strong", "start")
        d.text(x + count * pitch / 2 + 11, y + 152, f"LOCAL_WORLD_SIZE {count}", "faint")
        for local in range(count):
            d.box(x + 16 + pitch * local, y + 40, pitch - 12, 38, str(rank), "send")
            d.box(x + 16 + pitch * local, y + 90, pitch - 12, 38, str(local), "compute")
            rank += 1
    if narrow:
        d.lines(8, 338, "WORLD_SIZE 5: both nodes together.\nRANK counts through the job.\nLOCAL_RANK begins at 0 on each node.", anchor="start")
    else:
        d.span(124, 662, 22, "WORLD_SIZE 5")
        d.text(394, 198, "RANK counts through the job. LOCAL_RANK begins at 0 on each node.", "faint")
    return d


def who_waits_for_whom(narrow):
    d = Drawing(
        "who-waits-for-whom", *((340, 480) if narrow else (700, 236)), "A cycle of three ranks that wait, and a chain",
        """On the left, or above, all three ranks receive first: rank 0 waits for rank 2, rank 2 waits for rank 1, rank 1 waits for rank 0.
        The arrows close a circle and nobody can go on. On the right, or below, rank 0 sends first: rank 1 receives and then sends, rank 2
        receives and then sends, and rank 0 receives last.""", narrow,
    )
    cycle, chain = ((30, 0), (30, 244)) if narrow else ((0, 0), (390, 0))
    for (x, y), title, kind in ((cycle, "all receive first: a cycle", "send"), (chain, "rank 0 sends first: a chain", "compute")):
        d.text(140 + x, 22 + y, title, "strong")
        for rank, (right, down) in enumerate(((140, 66), (242, 176), (38, 176))):
            d.box(x + right - 32, y + down - 18, 64, 36, f"rank {rank}", kind)
    x, y = cycle
    d.arrow(x + 112, y + 84, x + 56, y + 158)
    d.arrow(x + 70, y + 176, x + 210, y + 176)
    d.arrow(x + 224, y + 158, x + 168, y + 84)
    d.text(x + 140, y + 132, "waits for", "faint")
    d.text(x + 140, y + 226, "nobody has sent anything yet", "faint")
    x, y = chain
    d.arrow(x + 168, y + 84, x + 224, y + 158)
    d.arrow(x + 210, y + 176, x + 70, y + 176)
    d.arrow(x + 56, y + 158, x + 112, y + 84)
    for right, down, words in ((220, 118, "first"), (140, 194, "second"), (62, 118, "third")):
        d.text(x + right, y + down, words, "faint")
    d.text(x + 140, y + 226, "each has received before it sends", "faint")
    return d


def eight_collectives(narrow):
    d = Drawing(
        "eight-collectives", *((340, 594) if narrow else (712, 326)), "Eight collectives on three ranks, before and after",
        """Broadcast: rank 0 has a; then all have a. Scatter: rank 0 has a, b, c; then rank 0 has a, rank 1 b, rank 2 c. Gather: the
        reverse. All-gather: ranks 0, 1 and 2 have a, b and c; then each has a, b, c. Reduce: they have a, b and c; then rank 0 has the sum,
        and what the others hold is undefined. All-reduce: all have the sum. Reduce-scatter: every rank has three parts; then rank r has the sum
        of all parts r. All-to-all: every rank has a part for each; then rank r has the parts r of all, a transposition.""", narrow,
    )
    parts = ["a₀a₁a₂", "b₀b₁b₂", "c₀c₁c₂"]
    split = [[part[i : i + 2] for i in (0, 2, 4)] for part in parts]
    one, none = [["a"], ["b"], ["c"]], []
    everything = ["a", "b", "c"]
    panels = (
        ("broadcast", [["a"], none, none], [["a"]] * 3),
        ("scatter", [everything, none, none], one),
        ("gather", one, [everything, none, none]),
        ("all-gather", one, [everything] * 3),
        ("reduce", one, [["Σ"], ["?"], ["?"]]),
        ("all-reduce", one, [["Σ"]] * 3),
        ("reduce-scatter", split, [["Σ₀"], ["Σ₁"], ["Σ₂"]]),
        ("all-to-all", split, [list(row) for row in zip(*split)]),
    )
    columns, first, pitch, down = (2, 106, 150, 130) if narrow else (4, 128, 168, 148)
    for number, (name, before, after) in enumerate(panels):
        row, column = divmod(number, columns)
        y, middle = 34 + down * row, first + pitch * column
        d.text(middle, y - 10, name, "strong")
        wide = [22 * max(map(len, side)) for side in (before, after)]
        x = middle - (sum(wide) + 24) / 2
        for rank in range(3):
            if column == 0:
                d.text(4, y + 20 + 30 * rank, f"rank {rank}", "faint", "start")
            for place in range(3):
                for at, held, kind in ((0, before, "compute"), (wide[0] + 24, after, "done")):
                    word = held[rank][place] if place < len(held[rank]) else ""
                    if word:
                        d.box(x + at + 22 * place, y + 30 * rank + 4, 22, 22, word, "cell" if word == "?" else kind)
        d.arrow(x + wide[0] + 4, y + 45, x + wide[0] + 20, y + 45)
    if narrow:
        d.lines(4, 536, "Σ is the sum of a, b and c; Σ₁ that of a₁, b₁ and c₁.\nA missing box is a tensor that nobody reads; “?” is\n"
                "one that the backend may have used: only the\nroot's is a result.", anchor="start")  # fmt: skip
    else:
        d.text(356, 302, "Σ is the sum of a, b and c; Σ₁ that of a₁, b₁ and c₁. A missing box is a tensor that nobody reads;", "faint")
        d.text(356, 318, "“?” is one that the backend may have used: only the root's is a result.", "faint")
    return d


def a_snapshot_is_saved(narrow):
    d = Drawing(
        "a-snapshot-is-saved", *((340, 282) if narrow else (712, 216)), "A snapshot is saved while training goes on",
        """Three lanes over time. Training copies the tensors and goes on with the next steps. A thread writes the copy to a temporary
        file, and then gives it its name. On the disk there is a whole snapshot at every moment: until the rename the previous one, after it both.
        A kill before the rename leaves a temporary file, which the next start removes. A kill after it leaves the new snapshot.""", narrow,
    )
    if narrow:
        for y, lane in ((42, "training"), (124, "a thread"), (170, "on the disk")):
            d.text(8, y, lane, "strong", "start")
        for x in (8, 42, 120, 154, 188, 222, 256, 290):
            d.box(x, 50, 34, 28, "step", "compute")
        d.box(76, 50, 44, 28, "copy", "send")
        d.arrow(98, 78, 98, 106)
        d.box(98, 106, 112, 28, "temporary file", "send")
        d.line(210, 92, 210, 274, kind="dotted")
        d.lines(216, 104, "gives it its name,\nat once or\nnot at all", anchor="start")
        d.box(8, 178, 202, 28, "the previous one is whole", "cell")
        d.box(210, 178, 122, 28, "both are whole", "done")
        d.lines(108, 226, "killed here:\na temporary file is left,\nwhich the next start\nremoves")
        d.lines(272, 226, "killed here:\nthe run goes on\nfrom the new one")
        d.arrow(8, 18, 296, 18)
        d.text(304, 22, "time", "faint", "start")
        return d
    for y, lane in ((48, "training"), (98, "a thread"), (148, "on the disk")):
        d.text(8, y, lane, "strong", "start")
    for x in (112, 170, 292, 350, 408, 466, 524, 582):
        d.box(x, 30, 58, 28, "step", "compute")
    d.box(228, 30, 64, 28, "copy", "send")
    d.arrow(260, 58, 260, 80)
    d.box(260, 80, 190, 28, "makes a temporary file", "send")
    d.line(450, 72, 450, 184, kind="dotted")
    d.text(458, 98, "gives it its name, at once or not at all", "faint", "start")
    d.box(112, 130, 338, 28, "the previous snapshot is whole", "cell")
    d.box(450, 130, 190, 28, "both are whole", "done")
    d.lines(281, 182, "killed here: a temporary file is left,\nwhich the next start removes")
    d.lines(560, 182, "killed here: the run goes on\nfrom the new one")
    d.arrow(112, 14, 640, 14)
    d.text(648, 18, "time", "faint", "start")
    return d


def batch_norm_over_ranks(narrow):
    d = Drawing(
        "batch-norm-over-ranks", *((352, 480) if narrow else (712, 236)), "Whose batch batch normalization sees",
        """On the left, or above, without --sync-batch-norm: rank 0 computes mean and variance of its own batch and normalizes with them,
        rank 1 with those of its own, which differ. Before each step rank 0's running statistics are copied to rank 1. On the right, or below,
        with it: both ranks give mean, variance and count of their batches to a gather, and both normalize with the statistics of all
        samples.""", narrow,
    )
    own, shared = ((4, 0), (4, 244)) if narrow else ((8, 0), (372, 0))
    for (x, top), title in ((own, "each rank its own"), (shared, "--sync-batch-norm")):
        d.text(x + 160, top + 20, title, "strong")
        for rank, y in ((0, top + 40), (1, top + 140)):
            d.text(x, y + 21, f"rank {rank}", anchor="start")
            d.box(x + 50, y, 66, 34, "batch")
    for rank in 0, 1:
        (x, top), down = own, 40 + 100 * rank
        index, y = "₀₁"[rank], top + down
        d.arrow(x + 116, y + 17, x + 144, y + 17)
        d.box(x + 144, y, 88, 34, f"mean{index}, var{index}", "compute")
        d.arrow(x + 232, y + 17, x + 260, y + 17)
        d.box(x + 260, y, 80, 34, "normalize", "compute")
        (x, top), y = shared, shared[1] + down
        d.arrow(x + 116, y + 17, x + 142, y + 17)
        d.box(x + 234, y, 80, 34, "normalize", "compute")
        d.arrow(x + 208, y + 17, x + 234, y + 17)
    d.box(shared[0] + 142, shared[1] + 40, 66, 134, "gather", "send")
    x, y = own
    d.arrow(x + 188, y + 74, x + 188, y + 140, kind="dotted")
    d.lines(x + 198, y + 104, "running statistics:\nrank 0's are copied", anchor="start")
    d.lines(x + 172, y + 204, "two ranks with 32 train another\nnetwork than one rank with 64")
    d.lines(shared[0] + 168, shared[1] + 204, "mean, variance and count of all samples:\nas one rank with 64, except for rounding")
    return d


def who_loads_what(narrow):
    d = Drawing(
        "who-loads-what", *((340, 428) if narrow else (712, 238)), "Who decodes which photograph",
        """On every rank the sampler makes the same list from seed and epoch and takes the rank's share of it. The loader hands the
        batches of this share to worker threads. Each reads, decodes and transforms the photographs of one batch, with random numbers that are
        keyed by seed, epoch and photograph. The batches reach the training loop in the list's order, whichever thread is done first.""", narrow,
    )
    shares = ("0 2", "4 6", "8 10"), ("1 3", "5 7", "9 11")
    if narrow:
        for rank, x in enumerate((8, 180)):
            middle = x + 76
            d.text(middle, 18, f"rank {rank}", "strong")
            d.box(middle - 62, 28, 124, 46, "sampler", "compute", "seed, epoch, rank")
            d.arrow(middle, 74, middle, 122)
            for batch, words in enumerate(shares[rank]):
                d.box(middle - 69 + 46 * batch, 122, 46, 26, words)
            for side in -1, 1:
                d.arrow(middle, 148, middle + 38 * side, 204)
                d.box(middle + 38 * side - 34, 204, 68, 30, f"thread {(side + 1) // 2}", "compute")
                d.arrow(middle + 38 * side, 234, middle, 290)
            d.box(middle - 62, 290, 124, 36, "training loop", "cell")
        for y, words in ((104, "batches of its share"), (168, "read, decode, augment"), (266, "in the list's order")):
            d.text(170, y, words, "faint")
        d.lines(170, 356, "the lists of all ranks are one list,\nof which each takes every second place;\nnobody sends indices")
        return d
    for rank, y in ((0, 36), (1, 146)):
        d.text(8, y + 34, f"rank {rank}", "strong", "start")
        d.box(62, y + 8, 112, 46, "sampler", "compute", "seed, epoch, rank")
        d.arrow(174, y + 31, 200, y + 31)
        for batch, words in enumerate(shares[rank]):
            d.box(200 + 46 * batch, y + 18, 46, 26, words)
        for thread in 0, 1:
            d.arrow(338, y + 31, 380, y + 13 + 36 * thread)
            d.box(380, y + 36 * thread - 2, 150, 30, f"thread {thread}: decode …", "compute")
            d.arrow(530, y + 13 + 36 * thread, 572, y + 31)
        d.box(572, y + 12, 128, 38, "training loop", "cell")
    d.text(269, 26, "batches of its share", "faint")
    d.text(455, 20, "read, decode, augment", "faint")
    d.text(636, 26, "in the list's order", "faint")
    d.text(356, 130, "the lists of all ranks are one list, of which each takes every second place; nobody sends indices", "faint")
    return d


def nodes_and_store(narrow):
    d = Drawing(
        "nodes-and-store", *((340, 280) if narrow else (712, 258)), "Nodes, launchers and the store",
        """Three nodes, each with a launcher. First the launchers meet in the store on the first node and agree on who takes part. Then each
        starts the workers of its own node: ranks 0 and 1 on node 0, rank 2 on node 1, ranks 3 and 4 on node 2. Last, the workers find each
        other through the store and connect directly, each with each.""", narrow,
    )
    if narrow:
        pitch, first, width, launcher, rank_box, apart, store, ports = 114, 2, 108, 66, 44, 25, 170, (150, 170, 190)
    else:
        pitch, first, width, launcher, rank_box, apart, store, ports = 240, 10, 212, 96, 72, 45, 356, (320, 356, 392)
    d.box(store - 80, 12, 160, 40, "store", "send", "on the first node")
    rank, centers = 0, []
    for node, workers in enumerate((2, 1, 2)):
        x = first + pitch * node
        center = x + width / 2
        d.box(x, 78, width, 134)
        d.text(x + (6 if narrow else 10), 206, f"node {node}", "strong", "start")
        d.box(center - launcher / 2, 104, launcher, 30, "launcher", "compute")
        d.arrow(center, 104, ports[node], 52)
        for worker in range(workers):
            middle = center + (worker * 2 * apart - apart if workers == 2 else 0)
            d.arrow(center, 134, middle, 158)
            d.box(middle - rank_box / 2, 158, rank_box, 30, f"rank {rank}", "cell")
            centers.append(middle)
            rank += 1
    for left, right in ((1, 2), (2, 3)):
        x1, x2 = centers[left] + rank_box / 2, centers[right] - rank_box / 2
        d.arrow(x1, 170, x2, 170)
        d.arrow(x2, 176, x1, 176)
    if narrow:
        d.text(84, 68, "1. they meet", "faint", "end")
        d.text(7, 97, "2. starts", "faint", "start")
        d.lines(170, 236, "3. the workers find each other through the store,\nand then connect directly, each with each")
    else:
        d.text(186, 54, "1. they meet", "faint")
        d.text(20, 150, "2. starts", "faint", "start")
        d.text(356, 236, "3. the workers find each other through the store, and then connect directly, each with each", "faint")
    return d


def the_slow_rank_waits_least(narrow):
    d = Drawing(
        "the-slow-rank-waits-least", *((340, 196) if narrow else (712, 192)), "One step of three ranks, of which one is slow",
        """A timeline. Ranks 0 and 2 compute for a short time and then wait in the all-reduce for rank 1, which computes for twice as long.
        As soon as rank 1 comes, the exchange runs and ends on all ranks at the same time. Ranks 0 and 2 have spent most of the step in the
        exchange, rank 1 the least of all: the rank that waits least is the slow one.""", narrow,
    )
    if narrow:
        left, slowest, exchange, step, computes, waits = 50, 182, 70, 34, (86, 182, 96), "waits"
    else:
        left, slowest, exchange, step, computes, waits = 70, 440, 96, 60, (210, 440, 230), "waits for rank 1"
    ends = left + slowest
    for rank, compute in enumerate(computes):
        y = 34 + 40 * rank
        d.text(8, y + 19, f"rank {rank}", "strong", "start")
        d.box(left, y, compute, 28, "compute", "compute")
        if compute < slowest:
            d.box(left + compute, y, slowest - compute, 28, waits, "cell")
        d.box(ends, y, exchange, 28, "all-reduce", "send")
        d.box(ends + exchange, y, step, 28, "step", "compute")
    d.span(left + computes[0], ends + exchange, 24, "rank 0 counts all of this as exchange")
    if narrow:
        d.arrow(left, 164, 300, 164)
        d.text(308, 168, "time", "faint", "start")
        d.text(170, 188, "the rank with the shortest exchange is the slow one", "faint")
    else:
        d.arrow(70, 164, 666, 164)
        d.text(676, 168, "time", "faint", "start")
        d.text(368, 184, "the rank with the shortest exchange is the slow one", "faint")
    return d


def two_streams_and_an_event(narrow):
    d = Drawing(
        "two-streams-and-an-event", *((352, 296) if narrow else (712, 250)), "A kernel and a collective on two streams, with events and without",
        """Two streams over time, twice. Above, with events: the compute stream runs backward of layer 0, then of layer 1; the
        communication stream waits for the end of backward 0 and then all-reduces layer 0 while backward 1 runs; the optimizer waits for the
        all-reduces. Below, without events: the all-reduce of layer 0 begins before backward 0 has ended and averages what was in the buffer
        before, and the optimizer begins before the all-reduces have ended.""", narrow,
    )
    if narrow:
        second, compute, above, communication, below, kernel, collective = 164, 40, 48, 98, 106, 78, 80
        right, wrong = ((8, 88, 270), (108, 190)), ((8, 88, 168), (8, 90))
    else:
        second, compute, above, communication, below, kernel, collective = 142, 52, 32, 96, 76, 114, 130
        right, wrong = ((130, 250, 530), (256, 392)), ((130, 250, 370), (130, 266))
    for y, title, (kernels, collectives) in ((18, "with events", right), (second, "without", wrong)):
        d.text(8, y + (0 if narrow else 6), title, "strong", "start")
        d.text(8, y - 18 + compute, "compute", anchor="start")
        d.text(8, y - 18 + communication, "communication", anchor="start")
        for x, words in zip(kernels, ("backward 0", "backward 1", "optimizer")):
            d.box(x, y - 18 + above, kernel, 30, words, "compute")
        for x, words in zip(collectives, ("all-reduce 0", "all-reduce 1")):
            d.box(x, y - 18 + below, collective, 30, words, "send")
    if narrow:
        d.arrow(84, 78, 114, 106)
        d.arrow(164, 78, 196, 106)
        d.arrow(264, 106, 282, 78)
        d.text(309, 40, "right", "faint")
        d.lines(252, 200, "reads what is\nnot averaged\nyet", anchor="start")
        d.lines(188, 264, "averages what was\nthere before", anchor="start")
    else:
        d.arrow(244, 62, 262, 76)
        d.arrow(364, 62, 398, 76)
        d.arrow(522, 84, 540, 62)
        d.text(660, 52, "right", "faint", "start")
        d.text(500, 176, "reads what is not averaged yet", "faint", "start")
        d.text(412, 220, "averages what was there before", "faint", "start")
    return d


def a_worker_dies(narrow):
    d = Drawing(
        "a-worker-dies", *((340, 256) if narrow else (712, 214)), "What the launcher does when a worker dies",
        """Three lanes over time. Rank 1 dies. The kernel tells the launcher at once. The launcher sends SIGTERM to rank 0, which is
        stuck in an all-reduce, and SIGKILL after --stop-timeout if it is still there. When all are gone, and if a restart is left, it starts
        both ranks again; they resume from the newest snapshot. If none is left, it prints the report and ends with exit code 1.""", narrow,
    )
    if narrow:
        for y, lane in ((40, "launcher"), (119, "rank 1"), (197, "rank 0")):
            d.text(8, y + 5, lane, "strong", "start")
        d.box(70, 20, 58, 40, "watches")
        d.box(128, 20, 94, 40, "stops the rest")
        d.box(222, 20, 112, 40)
        d.lines(278, 37, "starts all again,\nor reports", "")
        d.box(70, 104, 56, 30, "trains", "compute")
        d.cross(126, 119, 8)
        d.arrow(128, 110, 136, 60)
        d.lines(142, 104, "dies: the\nkernel\nreports it", anchor="start")
        d.box(70, 182, 56, 30, "trains", "compute")
        d.box(126, 182, 96, 30, "is stuck")
        d.arrow(214, 60, 214, 182)
        d.lines(208, 162, "SIGTERM, then SIGKILL", anchor="end")
        d.line(250, 60, 250, 197)
        for y in (119, 197):
            d.arrow(250, y, 264, y)
            d.box(264, y - 15, 70, 30, "resumes", "done")
        d.arrow(70, 238, 296, 238)
        d.text(304, 242, "time", "faint", "start")
        return d
    for y, lane in ((35, "launcher"), (95, "rank 1"), (155, "rank 0")):
        d.text(8, y + 5, lane, "strong", "start")
    for x, width, words in ((84, 126, "watches"), (210, 190, "stops the rest"), (400, 252, "starts all again, or reports")):
        d.box(x, 20, width, 30, words)
    d.box(84, 80, 110, 30, "trains", "compute")
    d.cross(194, 95, 8)
    d.arrow(198, 86, 210, 50)
    d.text(212, 99, "dies: the kernel reports it", "faint", "start")
    d.box(84, 140, 110, 30, "trains", "compute")
    d.box(194, 140, 206, 30, "stuck in the all-reduce")
    d.arrow(390, 50, 390, 140)
    d.text(398, 122, "SIGTERM, later SIGKILL", "faint", "start")
    d.line(560, 50, 560, 155)
    for y in (95, 155):
        d.arrow(560, y, 572, y)
        d.box(572, y - 15, 80, 30, "resumes", "done")
    d.arrow(84, 198, 652, 198)
    d.text(662, 202, "time", "faint", "start")
    return d


def who_holds_what(narrow):
    schemes = (("DDP", "half the batch"), ("ZeRO, stage 1", "half the batch"), ("fully sharded", "half the batch"),
               ("tensor", "the whole batch"), ("pipeline", "micro-batches"))  # fmt: skip
    columns, first, pitch, layer = (2, 76, 136, 30) if narrow else (len(schemes), 92, 126, 28)
    size = (340, 268 * -(-len(schemes) // columns) - 6) if narrow else (82 + pitch * len(schemes), 262)
    d = Drawing(
        "who-holds-what", *size, "What two ranks hold in five schemes",
        """Parameters, gradients and optimizer states of a model of four layers, on two ranks. With DDP both ranks hold all of them. With
        ZeRO's first stage both hold all parameters and gradients, and each half of the states. Fully sharded, each holds half of everything of every
        layer: the left half is rank 0's, the right half rank 1's. With tensor parallelism each rank holds half
        of every layer: the upper half is rank 0's, the lower half rank 1's. In a pipeline rank 0 holds the first two layers and rank 1 the
        last two. The batch: in DDP, ZeRO and fully sharded each rank has half of it, with tensor parallelism both have all of it, and through a
        pipeline it goes in micro-batches.""", narrow,
    )
    for number, (scheme, batch) in enumerate(schemes):
        line, column = divmod(number, columns)
        top, left = 268 * line, first + pitch * column
        middle = left + 2 * layer - 2
        d.text(middle, top + 20, scheme, "strong")
        for rank in range(2):
            for row, what in enumerate(("parameters", "gradients", "states")):
                y = top + 34 + 108 * rank + 28 * row
                if column == 0:
                    d.text(8, y + 16, what, "faint", "start")
                for place in range(4):
                    x = left + layer * place
                    d.box(x, y, layer - 4, 22)
                    mine = {"tensor": True, "pipeline": place // 2 == rank}.get(scheme, True)
                    if scheme.startswith("ZeRO") and row == 2:
                        mine = place % 2 == rank
                    if mine:
                        down, across = scheme == "tensor", scheme == "fully sharded"
                        at = (x + (layer - 4) // 2 * rank * across, y + 11 * rank * down)
                        d.box(*at, (layer - 4) // (2 if across else 1), 11 if down else 22, "", "done")
            if column == 0:
                d.text(8, top + 20 + 114 * rank, f"rank {rank}", "strong", "start")
        d.text(middle, top + 252, batch, "faint")
    return d


def column_then_row(narrow):
    d = Drawing(
        "column-then-row", *((340, 400) if narrow else (712, 190)), "Two layers on two ranks with one all-reduce",
        """Both ranks begin with the same inputs x. Each has half of the outputs of the first layer, and computes them whole, so it can apply the
        ReLU alone. These are half of the inputs of the second layer: each rank multiplies them by its columns of the second weight and gets
        a summand of the outputs. One all-reduce adds up the summands, and both ranks have y.""", narrow,
    )
    if narrow:
        d.box(140, 8, 60, 36, "x")
        for rank, middle in enumerate((82, 258)):
            d.arrow(170, 44, middle, 92)
            d.text(*((12, 82) if rank == 0 else (328, 82)), f"rank {rank}", "strong", ("start", "end")[rank])
            d.box(middle - 70, 92, 140, 36, "half of W₁'s rows", "compute")
            d.box(middle - 70, 152, 140, 40, "half of h", "done", "whole sums")
            d.box(middle - 70, 236, 140, 36, "half of W₂'s columns", "compute")
            d.box(middle - 70, 296, 140, 36, "a summand")
            for top, end in ((128, 152), (192, 236), (272, 296)):
                d.arrow(middle, top, middle, end)
            d.arrow(middle, 332, 170, 356)
        d.text(170, 218, "ReLU, nothing is sent", "faint")
        d.box(118, 356, 104, 40, "y", "send", "all-reduce")
        return d
    d.box(8, 70, 60, 40, "x")
    for rank, y in enumerate((24, 116)):
        d.text(100, y - 6, f"rank {rank}", "strong", "start")
        d.box(100, y, 120, 40, "half of W₁'s rows", "compute")
        d.box(240, y, 96, 40, "half of h", "done", "whole sums")
        d.box(356, y, 140, 40, "half of W₂'s columns", "compute")
        d.box(516, y, 76, 40, "a summand")
        for x in (220, 336, 496):
            d.arrow(x, y + 20, x + 20, y + 20)
        d.arrow(68, 90, 100, y + 20)
        d.arrow(592, y + 20, 622, 90)
    d.box(622, 70, 82, 40, "y", "send", "all-reduce")
    d.text(288, 94, "ReLU, nothing is sent", "faint")
    return d


def a_pipeline_is_filled(narrow):
    d = Drawing(
        "a-pipeline-is-filled", *((340, 300) if narrow else (712, 290)), "GPipe and 1F1B on three stages with four micro-batches",
        """Two tables over time, with a row for each of three stages and a column for each unit of time, of which there are twelve. GPipe: stage 0
        does F0 to F3, waits for four units, then does B3 to B0; the stages after it do the same, one and two units later. 1F1B: stage 0 does
        F0 to F2, waits for two units, then B0, F3, B1, a wait, B2, a wait, B3; the last stage does F0, B0, F1, B1 and so on without a wait. Both
        take twelve units, and each stage waits in four of them: a third. With GPipe stage 0 holds four micro-batches at once, with 1F1B
        three.""", narrow,
    )
    tables = (
        ("GPipe", ("F0 F1 F2 F3 . . . . B3 B2 B1 B0", ". F0 F1 F2 F3 . . B3 B2 B1 B0 .", ". . F0 F1 F2 F3 B3 B2 B1 B0 . ."), (4, 4, 4)),
        ("1F1B", ("F0 F1 F2 . . B0 F3 B1 . B2 . B3", ". F0 F1 . B0 F2 B1 F3 B2 . B3 .", ". . F0 B0 F1 B1 F2 B2 F3 B3 . ."), (3, 2, 1)),
    )
    left, unit, cell, row = (58, 23, 22, 36) if narrow else (70, 44, 42, 32)
    for number, (name, rows, held) in enumerate(tables):
        top = 30 + (138 if narrow else 132) * number
        d.text(8, top - 10, name, "strong", "start")
        for stage, actions in enumerate(rows):
            y = top + row * stage
            d.text(8, y + (12 if narrow else 19), f"stage {stage}", "", "start")
            d.text(*((8, y + 27) if narrow else (608, y + 19)), f"holds {held[stage]}", "faint", "start")
            for place, action in enumerate(actions.split()):
                kind = {"F": "compute", "B": "done"}.get(action[0], "cell")
                d.box(left + unit * place, y, cell, 28, "" if action == "." else action, kind)
    if narrow:
        d.arrow(58, 286, 298, 286)
        d.text(304, 290, "time", "faint", "start")
    else:
        d.arrow(70, 276, 598, 276)
        d.text(608, 280, "time", "faint", "start")
    return d


PICTURES = (
    a_killed_rank, the_training_step, one_step_of_two_ranks, shares_of_an_epoch, process_trees, ranks_on_two_nodes, your_own_model,
    who_waits_for_whom, eight_collectives, ring_all_reduce, buckets_and_overlap, a_snapshot_is_saved, batch_norm_over_ranks, who_loads_what,
    nodes_and_store, the_slow_rank_waits_least, a_worker_dies, two_streams_and_an_event, who_holds_what, column_then_row,
    a_pipeline_is_filled, the_labs,
)  # fmt: skip


def drawn(picture):
    """The picture's file, and what it contains: both forms, if it has two."""
    forms = [picture(False), picture(True)] if picture.__code__.co_argcount else [picture()]
    return BOOK / "pictures" / f"{forms[0].name}.svg", "".join(form.svg() for form in forms)


def faults():
    """The pictures that are not as this script draws them, and files that it does not draw."""
    files = dict(map(drawn, PICTURES))
    for path, text in files.items():
        if not path.exists() or path.read_text() != text:
            yield f"{path.name} is not as scripts/pictures.py draws it"
    for path in sorted({*(BOOK / "pictures").glob("*.svg")} - set(files)):
        yield f"{path.name} is drawn by nothing: add it to scripts/pictures.py"


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
