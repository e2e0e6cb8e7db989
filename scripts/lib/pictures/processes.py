"""Drawings of processes: who starts them, on which nodes, how they meet, and what follows when one dies."""

from lib.drawing import Drawing


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
        note = "WORLD_SIZE 5: both nodes together.\nRANK counts through the job.\nLOCAL_RANK begins at 0 on each node."
        d.lines(8, 338, note, anchor="start")
    else:
        d.span(124, 662, 22, "WORLD_SIZE 5")
        d.text(394, 198, "RANK counts through the job. LOCAL_RANK begins at 0 on each node.", "faint")
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


def a_worker_dies(narrow):
    d = Drawing(
        "a-worker-dies", *((340, 256) if narrow else (712, 214)), "What the launcher does when a worker dies",
        """Three lanes over time. Rank 1 dies. The kernel tells the launcher at once. The launcher sends SIGTERM to rank 0, which is stuck
        in an all-reduce, and SIGKILL after --shutdown-timeout if it is still there. When all are gone, and if a restart is left, it starts both
        ranks again; they resume from the newest snapshot. If none is left, it prints the report and ends with exit code 1.""", narrow,
    )
    if narrow:
        d.lanes((45, "launcher"), (124, "rank 1"), (202, "rank 0"))
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
        d.time(70, 296, 238)
        return d
    d.lanes((40, "launcher"), (100, "rank 1"), (160, "rank 0"))
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
    d.time(84, 652, 198, 10)
    return d
