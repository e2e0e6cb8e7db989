"""The book's drawings of a step, of DDP's buckets and ring, of a package of one's own, and of the course itself, for pictures.py."""

from lib.drawing import Drawing


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
            rows = ((28, 36, "w", "cell"), (88, 86, "forward", "compute"), (148, 86, "backward", "compute"), (208, 36, "g" + "₀₁"[rank], "cell"),
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
        row = ((64, 36, "w", "cell"), (124, 78, "forward", "compute"), (226, 86, "backward", "compute"), (336, 36, "g" + "₀₁"[rank], "cell"),
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


def buckets_and_overlap(narrow):
    d = Drawing(
        "buckets-and-overlap", *((346, 338) if narrow else (670, 340)), "Backward and all-reduce, with and without overlap",
        """Two timelines of one step. Backward computes the gradients of layers 6, 5, 4, 3, 2 and 1, in this order. Layer 6 fills bucket 0;
        layers 5, 4 and 3 fill bucket 1; layers 2 and 1 fill bucket 2. With overlap each bucket is all-reduced as soon as it is full, while
        backward goes on: only the last one is left when backward ends, and the optimizer steps after it. Without overlap all three
        all-reduces come after backward, and the optimizer steps that much later.""", narrow,
    )  # fmt: skip
    unit, left = (0.6, 12) if narrow else (1, 118)
    at = lambda time: left + unit * time
    lengths = 25, 85, 70

    def name(y, words, after):
        """A lane's name: on the left, or after its boxes where there is no room."""
        d.text(at(after) + 8 if narrow and after else 8, y + 18, words, anchor="start")

    def layers(y):
        name(y, "backward, layer", 300)
        for place in range(6):
            d.box(at(50 * place), y, 50 * unit, 26, str(6 - place), "compute")

    def reduces(y, starts, after=0):
        name(y, "all-reduce" if narrow else "all-reduce, bucket", after)
        for bucket, (start, length) in enumerate(zip(starts, lengths)):
            d.box(at(start), y, length * unit, 26, str(bucket), "send")

    top, lane, optimizer = (32, 98, 130) if narrow else (36, 104, 136)
    below, lane2, optimizer2 = (196, 228, 260) if narrow else (204, 238, 272)
    d.text(8, 18 if narrow else 20, "With overlap", "strong", "start")
    layers(top)
    if not narrow:
        d.text(8, 82, "fills bucket", anchor="start")
    for bucket, (begin, end) in enumerate(((0, 50), (50, 200), (200, 300))):
        x1, x2, y = at(begin) + 3, at(end) - 3, top + 36
        d.line(x1, y - 4, x1, y, x2, y, x2, y - 4)
        d.text((x1 + x2) / 2, y + 15, str(bucket))
        d.line(at(end), top + 26, at(end), lane, kind="dotted")
    if narrow:
        d.text(at(300) + 8, top + 52, "fills bucket", anchor="start")
    reduces(lane, (50, 200, 300), after=370)
    name(optimizer, "optimizer", 0)
    d.box(at(370), optimizer, 50 * unit, 26, "step", "compute")
    d.text(8, 184 if narrow else 188, "Without", "strong", "start")
    layers(below)
    reduces(lane2, (300, 325, 410))
    name(optimizer2, "optimizer", 0)
    d.box(at(480), optimizer2, 50 * unit, 26, "step", "compute")
    if not narrow:
        d.line(at(370), optimizer + 26, at(370), lane2 - 2, kind="dotted")
    d.line(at(370), lane2 + 28, at(370), optimizer2 + 20, kind="dotted")
    middle, y = (at(370) + at(480)) / 2, optimizer2 + 13
    d.arrow(middle, y, at(370) + 1, y)
    d.arrow(middle, y, at(480) - 1, y)
    d.text(middle, y + 18 if narrow else y - 5, "saved")
    y = 314 if narrow else 316
    d.arrow(at(0), y, at(542), y)
    d.text(at(0), y + 17, "time", anchor="start")
    return d


def ring_all_reduce(narrow):
    ranks = range(4)
    held = [[1] * 4 for _ in ranks]
    steps = [("at the start", held)]
    for number in range(6):
        before, held = held, [list(chunks) for chunks in held]
        for rank in ranks:
            # In step s of the reduce-scatter rank r sends chunk r - s, in the all-gather chunk r + 1 - s.
            chunk = (rank - number) % 4 if number < 3 else (rank + 1 - (number - 3)) % 4
            there = held[(rank + 1) % 4]
            there[chunk] = before[rank][chunk] + (before[(rank + 1) % 4][chunk] if number < 3 else 0)
        steps.append((f"reduce-scatter, {number + 1}" if number < 3 else f"all-gather, {number - 2}", held))
    table = "; ".join(f"{name}: " + ", ".join(f"rank {rank} {' '.join(map(str, chunks))}" for rank, chunks in enumerate(sums)) for name, sums in steps)
    d = Drawing(
        "ring-all-reduce", *((340, 398) if narrow else (644, 294)), "A ring all-reduce of four chunks on four ranks",
        f"""Each rank sends to the next, rank 3 to rank 0. A table shows, for each rank and each of its four chunks, of how many ranks the chunk
        holds the sum. {table}.""", narrow,
    )  # fmt: skip
    left, cell, pitch, head, first, down = (10, 18, 82, 24, 92, 44) if narrow else (132, 26, 128, 34, 74, 28)
    centers = [left + pitch * rank + 2 * cell for rank in ranks]
    for rank, x in enumerate(centers):
        d.text(x, head + 4, f"rank {rank}", "strong")
        if rank < 3:
            d.arrow(x + (22 if narrow else 28), head, centers[rank + 1] - (22 if narrow else 28), head)
    d.arrow(centers[3], head - 12, centers[3], head - 20, centers[0], head - 20, centers[0], head - 9)
    d.text(8, 50 if narrow else 38, "messages go from rank to rank" if narrow else "messages go", anchor="start")
    if not narrow:
        d.text(8, 66, "chunk", anchor="start")
    for number, (name, sums) in enumerate(steps):
        # Room after the start and after the first phase.
        y = first + down * number + (8 if number > 0 else 0) * (not narrow) + (8 if number > 3 else 0)
        if narrow:
            d.text(left, y - 5, f"{name}; chunks 0 1 2 3 of each rank" if number == 0 else name, "faint", "start")
        else:
            d.text(8, y + 17, name, anchor="start")
        for rank in ranks:
            for chunk in range(4):
                x, value = left + pitch * rank + cell * chunk, sums[rank][chunk]
                if number == 0 and not narrow:
                    d.text(x + cell / 2, 66, str(chunk), "faint")
                arrived = number > 0 and value != steps[number - 1][1][rank][chunk]
                d.box(x, y, cell, 24, kind="done" if value == 4 else "compute" if arrived else "cell")
                d.text(x + cell / 2, y + 17, str(value), "strong" if arrived else "")
    return d


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
        for y, words in ((28, "1. join: one group"), (146, "3. wrap: rank 0's weights, on both"), (266, "4. step: the mean of the gradients")):
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
