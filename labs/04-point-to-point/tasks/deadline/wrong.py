"""Answers to `deadline`: wrong ones, and unusual right ones."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from lockstep_exercise import edit
from lockstep_exercise.lab_04 import Gone, Late, Message


# Waits without a deadline.
@edit(".wait(patience)", ".wait()")
def no_deadline(): ...


# Each error is a deadline that has passed.
@edit('        if "timed out" in text:\n            return Late()\n        if "closed" in text or "reset" in text:\n            return Gone()\n        raise\n', "        return Late()\n")
def always_late(): ...


# Each other error is a peer that is gone.
@edit('        if "closed" in text or "reset" in text:\n            return Gone()\n        raise\n', "        return Gone()\n")
def otherwise_gone(): ...


# Catches nothing.
@edit("except RuntimeError as error:", "except TimeoutError as error:")
def other_exception(): ...


# Drops the fraction of a second.
@edit("wait(patience)", "wait(timedelta(seconds=int(patience.total_seconds()) or 0.001))")
def whole_seconds(): ...


# Looks whether the request has ended, instead of waiting.
def polls(group: dist.ProcessGroup, peer: int, length: int, patience: timedelta) -> Message | Late | Gone:
    buffer = torch.zeros(length, dtype=torch.float64)
    work = dist.irecv(buffer, peer, group=group)
    end = time.monotonic() + patience.total_seconds()
    while time.monotonic() < end:
        if work.is_completed():
            return Message(buffer)
        time.sleep(0.01)
    return Late()


# Measures the time after `recv` has returned.
def too_late(group: dist.ProcessGroup, peer: int, length: int, patience: timedelta) -> Message | Late | Gone:
    buffer, begin = torch.zeros(length, dtype=torch.float64), time.monotonic()
    dist.recv(buffer, peer, group=group)
    return Message(buffer) if time.monotonic() - begin < patience.total_seconds() else Late()


# Tries a second time.
@edit("            return Late()\n", "            try:\n                dist.irecv(buffer, peer, group=group).wait(patience)\n                return Message(buffer)\n            except RuntimeError:\n                return Late()\n")
def tries_again(): ...


# Returns the class and not a result.
@edit("return Late()", "return Late")
def a_class(): ...
