"""The Python rank of tests/it/procs_python.rs: joins the default group as any script does, and talks to a Rust rank.

Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; prints one line "done" when everything was as expected.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

if "LOCKSTEP_TEST_PORT_FILE" in os.environ:
    # This rank hosts the store: choose a free port and tell the Rust rank.
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    path = os.environ["LOCKSTEP_TEST_PORT_FILE"]
    with open(path + ".partial", "w") as file:
        file.write(str(store.port))
    os.rename(path + ".partial", path)
    # What init_process_group itself puts around the store that it opens for env://.
    store = dist.PrefixStore("default_pg", store)
    dist.init_process_group(
        "gloo", store=store, rank=int(os.environ["RANK"]), world_size=2, timeout=timedelta(seconds=60)
    )
else:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, other = dist.get_rank(), 1 - dist.get_rank()

t = torch.tensor([1.0, 2.0]) * (rank + 1)
dist.all_reduce(t)
assert t.tolist() == [3.0, 6.0], t

t = torch.tensor([float(rank)])
dist.broadcast(t, src=other)
assert t.item() == other, t

outputs = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
own = torch.tensor([10 + rank])  # by name: were the group's thread its last holder, it would need the interpreter to let go
dist.all_gather(outputs, own)
assert [o.item() for o in outputs] == [10, 11], outputs

first = dist.new_group([rank])
both = dist.new_group([0, 1])
t = torch.tensor([5.0 + rank])
dist.all_reduce(t, op=dist.ReduceOp.MAX, group=both)
assert t.item() == 6.0, t

t = torch.zeros(3)
dist.recv(t, src=other, tag=7)
dist.send(t * 2, dst=other, tag=8)

# DistributedDataParallel of PyTorch 2.11 crashes under DETAIL on Gloo: its logger takes the wrapped group for a plain one.
if os.environ.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL":
    model = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(float(rank))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    assert (model.weight == 0).all(), "rank 0's weights are everyone's"
    ddp(torch.full((1, 4), float(rank + 1))).sum().backward()
    assert (model.weight.grad == 1.5).all(), model.weight.grad

dist.barrier()
print("done")
dist.destroy_process_group()
# Without the interpreter's finalization, in which a thread of Gloo or autograd may still ask for the interpreter and abort.
sys.stdout.flush()
os._exit(0)
