"""Saves a checkpoint when a signal asks for one: SIGUSR1 saves, SIGUSR2 saves and ends with code 75, and so does SIGTERM where
`lockstep run --snapshot-on=SIGTERM` says so, as it does by itself under Slurm and PBS. Start the job again to go on."""

import os, signal, sys, time

import torch
import torch.distributed as dist


class SaveOnSignal:
    def __init__(self, path):
        self.path, self.requests, self.first = path, [], None
        for name in {"SIGUSR1", "SIGUSR2", *os.environ.get("LOCKSTEP_SNAPSHOT_ON", "").split(",")} - {""}:
            signal.signal(signal.Signals[name], self.note)

    def note(self, number, frame):
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            self.first = self.first or time.monotonic()  # Slurm sends it twice at once
            if time.monotonic() > self.first + 2:  # a second one ends at once
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
        self.requests.append(1 if number == signal.SIGUSR1 else 2)

    def load(self):
        """What was saved last; None at the first start."""
        return torch.load(self.path, map_location="cpu") if os.path.exists(self.path) else None

    def after_step(self, state):
        """All ranks call this after each step; `state` is a function that returns what to save."""
        seen = len(self.requests)
        request = torch.tensor(max(self.requests[:seen], default=0), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        del self.requests[:seen]  # not one that has arrived meanwhile
        dist.all_reduce(request, op=dist.ReduceOp.MAX)
        if request > 0 and dist.get_rank() == 0:
            torch.save(state(), self.path + ".partial")
            os.replace(self.path + ".partial", self.path)  # never half a checkpoint
        if request > 1:
            dist.barrier()  # no rank ends before the checkpoint is on disk
            sys.stdout.flush()
            os._exit(75)  # without the interpreter's finalization, in which threads of PyTorch may abort


def spare_loader(worker):
    """`worker_init_fn` of a DataLoader: Slurm signals all processes of a job, and a batch may still be needed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
