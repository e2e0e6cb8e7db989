"""Lab 06's Python program with the arguments, the events and the files of weights of the Rust one, for `lockstep tour`.

`snapshot_resume.py`, which lies next to this file, trains as it is: what is recorded here is seen from outside. Snapshots are of whole
epochs, so `--save-every-steps` and `--keep` change nothing. It trains on the CPU, whose bits repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import time
from pathlib import Path
from typing import Any, Iterator

# Before torch is imported: it looks for GPUs, and makes a folder for compiled code.
os.environ.update(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="")
os.environ.update(TORCHINDUCTOR_CACHE_DIR=str(Path(__file__).with_name("compiled")))

import snapshot_resume as lab
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

RANK = int(os.environ["RANK"])


class Recorder:
    """Where this rank is in its training, and the file of its events: a JSON object a line, each appended with one write."""

    def __init__(self, batch_size: int) -> None:
        folder = os.environ["LOCKSTEP_EVENTS"]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.file = os.open(os.path.join(folder, f"rank-{RANK}.jsonl"), flags, 0o644)
        self.plan = os.environ["LOCKSTEP_FAULTS"]
        self.faults = json.loads(Path(self.plan).read_text())["faults"]
        self.batch_size = batch_size
        self.epoch = self.step = self.samples = 0
        self.loss = 0.0
        self.model: torch.nn.Module | None = None

    def emit(self, event: str, **fields: Any) -> None:
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        line = {"t": time.time(), "rank": RANK, "restart": restart, "event": event, **fields}
        os.write(self.file, (json.dumps(line) + "\n").encode())

    def stepped(self) -> None:
        self.emit("step", epoch=self.epoch, step=self.step, loss=self.loss, samples=self.samples)
        for fault in self.faults:
            at = fault["at"]
            here = (at["point"], at["epoch"], at["step"]) == ("step", self.epoch, self.step)
            if here and fault["rank"] == RANK and self.is_first(fault["name"]):
                for act in fault["acts"]:
                    os.kill(os.getpid(), act["signal"])
        self.step += 1

    def is_first(self, fault: str) -> bool:
        """A fault comes once in a job: the restarted rank finds the file."""
        try:
            os.close(os.open(f"{self.plan}.fired-{fault}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def observe(recorder: Recorder) -> None:
    """Puts the recorder's eyes around what the lab calls."""
    functional, sampler = lab.F, lab.DistributedSampler
    cross_entropy, indices, set_epoch = functional.cross_entropy, sampler.__iter__, sampler.set_epoch
    load, save, evaluate, join = lab.load_snapshot, lab.save_snapshot, lab.evaluate, lab.join

    def seen_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        loss = cross_entropy(logits, labels, **options)
        recorder.loss, recorder.samples = loss.item(), len(labels)
        return loss

    def seen_set_epoch(self: Any, epoch: int) -> None:
        set_epoch(self, epoch)
        recorder.epoch, recorder.step = epoch, 0

    def seen_indices(self: Any) -> Iterator[int]:
        order = list(indices(self))
        steps = -(-len(order) // recorder.batch_size)
        recorder.emit("epoch", epoch=recorder.epoch, steps=steps, batch_size=recorder.batch_size)
        recorder.emit("samples", epoch=recorder.epoch, indices=order)
        return iter(order)

    def seen_load(path: Path, model: torch.nn.Module, *others: Any) -> int:
        recorder.model = model
        epoch = load(path, model, *others)
        if epoch > 0:
            recorder.emit("resume", epoch=epoch, step=0, path=str(path))
        return epoch

    def seen_save(path: Path, epochs_done: int, *others: Any) -> None:
        begin = time.monotonic()
        save(path, epochs_done, *others)
        if RANK == 0:
            seconds, size = time.monotonic() - begin, path.stat().st_size
            recorder.emit("snapshot", epoch=epochs_done, step=0, path=str(path), bytes=size, seconds=seconds)

    def seen_evaluate(*args: Any) -> torch.Tensor:
        sums = evaluate(*args)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        recorder.emit("eval", epoch=recorder.epoch, accuracy=accuracy, loss=loss, samples=int(sums[2]))
        return sums

    def seen_join() -> torch.device:
        device = join()
        world_size = torch.distributed.get_world_size()
        recorder.emit("start", world_size=world_size, device=str(device), pid=os.getpid())
        return device

    functional.cross_entropy, sampler.__iter__, sampler.set_epoch = seen_cross_entropy, seen_indices, seen_set_epoch
    lab.load_snapshot, lab.save_snapshot, lab.evaluate, lab.join = seen_load, seen_save, seen_evaluate, seen_join
    register_optimizer_step_post_hook(lambda *_: recorder.stepped())


def write_weights(model: torch.nn.Module, path: Path) -> None:
    """A safetensors file: the length of a JSON header, the header, and the values of all tensors one after the other."""
    header: dict[str, Any] = {}
    values = bytearray()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32, name
        own = bytes(tensor.flatten().view(torch.uint8).tolist())
        offsets = [len(values), len(values) + len(own)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        values += own
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + values)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ["--snapshots", "--weights", "--data"]:
        parser.add_argument(name, type=Path, required=True)
    for name in ["--epochs", "--batch-size", "--seed", "--samples", "--save-every-steps", "--keep"]:
        parser.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    recorder = Recorder(args.batch_size)
    observe(recorder)
    args.lr, args.snapshot = 0.01, args.snapshots / "snapshot.pt"
    lab.train(args, lab.join())
    assert isinstance(recorder.model, torch.nn.parallel.DistributedDataParallel)
    write_weights(recorder.model.module, args.weights / f"rank-{RANK}.safetensors")
    recorder.emit("exit", code=0)
    lab.leave()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
