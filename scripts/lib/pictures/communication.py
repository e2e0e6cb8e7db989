"""Drawings of communication: messages, collectives, and what overlaps with them or waits for them."""

from lib.drawing import Drawing


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
        and what the others hold is undefined. All-reduce: all have the sum. Reduce-scatter: every rank has three parts; then rank r has the
        sum of all parts r. All-to-all: every rank has a part for each; then rank r has the parts r of all, a transposition.""", narrow,
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
    rows = lambda sums: ", ".join(f"rank {rank} {' '.join(map(str, chunks))}" for rank, chunks in enumerate(sums))
    table = "; ".join(f"{name}: {rows(sums)}" for name, sums in steps)
    d = Drawing(
        "ring-all-reduce", *((340, 398) if narrow else (644, 294)), "A ring all-reduce of four chunks on four ranks",
        f"""Each rank sends to the next, rank 3 to rank 0. A table shows, for each rank and each of its four chunks, of how many ranks the
        chunk holds the sum. {table}.""", narrow,
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
    d.time(left, 300 if narrow else 666, 164, 8 if narrow else 10)
    d.text(*((170, 188) if narrow else (368, 184)), "the rank with the shortest exchange is the slow one", "faint")
    return d


def two_streams_and_an_event(narrow):
    d = Drawing(
        "two-streams-and-an-event", *((352, 296) if narrow else (712, 250)),
        "A kernel and a collective on two streams, with events and without",
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
