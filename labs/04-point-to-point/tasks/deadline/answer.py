"""Task 4: a receive that gives up.

`recv` waits up to the group's timeout, which is half an hour with Gloo. To notice a silent peer earlier, wait with a deadline and look at the
exception: the peer may be late or gone. A late peer is worth another try; a peer that is gone is not.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

from lockstep_exercise.lab_04 import Gone, Late, Message


def deadline(group: dist.ProcessGroup, peer: int, length: int, patience: timedelta) -> Message | Late | Gone:
    """Receives `length` numbers (float64) from a peer, but waits no longer than `patience`. All other failures are raised."""
    buffer = torch.zeros(length, dtype=torch.float64)
    # <answer>
    #~ # The `wait` of a request takes a timeout. PyTorch raises RuntimeError for both failures; with Gloo, the text of one contains
    #~ # "Timed out" (in capitals or not), that of the other "closed" or "reset". `Message(buffer)`, `Late()` and `Gone()` are the results.
    #~ raise NotImplementedError("receive with a deadline, and distinguish late from gone")
    try:
        # A peer that is gone may cause an error when the receive starts or in the wait.
        dist.irecv(buffer, peer, group=group).wait(patience)
    except RuntimeError as error:
        text = str(error).lower()
        if "timed out" in text:
            return Late()
        if "closed" in text or "reset" in text:
            return Gone()
        raise
    return Message(buffer)
    # </answer>
