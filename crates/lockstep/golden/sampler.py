"""Writes sampler.json: the indices that PyTorch itself draws, for the tests of `lockstep::sampler`.

Run it with any Python that has torch 2.11 (CPU is enough, numpy is not needed):

    python crates/lockstep/golden/sampler.py

The two largest permutations take about 2 GB of memory and some 30 seconds. Short index lists are stored whole,
long ones as CRC-32 of their little-endian 64-bit integers, with both ends in plain text.
"""

import array
import ctypes
import json
import pathlib
import sys
import zlib

import torch
from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler

OUT = pathlib.Path(__file__).with_name("sampler.json")

# torch.randperm draws 32 bits a step below this length and 64 bits a step from it on (2**32 - 1 over 20).
WIDE_FROM = (2**32 - 1) // 20

# (seed, epoch): zero, a later epoch, a seed of which only the low half counts, a sum that carries into bit 32, and the largest
# sum that torch accepts.
KEYS = [(0, 0), (0, 1), (42, 3), (2**32 + 7, 5), (2**32 - 1, 1), (2**64 - 6, 5)]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def crc32(indices):
    return zlib.crc32(array.array("Q", indices).tobytes())


def digest(indices):
    return {"count": len(indices), "first": indices[:4], "last": indices[-4:], "crc32": crc32(indices)}


def digest_of_large(order):
    """The same digest straight from the tensor's memory: a list of 200 million ints would need 8 GB."""
    raw = (ctypes.c_char * (8 * order.numel())).from_address(order.data_ptr())
    ends = {"first": order[:4].tolist(), "last": order[-4:].tolist()}
    return {"count": order.numel(), **ends, "crc32": zlib.crc32(raw)}


def permutation(n, seed):
    return {"n": n, "seed": seed, **digest(torch.randperm(n, generator=generator(seed)).tolist())}


def large_permutation(n, seed):
    return {"n": n, "seed": seed, **digest_of_large(torch.randperm(n, generator=generator(seed)))}


def wide_shuffle(n, seed):
    """The algorithm of the large permutations at a length that can be stored, over torch's own 64-bit stream."""
    stream = torch.empty(n, dtype=torch.int64).random_(-(2**63), None, generator=generator(seed)).tolist()
    order = []
    for i, drawn in enumerate(stream):
        z = drawn % 2**64 % (i + 1)
        order.append(i)
        order[i] = order[z]
        order[z] = i
    return {"n": n, "seed": seed, "order": order}


def shards(length, world, shuffle, drop_last, key):
    seed, epoch = key
    ranks = []
    for rank in range(world):
        sampler = DistributedSampler(
            range(length), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
    case = {"len": length, "world": world, "shuffle": shuffle, "drop_last": drop_last, "seed": seed, "epoch": epoch}
    if length <= 10:
        return {**case, "ranks": ranks}
    return {**case, "per_rank": len(ranks[0]), "crc32": crc32([i for rank in ranks for i in rank])}


def all_shards():
    cases = []
    for length in [0, 1, 2, 5, 10, 17, 100, 1000]:
        for world in range(1, 6):
            for drop_last in (False, True):
                at = len(cases)
                cases.append(shards(length, world, False, drop_last, KEYS[at % len(KEYS)]))
                for turn in (0, 1, 2):
                    cases.append(shards(length, world, True, drop_last, KEYS[(at // 4 + 2 * turn) % len(KEYS)]))
    cases.append(shards(100_000, 3, True, False, (42, 3)))
    return cases


def random_order(n, seed, epoch):
    order = list(RandomSampler(range(n), generator=generator(seed + epoch)))
    return {"len": n, "seed": seed, "epoch": epoch, **digest(order)}


def main():
    assert torch.__version__.startswith("2.11."), f"torch 2.11 is wanted, this is {torch.__version__}"
    assert sys.byteorder == "little"
    lengths = [0, 1, 2, 3, 17, 623, 624, 625, 1000, 100_000, 1_000_000]
    golden = {
        "torch": torch.__version__.split("+")[0],
        "randperm": [permutation(n, seed + epoch) for n in lengths for seed, epoch in KEYS[::2]]
        + [permutation(10, seed + epoch) for seed, epoch in KEYS],
        "randperm_large": [large_permutation(n, 3) for n in (WIDE_FROM - 1, WIDE_FROM)],
        "wide_shuffle": [wide_shuffle(n, seed) for n, seed in [(1, 0), (2, 9), (17, 3), (50, 2**32 + 7)]],
        "distributed": all_shards(),
        "random": [random_order(n, *key) for n, key in zip([1, 2, 10, 100, 625, 1000], KEYS)],
    }
    sections = []
    for name, value in golden.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in value) + "\n]"
        else:
            text = json.dumps(value)
        sections.append(f"{json.dumps(name)}: {text}")
    OUT.write_text("{\n" + ",\n".join(sections) + "\n}\n")


if __name__ == "__main__":
    main()
