"""Drawings of a training: its steps, its data, and the step of two ranks."""

from lib.drawing import Drawing


def the_training_step(narrow):
    d = Drawing(
        "the-training-step", *((340, 416) if narrow else (700, 176)), "The training step as a loop",
        """A batch goes through forward, loss and backward, then the optimizer takes a step, and the loop goes on with the next batch.
        Between backward and the step every gradient is complete and no weight has moved: here ranks will agree. After the last batch of
        the epoch one loss is reported, and a checkpoint is saved if it is due.""", narrow,
    )
    if narrow:
        boxes = ((8, "batch", "cell"), (56, "forward", "compute"), (104, "loss", "cell"), (152, "backward", "compute"),
                 (252, "step", "compute"))  # fmt: skip
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


def one_step_of_two_ranks(narrow):
    d = Drawing(
        "one-step-of-two-ranks", *((340, 458) if narrow else (712, 240)), "One step of two ranks",
        """Both ranks begin with equal weights w. Each runs forward and backward on a batch of its own and gets a gradient of its own, g0
        and g1, which differ. An all-reduce gives both the same mean, g = one half of g0 plus g1. Each lets its optimizer take the same
        step, so that both end with equal weights w prime.""", narrow,
    )  # fmt: skip
    if narrow:
        for rank, x in enumerate((88, 252)):
            d.text(x, 18, f"rank {rank}", "strong")
            own = "g" + "₀₁"[rank]
            rows = ((28, 36, "w", "cell"), (88, 86, "forward", "compute"), (148, 86, "backward", "compute"), (208, 36, own, "cell"),
                    (320, 36, "g", "done"), (366, 86, "step", "compute"), (416, 36, "w′", "cell"))  # fmt: skip
            for (y, width, words, kind), (below, *_) in zip(rows, [*rows[1:4], (256,), *rows[5:], (0,)]):
                d.box(x - width / 2, y, width, 32, words, kind)
                if below:
                    d.arrow(x, y + 32, x, below)
            d.arrow(x, 304, x, 320)
        d.arrow(20, 104, 45, 104)
        d.lines(4, 78, "a batch", anchor="start")
        d.arrow(320, 104, 295, 104)
        d.lines(336, 78, "another", anchor="end")
        d.box(38, 256, 264, 48, "all-reduce", "send", "g = ½ (g₀ + g₁)")
        for y, words in ((48, "equal"), (228, "different"), (340, "equal"), (436, "equal")):
            d.text(170, y, words, "faint")
        return d
    for rank, y in enumerate((60, 150)):
        d.text(8, y + 23, f"rank {rank}", "strong", "start")
        own = "g" + "₀₁"[rank]
        row = ((64, 36, "w", "cell"), (124, 78, "forward", "compute"), (226, 86, "backward", "compute"), (336, 36, own, "cell"),
               (536, 36, "g", "done"), (596, 46, "step", "compute"), (666, 36, "w′", "cell"))  # fmt: skip
        for (x, width, words, kind), (after, *_) in zip(row, [*row[1:4], (396,), *row[5:], (0,)]):
            d.box(x, y, width, 36, words, kind)
            if after:
                d.arrow(x + width, y + 18, after, y + 18)
        d.arrow(512, y + 18, 536, y + 18)
    d.text(163, 22, "a batch of its own")
    d.arrow(163, 30, 163, 60)
    d.text(163, 228, "another batch")
    d.arrow(163, 214, 163, 186)
    d.box(396, 48, 116, 150, kind="send")
    d.text(454, 112, "all-reduce")
    d.text(454, 140, "g = ½ (g₀ + g₁)")
    for x, words in ((82, "equal"), (354, "different"), (554, "equal"), (684, "equal")):
        d.text(x, 128, words, "faint")
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


def who_loads_what(narrow):
    d = Drawing(
        "who-loads-what", *((340, 428) if narrow else (712, 238)), "Who decodes which photograph",
        """On every rank the sampler makes the same list from seed and epoch and takes the rank's share of it. The loader hands the batches
        of this share to worker threads. Each reads, decodes and transforms the photographs of one batch, with random numbers that are keyed
        by seed, epoch and photograph. The batches reach the training loop in the list's order, whichever thread is done first.""", narrow,
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


def batch_norm_over_ranks(narrow):
    d = Drawing(
        "batch-norm-over-ranks", *((352, 480) if narrow else (712, 236)), "Whose batch batch normalization sees",
        """On the left, or above, without --sync-batch-norm: rank 0 computes mean and variance of its own batch and normalizes with them,
        rank 1 with those of its own, which differ. Before each step rank 0's running statistics are copied to rank 1. On the right, or
        below, with it: both ranks give mean, variance and count of their batches to a gather, and both normalize with the statistics of all
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


def a_snapshot_is_saved(narrow):
    d = Drawing(
        "a-snapshot-is-saved", *((340, 282) if narrow else (712, 216)), "A snapshot is saved while training goes on",
        """Three lanes over time. Training copies the tensors and goes on with the next steps. A thread writes the copy to a temporary file,
        and then gives it its name. On the disk there is a whole snapshot at every moment: until the rename the previous one, after it both.
        A kill before the rename leaves a temporary file, which the next start removes. A kill after it leaves the new snapshot.""", narrow,
    )
    if narrow:
        lanes, axis = (42, 124, 170), (8, 296, 18)
        steps, top, copy = ((8, 42, 120, 154, 188, 222, 256, 290), 34), 50, (76, 44)
        thread, file, named, cut = 106, "temporary file", 210, (92, 274)
        name = 216, 104, "gives it its name,\nat once or\nnot at all"
        disk, previous, both = 178, "the previous one is whole", 122
        before = 108, 226, "killed here:\na temporary file is left,\nwhich the next start\nremoves"
        after = 272, 226, "killed here:\nthe run goes on\nfrom the new one"
    else:
        lanes, axis = (48, 98, 148), (112, 640, 14)
        steps, top, copy = ((112, 170, 292, 350, 408, 466, 524, 582), 58), 30, (228, 64)
        thread, file, named, cut = 80, "makes a temporary file", 450, (72, 184)
        name = 458, 98, "gives it its name, at once or not at all"
        disk, previous, both = 130, "the previous snapshot is whole", 190
        before = 281, 182, "killed here: a temporary file is left,\nwhich the next start removes"
        after = 560, 182, "killed here: the run goes on\nfrom the new one"
    d.lanes(*zip(lanes, ("training", "a thread", "on the disk")))
    places, width = steps
    for x in places:
        d.box(x, top, width, 28, "step", "compute")
    x, width = copy
    d.box(x, top, width, 28, "copy", "send")
    copied = x + width / 2
    d.arrow(copied, top + 28, copied, thread)
    d.box(copied, thread, named - copied, 28, file, "send")
    d.line(named, cut[0], named, cut[1], kind="dotted")
    d.lines(*name, anchor="start")
    left = places[0]
    d.box(left, disk, named - left, 28, previous, "cell")
    d.box(named, disk, both, 28, "both are whole", "done")
    d.lines(*before)
    d.lines(*after)
    d.time(*axis)
    return d
