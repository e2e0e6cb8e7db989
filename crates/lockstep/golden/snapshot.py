#!/usr/bin/env python3
"""Writes snapshot.safetensors: a snapshot of schema 1 assembled by hand, byte for byte, and
snapshot_state.safetensors: the same with the program's own state.

Needs Python's standard library only, and writes to the folder given, or over the committed files. A test of the crate's writer
must give the same bytes, so that the format cannot drift unnoticed. What the entries mean: crates/lockstep/src/snapshot/mod.rs.
"""

import json
import pathlib
import struct
import sys
import zlib

OUT = pathlib.Path(__file__).resolve().parent
PARAM = {"name": "w", "step": 3}
STATE = {"best": 0.1, "name": "\u00e9 \"lockstep.crc32\":\"00000000\""}
OPTIONS = {"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def snapshot(state=None):
    meta = {
        "position": {"epoch": 3, "step": 2, "samples": 16},
        "run": {"seed": 18446744073709551615, "samples": 50, "data": 7, "batch_size": 8},
        "world_size": 2,
        "threads": 1,
        "optimizer": {"groups": [{"optimizer": "SGD", "options": OPTIONS, "params": [PARAM]}]},
    }
    texts = {"format": "pt", "lockstep.crc32": "00000000", "lockstep.schema": "1", "lockstep.snapshot": compact(meta)}
    texts |= {} if state is None else {"lockstep.state": compact(state)}
    entries = {
        "__metadata__": texts,
        "model.n": {"data_offsets": [0, 8], "dtype": "I64", "shape": []},
        "model.w": {"data_offsets": [8, 16], "dtype": "F32", "shape": [2]},
        "optimizer.momentum_buffer.w": {"data_offsets": [16, 24], "dtype": "F32", "shape": [2]},
    }
    header = compact(entries).encode()
    header += b" " * (-len(header) % 8)
    data = struct.pack("<q4f", -5, 1.5, -0.0, 0.25, 2.0)
    whole = struct.pack("<Q", len(header)) + header + data
    place = b'"lockstep.crc32":"%s"'
    assert whole.count(place % b"00000000") == 1
    return whole.replace(place % b"00000000", place % b"%08x" % zlib.crc32(whole))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    (folder / "snapshot.safetensors").write_bytes(snapshot())
    (folder / "snapshot_state.safetensors").write_bytes(snapshot(STATE))
