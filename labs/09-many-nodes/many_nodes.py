"""Lab 09 in Python, started on each node: torchrun --nnodes=2 --node-rank=0 --nproc-per-node=1 --master-addr=HEAD many_nodes.py --data DIR, on
the second one with --node-rank=1 --nproc-per-node=3; or the same with lockstep run.

Lab 06's training on nodes with any numbers of workers. What is new is not in the training, so there is little here.
"""

import os
import socket
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.append(str(Path(__file__).parent.parent / "06-snapshot-resume"))
import snapshot_resume as lab_06  # noqa: E402


# ANCHOR: nodes
def nodes():
    """The nodes in the order of their first ranks: the host and the ranks of each."""
    members = [None] * dist.get_world_size()
    dist.all_gather_object(members, (os.environ.get("GROUP_RANK"), socket.gethostname()))
    ranks = {}
    for rank, member in enumerate(members):
        ranks.setdefault(member, []).append(str(rank))
    return [(host, ranks) for (_, host), ranks in ranks.items()]


def share(ranks, world):
    """The share of a node: DistributedSampler goes by rank and knows nothing of nodes."""
    return f"of every {world} samples, those at {' '.join(ranks)}"


def main(args):
    device = lab_06.join()
    world, found = dist.get_world_size(), nodes()
    if dist.get_rank() == 0:
        print(f"World size: {world}", flush=True)
        for number, (host, ranks) in enumerate(found):
            noun = "rank" if len(ranks) == 1 else "ranks"
            print(f"node {number}: {host}, {noun} {' '.join(ranks)}; {share(ranks, world)}", flush=True)
    lab_06.train(args, device)
    lab_06.leave()
# ANCHOR_END: nodes


if __name__ == "__main__":
    main(lab_06.arguments())
