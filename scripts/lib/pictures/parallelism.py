"""Drawings of divided models: what a rank holds, parts of layers, and a pipeline."""

from lib.drawing import Drawing


def who_holds_what(narrow):
    schemes = (("DDP", "half the batch"), ("ZeRO, stage 1", "half the batch"), ("fully sharded", "half the batch"),
               ("tensor", "the whole batch"), ("pipeline", "micro-batches"))  # fmt: skip
    columns, first, pitch, layer = (2, 76, 136, 30) if narrow else (len(schemes), 92, 126, 28)
    size = (340, 268 * -(-len(schemes) // columns) - 6) if narrow else (82 + pitch * len(schemes), 262)
    d = Drawing(
        "who-holds-what", *size, "What two ranks hold in five schemes",
        """Parameters, gradients and optimizer states of a model of four layers, on two ranks. With DDP both ranks hold all of them. With
        ZeRO's first stage both hold all parameters and gradients, and each half of the states. Fully sharded, each holds half of everything
        of every layer: the left half is rank 0's, the right half rank 1's. With tensor parallelism each rank holds half of every layer: the
        upper half is rank 0's, the lower half rank 1's. In a pipeline rank 0 holds the first two layers and rank 1 the last two. The batch:
        in DDP, ZeRO and fully sharded each rank has half of it, with tensor parallelism both have all of it, and through a pipeline it goes
        in micro-batches.""", narrow,
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
        """Both ranks begin with the same inputs x. Each has half of the outputs of the first layer, and computes them whole, so it can
        apply the ReLU alone. These are half of the inputs of the second layer: each rank multiplies them by its columns of the second
        weight and gets a summand of the outputs. One all-reduce adds up the summands, and both ranks have y.""", narrow,
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
        """Two tables over time, with a row for each of three stages and a column for each unit of time, of which there are twelve. GPipe:
        stage 0 does F0 to F3, waits for four units, then does B3 to B0; the stages after it do the same, one and two units later. 1F1B:
        stage 0 does F0 to F2, waits for two units, then B0, F3, B1, a wait, B2, a wait, B3; the last stage does F0, B0, F1, B1 and so on
        without a wait. Both take twelve units, and each stage waits in four of them: a third. With GPipe stage 0 holds four micro-batches
        at once, with 1F1B three.""", narrow,
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
    d.time(left, *((298, 286, 6) if narrow else (598, 276, 10)))
    return d
