

"""The same as crates/bench-ranks/src/snapshots.rs in Python: the same tensors with torch.save and torch.load.

With `--sync` the file is complete or not there whatever happens, as Lockstep's is: written under another name, synced, renamed, and
the folder synced.
"""

import functools
import os
import statistics
import sys
import time

import torch


class Saver:
    def __init__(self, layers):
        scale = (3.0 / 1024) ** 0.5
        self.layers = [torch.nn.Parameter(formula((1024, 1024), 1 + layer, scale)) for layer in range(layers)]  # noqa: F821
        self.optimizer = torch.optim.SGD(self.layers, lr=0.0, momentum=0.9)
        self.inputs = formula((16, 1024), 0, 1.0)  # noqa: F821
        self.step()

    def step(self):
        begun = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        functools.reduce(torch.matmul, self.layers, self.inputs).square().mean().backward()
        self.optimizer.step()
        return time.perf_counter() - begun

    def save(self, path):
        state = {"model": {str(i): layer.detach() for i, layer in enumerate(self.layers)}, "optimizer": self.optimizer.state_dict()}
        if "--sync" not in sys.argv:
            return torch.save(state, path)
        with open(path + ".part", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".part", path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def clear(self):
        """So that the sum shows that loading gives the weights back."""
        with torch.no_grad():
            for layer in self.layers:
                layer.zero_()

    def load(self, path):
        state = torch.load(path, weights_only=True)
        with torch.no_grad():
            for layer, saved in zip(self.layers, state["model"].values()):
                layer.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])


@functools.cache
def saver(layers):
    return Saver(layers)


def snapshot(order, rank, world):
    mine = saver(order["layers"])
    plain = statistics.median(mine.step() for _ in range(5))
    os.makedirs(order["folder"], exist_ok=True)
    path = os.path.join(order["folder"], "snapshot.pt")
    begun = time.perf_counter()
    mine.save(path)
    written = time.perf_counter() - begun
    size = os.path.getsize(path)
    mine.clear()
    begun = time.perf_counter()
    mine.load(path)
    loaded = time.perf_counter() - begun
    total = sum(layer.detach().abs().sum(dtype=torch.float64).item() for layer in mine.layers)
    times = {"plain": plain, "stall": written, "lost": 0.0, "written": written, "loaded": loaded}
    return times | {"bytes": size, "sum": total}
