#!/usr/bin/env python3
"""Draws the book's pictures: book/src/pictures/NAME.svg.

    scripts/pictures.py            draw them again
    scripts/pictures.py --check    draw nothing: is every file as this script draws it?

Those of How DDP works and of the course's map are older and not among them. check_book.py looks at all of them in a browser.
"""

import sys

sys.dont_write_bytecode = True
from lib.drawing import Drawing  # noqa: E402
from lib.pages import BOOK  # noqa: E402


def a_killed_rank():
    d = Drawing(
        "a-killed-rank", 712, 236, "The tour: the same training twice, once with a kill",
        """Two timelines. In run A ranks 0 and 1 train for three epochs, with a snapshot after every half epoch. In run B rank 1 is
        killed in the middle of epoch 1, eight steps after a snapshot. Rank 0 is stopped, both ranks start again, read the snapshot and
        repeat these eight steps. Both runs end with equal weights, to the bit.""",
    )
    step, left = 2.6, 92
    death, again = left + 104 * step, left + 104 * step + 50
    for y, run in ((30, "Run A"), (124, "Run B")):
        d.text(8, y, run, "strong", "start")
        for rank in 0, 1:
            d.text(8, y + 25 + 28 * rank, f"rank {rank}", anchor="start")
    for rank in 0, 1:
        d.box(left, 40 + 28 * rank, 192 * step, 22, kind="compute")
        d.box(left, 134 + 28 * rank, 104 * step, 22, kind="compute")
        d.box(again, 134 + 28 * rank, 8 * step, 22, kind="send")
        d.box(again + 8 * step, 134 + 28 * rank, 88 * step, 22, kind="compute")
    for half in range(1, 7):
        d.diamond(left + 32 * half * step, 51)
    for half in range(1, 4):
        d.diamond(left + 32 * half * step, 145)
        d.diamond(again + 32 * half * step, 145)
    for epoch in range(3):
        d.text(left + (64 * epoch + 32) * step, 34, f"epoch {epoch}", "faint")
    d.cross(death, 173)
    d.arrow(death, 214, death, 184)
    d.text(death, 228, "rank 1 is killed", "faint")
    snapshot = left + 96 * step
    d.arrow(snapshot, 138, snapshot, 118, again, 118, again, 134, kind="dotted")
    d.text((snapshot + again) / 2, 111, "both go on from the snapshot", "faint")
    d.line(again + 4 * step, 186, again + 4 * step, 206, again + 9 * step, 206)
    d.text(again + 10 * step, 210, "8 steps are done again", "faint", "start")
    d.line(left + 192 * step, 79, 700, 79, 700, 173, again + 96 * step, 173)
    d.lines(694, 112, "equal weights,\nto the bit", anchor="end")
    d.diamond(14, 228)
    d.text(26, 232, "a snapshot", "faint", "start")
    return d


def the_training_step():
    d = Drawing(
        "the-training-step", 700, 176, "The training step as a loop",
        """A batch goes through forward, loss and backward, then the optimizer takes a step, and the loop goes on with the next batch.
        Between backward and the step every gradient is complete and no weight has moved: here ranks will agree. After the last batch of
        the epoch one loss is reported, and a checkpoint is saved if it is due.""",
    )
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


def shares_of_an_epoch():
    d = Drawing(
        "shares-of-an-epoch", 700, 226, "Ten samples on three ranks",
        """All ranks shuffle the numbers 0 to 9 alike: 7 2 9 0 5 3 8 1 6 4. Ten is no multiple of three, so the first two, 7 and 2, are
        appended. Rank 0 takes places 0, 3, 6 and 9: the samples 7, 0, 8, 4. Rank 1 takes 2, 5, 1 and 7. Rank 2 takes 9, 3, 6 and 2. With
        batches of one sample, places 0 to 2 are step 0, places 3 to 5 step 1, and so on.""",
    )
    order, left, size = "729053816472", 160, 44
    d.text(8, 71, "shuffled and padded", anchor="start")
    for place, sample in enumerate(order):
        d.box(left + place * size, 52, size, 28, sample, "send" if place > 9 else "cell")
    for step in range(4):
        d.span(left + step * 3 * size + 4, left + (step + 1) * 3 * size - 4, 40, f"step {step}")
    for rank in range(3):
        y = 98 + 36 * rank
        d.text(8, y + 19, f"rank {rank}", "strong", "start")
        for place in range(rank, 12, 3):
            d.line(left + (place + 0.5) * size, 80, left + (place + 0.5) * size, y, kind="dotted")
            d.box(left + place * size, y, size, 28, order[place], "send" if place > 9 else "compute")
    d.text(688, 220, "7 and 2 come twice, so that all ranks have four steps", "faint", "end")
    return d


def process_trees():
    d = Drawing(
        "process-trees", 712, 262, "Who starts the ranks: spawn, a launcher, and both by mistake",
        """Three trees of processes. With spawn, the program is the parent; it starts itself again as rank 0 and rank 1. With a launcher,
        the launcher is the parent, and starts the program as rank 0 and rank 1. With both, a launcher starts the program twice, and each of
        the two starts two workers: there are two processes that say they are rank 0 and two that say they are rank 1.""",
    )
    trees = (
        (8, "spawn", "the lab", "trains nothing itself", "the program starts itself again:\nmain runs from the top in each"),
        (256, "a launcher", "lockstep run", "never runs your code", "it starts the program once\nfor each rank"),
        (502, "both: a mistake", "torchrun", "starts the lab twice", "two processes claim each rank,\nat one address"),
    )
    for x, title, parent, below, note in trees:
        d.text(x + 96, 20, title, "strong")
        d.box(x + 16, 36, 160, 44, parent, "compute", below)
        d.lines(x + 96, 228, note)
    for x in 8, 256:
        for rank in 0, 1:
            d.arrow(x + 96, 80, x + 48 + 96 * rank, 112)
            d.box(x + 6 + 96 * rank, 112, 84, 44, "the lab", "cell", f"rank {rank}")
    for side in 0, 1:
        middle = 540 + 116 * side
        d.arrow(598, 80, middle, 112)
        d.box(middle - 42, 112, 84, 28, "the lab", "compute")
        for rank in 0, 1:
            d.arrow(middle, 140, middle - 28 + 56 * rank, 168)
            d.box(middle - 54 + 56 * rank, 168, 52, 28, f"rank {rank}", "send")
    return d


def ranks_on_two_nodes():
    d = Drawing(
        "ranks-on-two-nodes", 690, 204, "Rank, local rank and node rank",
        """A job of five processes on two nodes, WORLD_SIZE 5. Node 0 has three processes, LOCAL_WORLD_SIZE 3: ranks 0, 1 and 2 with
        local ranks 0, 1 and 2. Node 1 has two, LOCAL_WORLD_SIZE 2: ranks 3 and 4 with local ranks 0 and 1. RANK counts through the job and
        goes into the group and the sampler; LOCAL_RANK begins at 0 on each node and picks the device.""",
    )
    d.text(8, 78, "RANK", "strong", "start")
    d.text(8, 95, "group, sampler", "faint", "start")
    d.text(8, 128, "LOCAL_RANK", "strong", "start")
    d.text(8, 145, "device", "faint", "start")
    rank = 0
    for node, (x, count) in enumerate(((124, 3), (456, 2))):
        d.box(x, 34, count * 92 + 24, 124)
        d.text(x + 12, 52, f"node {node}", "strong", "start")
        d.text(x + count * 46 + 12, 174, f"LOCAL_WORLD_SIZE {count}", "faint")
        for local in range(count):
            d.box(x + 16 + 92 * local, 62, 80, 38, str(rank), "send")
            d.box(x + 16 + 92 * local, 112, 80, 38, str(local), "compute")
            rank += 1
    d.span(124, 664, 22, "WORLD_SIZE 5")
    d.text(394, 198, "RANK counts through the job. LOCAL_RANK begins at 0 on each node.", "faint")
    return d


def who_waits_for_whom():
    d = Drawing(
        "who-waits-for-whom", 700, 236, "A cycle of three ranks that wait, and a chain",
        """On the left all three ranks receive first: rank 0 waits for rank 2, rank 2 waits for rank 1, rank 1 waits for rank 0. The
        arrows close a circle and nobody can go on. On the right rank 0 sends first: rank 1 receives and then sends, rank 2 receives and then
        sends, and rank 0 receives last.""",
    )
    places = (140, 66), (242, 176), (38, 176)
    for shift, title, kind in ((0, "all receive first: a cycle", "send"), (390, "rank 0 sends first: a chain", "compute")):
        d.text(140 + shift, 22, title, "strong")
        for rank, (x, y) in enumerate(places):
            d.box(x + shift - 32, y - 18, 64, 36, f"rank {rank}", kind)
    d.arrow(112, 84, 56, 158)
    d.arrow(70, 176, 210, 176)
    d.arrow(224, 158, 168, 84)
    d.text(140, 132, "waits for", "faint")
    d.text(140, 226, "nobody has sent anything yet", "faint")
    d.arrow(558, 84, 614, 158)
    d.arrow(600, 176, 460, 176)
    d.arrow(446, 158, 502, 84)
    for x, y, words in ((614, 118, "1 sends"), (530, 194, "2 sends"), (448, 118, "3 sends")):
        d.text(x, y, words, "faint")
    d.text(530, 226, "each has received before it sends", "faint")
    return d


def eight_collectives():
    d = Drawing(
        "eight-collectives", 712, 322, "Eight collectives on three ranks, before and after",
        """Broadcast: rank 0 has a; then all have a. Scatter: rank 0 has a, b, c; then rank 0 has a, rank 1 b, rank 2 c. Gather: the
        reverse. All-gather: ranks 0, 1 and 2 have a, b and c; then each has a, b, c. Reduce: they have a, b and c; then rank 0 has the sum,
        and what the others hold is undefined. All-reduce: all have the sum. Reduce-scatter: every rank has three parts; then rank r has the sum
        of all parts r. All-to-all: every rank has a part for each; then rank r has the parts r of all, a transposition.""",
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
    for number, (name, before, after) in enumerate(panels):
        y = 34 + 148 * (number // 4)
        d.text(128 + 168 * (number % 4), y - 10, name, "strong")
        wide = [22 * max(map(len, side)) for side in (before, after)]
        x = 128 + 168 * (number % 4) - (sum(wide) + 24) / 2
        for rank in range(3):
            if number % 4 == 0:
                d.text(4, y + 20 + 30 * rank, f"rank {rank}", "faint", "start")
            for place in range(3):
                for at, row, kind in ((0, before, "compute"), (wide[0] + 24, after, "done")):
                    word = row[rank][place] if place < len(row[rank]) else ""
                    if word:
                        d.box(x + at + 22 * place, y + 30 * rank + 4, 22, 22, word, "cell" if word == "?" else kind)
        d.arrow(x + wide[0] + 4, y + 45, x + wide[0] + 20, y + 45)
    d.text(356, 302, "Σ is the sum of a, b and c; Σ₁ that of a₁, b₁ and c₁. A missing box is a tensor that nobody reads;", "faint")
    d.text(356, 318, "“?” is one that the backend may have used: only the root's is a result.", "faint")
    return d


def a_snapshot_is_saved():
    d = Drawing(
        "a-snapshot-is-saved", 712, 216, "A snapshot is saved while training goes on",
        """Three lanes over time. Training copies the tensors and goes on with the next steps. A thread writes the copy to a temporary
        file, and then gives it its name. On the disk there is a whole snapshot at every moment: until the rename the previous one, after it both.
        A kill before the rename leaves a temporary file, which the next start removes. A kill after it leaves the new snapshot.""",
    )
    for y, lane in ((48, "training"), (98, "a thread"), (148, "on the disk")):
        d.text(8, y, lane, "strong", "start")
    for x, words in ((112, "step"), (170, "step"), (292, "step"), (350, "step"), (408, "step"), (466, "step"), (524, "step"), (582, "step")):
        d.box(x, 30, 58, 28, words, "compute")
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


def batch_norm_over_ranks():
    d = Drawing(
        "batch-norm-over-ranks", 712, 236, "Whose batch batch normalization sees",
        """On the left, without --sync-batch-norm: rank 0 computes mean and variance of its own batch and normalizes with them, rank 1 with
        those of its own, which differ. Before each step rank 0's running statistics are copied to rank 1. On the right, with it: both ranks
        give mean, variance and count of their batches to a gather, and both normalize with the statistics of all samples.""",
    )
    for x, title in ((8, "each rank its own"), (372, "--sync-batch-norm")):
        d.text(x + 160, 20, title, "strong")
        for rank, y in ((0, 40), (1, 140)):
            d.text(x, y + 21, f"rank {rank}", anchor="start")
            d.box(x + 50, y, 66, 34, "batch")
    for rank, y in ((0, 40), (1, 140)):
        own = "₀" if rank == 0 else "₁"
        d.arrow(124, y + 17, 152, y + 17)
        d.box(152, y, 88, 34, f"mean{own}, var{own}", "compute")
        d.arrow(240, y + 17, 268, y + 17)
        d.box(268, y, 76, 34, "normalize", "compute")
        d.arrow(488, y + 17, 514, y + 17)
        d.box(606, y, 80, 34, "normalize", "compute")
        d.arrow(580, y + 17, 606, y + 17)
    d.box(514, 40, 66, 134, "gather", "send")
    d.arrow(196, 74, 196, 140, kind="dotted")
    d.lines(206, 104, "running statistics:\nrank 0's are copied", anchor="start")
    d.lines(180, 204, "two ranks with 32 train another\nnetwork than one rank with 64")
    d.lines(540, 204, "mean, variance and count of all samples:\nas one rank with 64, except for rounding")
    return d


def who_loads_what():
    d = Drawing(
        "who-loads-what", 712, 238, "Who decodes which photograph",
        """On every rank the sampler makes the same list from seed and epoch and takes the rank's share of it. The loader hands the
        batches of this share to worker threads. Each reads, decodes and transforms the photographs of one batch, with random numbers that are
        keyed by seed, epoch and photograph. The batches reach the training loop in the list's order, whichever thread is done first.""",
    )
    for rank, y in ((0, 36), (1, 146)):
        d.text(8, y + 34, f"rank {rank}", "strong", "start")
        d.box(62, y + 8, 112, 46, "sampler", "compute", "seed, epoch, rank")
        d.arrow(174, y + 31, 200, y + 31)
        shares = ("0 2", "4 6", "8 10") if rank == 0 else ("1 3", "5 7", "9 11")
        for batch, words in enumerate(shares):
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


def nodes_and_store():
    d = Drawing(
        "nodes-and-store", 712, 258, "Nodes, launchers and the store",
        """Three nodes, each with a launcher. First the launchers meet in the store on the first node and agree on who takes part. Then each
        starts the workers of its own node: ranks 0 and 1 on node 0, rank 2 on node 1, ranks 3 and 4 on node 2. Last, the workers find each
        other through the store and connect directly, each with each.""",
    )
    d.box(276, 12, 160, 40, "store", "send", "on the first node")
    rank = 0
    for node, workers in enumerate((2, 1, 2)):
        x = 10 + 240 * node
        d.box(x, 78, 212, 134)
        d.text(x + 10, 206, f"node {node}", "strong", "start")
        d.box(x + 58, 104, 96, 30, "launcher", "compute")
        d.arrow(x + 106, 104, (320, 356, 392)[node], 52)
        for worker in range(workers):
            middle = x + 106 + (worker * 90 - 45 if workers == 2 else 0)
            d.arrow(x + 106, 134, middle, 158)
            d.box(middle - 36, 158, 72, 30, f"rank {rank}", "cell")
            rank += 1
    d.text(186, 54, "1. they meet", "faint")
    d.text(20, 150, "2. starts", "faint", "start")
    for x in 197, 392:
        d.arrow(x, 170, x + 123, 170)
        d.arrow(x + 123, 176, x, 176)
    d.text(356, 236, "3. the workers find each other through the store, and then connect directly, each with each", "faint")
    return d


def the_slow_rank_waits_least():
    d = Drawing(
        "the-slow-rank-waits-least", 712, 192, "One step of three ranks, of which one is slow",
        """A timeline. Ranks 0 and 2 compute for a short time and then wait in the all-reduce for rank 1, which computes for twice as long.
        As soon as rank 1 comes, the exchange runs and ends on all ranks at the same time. Ranks 0 and 2 have spent most of the step in the
        exchange, rank 1 the least of all: the rank that waits least is the slow one.""",
    )
    for rank, compute in enumerate((210, 440, 230)):
        y = 34 + 40 * rank
        d.text(8, y + 19, f"rank {rank}", "strong", "start")
        d.box(70, y, compute, 28, "compute", "compute")
        if compute < 440:
            d.box(70 + compute, y, 440 - compute, 28, "waits for rank 1", "cell")
        d.box(510, y, 96, 28, "all-reduce", "send")
        d.box(606, y, 60, 28, "step", "compute")
    d.span(280, 606, 24, "rank 0 counts all of this as exchange")
    d.arrow(70, 164, 666, 164)
    d.text(676, 168, "time", "faint", "start")
    d.text(368, 184, "the rank with the shortest exchange is the slow one", "faint")
    return d


def two_streams_and_an_event():
    d = Drawing(
        "two-streams-and-an-event", 712, 250, "A kernel and a collective on two streams, with events and without",
        """Two streams over time, twice. Above, with events: the compute stream runs backward of layer 0, then of layer 1; the
        communication stream waits for the end of backward 0 and then all-reduces layer 0 while backward 1 runs; the optimizer waits for the
        all-reduces. Below, without events: the all-reduce of layer 0 begins before backward 0 has ended and averages what was in the buffer
        before, and the optimizer begins before the all-reduces have ended.""",
    )
    for y, title, kernels, collectives in (
        (18, "with events", ((130, "backward 0"), (250, "backward 1"), (530, "optimizer")), ((256, "all-reduce 0"), (392, "all-reduce 1"))),
        (142, "without", ((130, "backward 0"), (250, "backward 1"), (370, "optimizer")), ((130, "all-reduce 0"), (266, "all-reduce 1"))),
    ):
        d.text(8, y + 6, title, "strong", "start")
        d.text(8, y + 34, "compute", anchor="start")
        d.text(8, y + 78, "communication", anchor="start")
        for x, words in kernels:
            d.box(x, y + 14, 114, 30, words, "compute")
        for x, words in collectives:
            d.box(x, y + 58, 130, 30, words, "send")
    d.arrow(244, 62, 262, 76)
    d.arrow(364, 62, 398, 76)
    d.arrow(522, 84, 540, 62)
    d.text(660, 52, "right", "faint", "start")
    d.text(500, 176, "reads what is not averaged yet", "faint", "start")
    d.text(412, 220, "averages what was there before", "faint", "start")
    return d


def a_worker_dies():
    d = Drawing(
        "a-worker-dies", 712, 214, "What the launcher does when a worker dies",
        """Three lanes over time. Rank 1 dies. The kernel tells the launcher at once. The launcher sends SIGTERM to rank 0, which is
        stuck in an all-reduce, and SIGKILL after --stop-timeout if it is still there. When all are gone, and if a restart is left, it starts
        both ranks again; they resume from the newest snapshot. If none is left, it prints the report and ends with exit code 1.""",
    )
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


def who_holds_what():
    d = Drawing(
        "who-holds-what", 712, 262, "What two ranks hold in four schemes",
        """Parameters, gradients and optimizer states of a model of four layers, on two ranks. With DDP both ranks hold all of them. With
        ZeRO's first stage both hold all parameters and gradients, and each half of the states. With tensor parallelism each rank holds half
        of every layer: the upper half is rank 0's, the lower half rank 1's. In a pipeline rank 0 holds the first two layers and rank 1 the
        last two. The batch: in DDP and ZeRO each rank has half of it, with tensor parallelism both have all of it, and through a pipeline it
        goes in micro-batches.""",
    )
    schemes = (("DDP", "half the batch each"), ("ZeRO, stage 1", "half the batch each"), ("tensor", "the whole batch each"),
               ("pipeline", "micro-batches in turn"))  # fmt: skip
    for column, (scheme, batch) in enumerate(schemes):
        left = 96 + 156 * column
        d.text(left + 62, 20, scheme, "strong")
        for rank in range(2):
            for row in range(3):
                y = 34 + 108 * rank + 28 * row
                for layer in range(4):
                    x = left + 32 * layer
                    d.box(x, y, 28, 22)
                    mine = {"tensor": True, "pipeline": layer // 2 == rank}.get(scheme, True)
                    if scheme.startswith("ZeRO") and row == 2:
                        mine = layer % 2 == rank
                    if mine:
                        half = scheme == "tensor"
                        d.box(x, y + (11 if half and rank == 1 else 0), 28, 11 if half else 22, "", "done")
        d.text(left + 62, 252, batch, "faint")
    for rank in range(2):
        for row, what in enumerate(("parameters", "gradients", "states")):
            d.text(8, 50 + 108 * rank + 28 * row, what, "faint", "start")
        d.text(8, 20 + 114 * rank, f"rank {rank}", "strong", "start")
    return d


def column_then_row():
    d = Drawing(
        "column-then-row", 712, 190, "Two layers on two ranks with one all-reduce",
        """Both ranks begin with the same inputs x. Each has half of the outputs of the first layer, and computes them whole, so it can apply the
        ReLU alone. These are half of the inputs of the second layer: each rank multiplies them by its columns of the second weight and gets
        a summand of the outputs. One all-reduce adds up the summands, and both ranks have y.""",
    )
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


def a_pipeline_is_filled():
    d = Drawing(
        "a-pipeline-is-filled", 712, 290, "GPipe and 1F1B on three stages with four micro-batches",
        """Two tables over time, with a row for each of three stages and a column for each unit of time, of which there are twelve. GPipe: stage 0
        does F0 to F3, waits for four units, then does B3 to B0; the stages after it do the same, one and two units later. 1F1B: stage 0 does
        F0 to F2, waits for two units, then B0, F3, B1, a wait, B2, a wait, B3; the last stage does F0, B0, F1, B1 and so on without a wait. Both
        take twelve units, and each stage waits in four of them: a third. With GPipe stage 0 holds four micro-batches at once, with 1F1B
        three.""",
    )
    tables = (
        ("GPipe", ("F0 F1 F2 F3 . . . . B3 B2 B1 B0", ". F0 F1 F2 F3 . . B3 B2 B1 B0 .", ". . F0 F1 F2 F3 B3 B2 B1 B0 . ."), (4, 4, 4)),
        ("1F1B", ("F0 F1 F2 . . B0 F3 B1 . B2 . B3", ". F0 F1 . B0 F2 B1 F3 B2 . B3 .", ". . F0 B0 F1 B1 F2 B2 F3 B3 . ."), (3, 2, 1)),
    )
    for number, (name, rows, held) in enumerate(tables):
        top = 30 + 132 * number
        d.text(8, top - 10, name, "strong", "start")
        for stage, row in enumerate(rows):
            y = top + 32 * stage
            d.text(8, y + 19, f"stage {stage}", "", "start")
            for place, action in enumerate(row.split()):
                kind = {"F": "compute", "B": "done"}.get(action[0], "cell")
                d.box(70 + 44 * place, y, 42, 28, "" if action == "." else action, kind)
            d.text(608, y + 19, f"holds {held[stage]}", "faint", "start")
    d.arrow(70, 276, 598, 276)
    d.text(608, 280, "time", "faint", "start")
    return d


PICTURES = (
    a_killed_rank, the_training_step, shares_of_an_epoch, process_trees, ranks_on_two_nodes, who_waits_for_whom, eight_collectives,
    a_snapshot_is_saved, batch_norm_over_ranks, who_loads_what, nodes_and_store, the_slow_rank_waits_least, a_worker_dies,
    two_streams_and_an_event,
    who_holds_what, column_then_row, a_pipeline_is_filled,
)  # fmt: skip


def faults():
    """The pictures that are not as this script draws them."""
    for drawing in (picture() for picture in PICTURES):
        path = BOOK / "pictures" / f"{drawing.name}.svg"
        if not path.exists() or path.read_text() != drawing.svg():
            yield f"{path.name} is not as scripts/pictures.py draws it"


def main(arguments):
    if arguments == ["--check"]:
        found = list(faults())
        print("\n".join(f"pictures: {fault}" for fault in found) or "pictures: in order")
        return 1 if found else 0
    if arguments:
        print(__doc__.strip())
        return 0 if arguments == ["--help"] else 2
    for drawing in (picture() for picture in PICTURES):
        (BOOK / "pictures" / f"{drawing.name}.svg").write_text(drawing.svg())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
