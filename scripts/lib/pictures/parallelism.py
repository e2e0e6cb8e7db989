"""Drawings of divided models: what a rank holds, parts of layers, a pipeline, a ring, experts, and all of these side by side."""

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


def keys_go_round(narrow):
    left, pitch, cell, wide = (66, 70, 22, 33) if narrow else (104, 164, 44, 62)
    ranks, first, tall, row = 4, 110, 20, 80
    d = Drawing(
        "keys-go-round", *((340, 466) if narrow else (712, 434)), "Attention on four ranks while keys and values go round",
        """A sequence of eight chunks: rank 0 holds the chunks 0 and 7, rank 1 the chunks 1 and 6, rank 2 the chunks 2 and 5, rank 3 the
        chunks 3 and 4. Below, a row for each rank and a column for each of four steps: a grid of two by two pairs, the rank's two chunks
        of queries against the two chunks of keys that it has in the step. Arrows lead from each grid down to the next rank's in the next
        step. In the first step, with its own keys, a rank computes one pair whole and two pairs by half, up to the diagonal. In later steps
        it computes two of the four: if the keys come from a lower rank, both chunks of queries with the first chunk of keys; if from a
        higher rank, the second chunk of queries with both chunks of keys. That is as much work for every rank in every step.""", narrow,
    )
    d.text(8, 25, "chunk", "strong", "start")
    d.text(8, 50, "of rank", "faint", "start")
    for chunk in range(2 * ranks):
        rank = min(chunk, 2 * ranks - 1 - chunk)
        d.box(left + wide * chunk, 8, wide - 2, 24, str(chunk), "done" if rank == 0 else "cell")
        d.text(left + wide * (chunk + 0.5) - 1, 50, str(rank), "faint")
    for step in range(ranks):
        x = left + pitch * step
        d.text(x + cell, first - 26, f"step {step}", "strong")
        for rank in range(ranks):
            y, source = first + row * rank, (rank - step) % ranks
            queries, keys = (rank, 2 * ranks - 1 - rank), (source, 2 * ranks - 1 - source)
            kind = "done" if source == 0 else "compute"
            if step == 0:
                d.text(8, y - 5 if narrow else y + 25, f"rank {rank}", "strong", "start")
            for place in range(2):
                d.text(x + cell * (place + 0.5), y - 5, str(keys[place]), "faint")
                d.text(x - 9, y + tall * (place + 0.5) + 4, str(queries[place]), "faint")
            for down, query in enumerate(queries):
                for across, key in enumerate(keys):
                    corner = x + cell * across, y + tall * down
                    d.box(*corner, cell, tall, "", kind if key < query else "cell")
                    if key == query:
                        d.half(*corner, cell, tall, kind)
            if step < ranks - 1 and rank < ranks - 1:
                d.arrow(x + 2 * cell + 3, y + 2 * tall + 3, x + pitch - 8, y + row - 18)
    computed = "\nFilled: computed; coloured:" if narrow else " Filled: what is computed; coloured:"
    words = f"Columns: chunks of keys; rows: chunks of queries.{computed} with rank 0's keys.\nFrom rank 3, keys and values go to rank 0."
    d.lines(8, first + row * ranks - 16, words, anchor="start")
    return d


def tokens_to_experts(narrow):
    width, token, pitch, place_wide = (340, 28, 34, 20) if narrow else (712, 48, 66, 34)
    columns = ((4, 154), (166, 170)) if narrow else ((92, 284), (396, 312))
    top, middle, bottom = 30, 140, 274
    d = Drawing(
        "tokens-to-experts", width, 374 if narrow else 356, "Tokens of two ranks on the way to their experts and back",
        """Rank 0 has the tokens a, b, c and d and the experts 0 and 1, rank 1 the tokens e, f, g and h and the experts 2 and 3. Each expert
        has three places. An all-to-all brings d to expert 0, a, c and f to expert 1, b and g to expert 2, and e to expert 3. A second one
        brings them back to their ranks and places. Token h also wants to go to expert 1, which is full: it passes by the experts,
        unchanged.""", narrow,
    )
    kind_of = lambda name: "done" if name in "abcd" else "compute"
    if not narrow:
        d.lanes((top + 21, "tokens"), (middle + 36, "experts"), (bottom + 21, "tokens"))
        for y in (top + 76, bottom - 28):
            d.text(8, y, "all-to-all", "faint", "start")
    seat = {}
    for rank, (left, wide) in enumerate(columns):
        d.box(left, 22, wide, bottom + 20, kind="dotted")
        d.text(left, 17, f"rank {rank}", "strong", "start")
        for at, chosen in enumerate((("d", "acf"), ("bg", "e"))[rank]):
            expert = 3 * place_wide + 10
            x = left + (4 if narrow else 12) + (expert + (6 if narrow else 14)) * at
            d.box(x, middle, expert, 58)
            d.text(x + expert / 2, middle + 17, f"expert {2 * rank + at}")
            for place in range(3):
                name = chosen[place : place + 1]
                d.box(x + 6 + place_wide * place, middle + 26, place_wide - 2, 24, name, kind_of(name) if name else "cell")
                seat[name] = x + 5 + place_wide * (place + 0.5)
    for number, name in enumerate("abcdefgh"):
        left, _ = columns[number // 4]
        x = left + (8 if narrow else 12) + pitch * (number % 4)
        for y in (top, bottom):
            d.box(x, y, token, 32, name, kind_of(name))
        if name in seat:
            d.arrow(x + token / 2, top + 32, seat[name], middle)
            d.arrow(seat[name], middle + 58, x + token / 2, bottom)
        else:
            past = left + columns[1][1] - (9 if narrow else 20)
            d.arrow(x + token, top + 16, past, top + 16, past, bottom + 16, x + token, bottom + 16)
    words = "Expert 1 has three places and is full: token h, which also chose it, passes by."
    if narrow:
        words = "An all-to-all brings tokens to their experts, another\none brings them back. Expert 1 is full: h passes by."
    d.lines(8, bottom + 66, words, anchor="start")
    return d


def five_dimensions(narrow):
    rows = (
        ("data", "the batch", "all gradients,\nonce a step", "a model that fits on a rank,\nor that is sharded"),
        ("tensor", "each layer", "all activations, twice\na block in each pass", "the fastest links:\nwithin a node"),
        ("pipeline", "the blocks", "activations,\nto neighbours", "many micro-batches,\nor most ranks wait"),
        ("context", "each sequence", "keys and values round\na ring; gradients", "long sequences"),
        ("expert", "the experts,\nand the batch", "tokens to their experts\nand back; gradients",
         "equal shares of the tokens\nfor the experts"),
    )  # fmt: skip
    height, top = (134, 12) if narrow else (70, 26)
    d = Drawing(
        "five-dimensions", *((340, 722) if narrow else (712, 398)), "Five dimensions in which a training step is divided",
        """Five rows, each with a batch of four sequences and a model of four blocks, of which each is attention and then two layers or
        experts. What only rank 0 has is coloured, what only rank 1 has is grey, and what both have is white. Data: half of the
        sequences are rank 0's, the model is white. Tensor: the upper half of every layer is rank 0's, the lower half rank 1's; the batch is
        white. Pipeline: the first two blocks are rank 0's, the others rank 1's; the batch is white. Context: of each sequence, the first and the
        last quarter are rank 0's, the middle is rank 1's; the model is white. Expert: half of the sequences are rank 0's, attention is
        white, and of four experts in each block two are rank 0's and two rank 1's. Next to it stands what each divides, sends and
        needs.""", narrow,
    )
    batch, model = (76, 166) if narrow else (78, 154)
    texts = 296, 400, 544
    for x, words in zip((batch, model, *texts), ("batch", "model", "divides", "sends", "needs")[: 2 if narrow else 5]):
        d.text(x, 17, words, "strong", "start")
    own = "done", "compute"
    for number, (name, *words) in enumerate(rows):
        y = top + height * number + 10
        d.text(8, y + 31, name, "strong", "start")
        for line in range(4):
            for chunk in range(4):
                kind = {"data": own[line // 2], "expert": own[line // 2], "context": own[chunk in (1, 2)]}.get(name, "cell")
                d.box(batch + 14 * chunk, y + 13 * line, 14, 13, "", kind)
        for block in range(4):
            for part, wide in ((0, 10), (12, 16)):
                pieces = 2 if name == "tensor" else 4 if name == "expert" and part else 1
                for piece in range(pieces):
                    kind = own[2 * piece // pieces] if pieces > 1 else own[block // 2] if name == "pipeline" else "cell"
                    d.box(model + 32 * block + part, y + 52 / pieces * piece, wide, 52 / pieces, "", kind)
        for at, (what, lines) in enumerate(zip(("divides", "sends", "needs"), words)):
            if narrow:
                d.text(8, y + 72 + 16 * at, what, "faint", "start")
                d.text(62, y + 72 + 16 * at, lines.replace("\n", " "), "faint", "start")
            else:
                d.lines(texts[at], y + (22 if "\n" in lines else 30), lines, anchor="start")
    block = "\nA block is attention, and layers or experts." if narrow else " A block is attention, and two layers or experts."
    words = f"Coloured: only rank 0 has it; grey: rank 1; white: both.{block}"
    d.lines(8, top + height * 5 + 16, words, anchor="start")
    return d
