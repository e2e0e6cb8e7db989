"""Copies of this process, which has imported PyTorch, instead of new starts: importing takes seconds, a copy milliseconds.

The counterpart of `engine/process/src/template.rs`, which describes the requests: one packet on the standard input with the folder and the
environment, and descriptors for the reason why no copy could be made, the standard output and the error output. The answer is the copy's
process id.
"""

import array
import ctypes
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable

# The variable that tells a program to serve.
TEMPLATE = "LOCKSTEP_TEMPLATE"
# The variable with the agents above a process, the innermost last, and their separator.
AGENT = "LOCKSTEP_AGENT"
# The longest request, in bytes, and the number of its descriptors.
LONGEST = 128 << 10
DESCRIPTORS = 3
# Answers in place of a process id.
READY = 0
NO_COPY = -1
# prctl(2) and setrlimit(2); Python does not name them.
PR_SET_PDEATHSIG = 1
RLIMIT_LOCKS = 10


def serve(prepare: Callable[[dict[bytes, bytes]], None]) -> bool:
    """Waits for requests if this process was started to be copied. Returns true in each copy, and at once in any other process; false when
    the agent has gone. `prepare` is called with the variables of each request before the copy is made, to do once what all copies need."""
    if os.environ.pop(TEMPLATE, None) is None:
        return True
    agent, requests = os.getppid(), socket.socket(fileno=os.dup(0))
    _tell(requests, READY)
    while request := _receive(requests):
        packet, descriptors = request
        folder, variables = _unpacked(packet)
        prepare({name: value for name, value in variables.items() if value is not None})
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            _begin(folder, variables, descriptors, parent, agent, requests)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        if os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]) != 0:
            _tell(requests, NO_COPY)
    return False


def _receive(requests: socket.socket) -> tuple[bytes, list[int]] | None:
    """The next request; None if there will be none."""
    descriptors = array.array("i")
    packet, control, _, _ = requests.recvmsg(LONGEST, socket.CMSG_SPACE(DESCRIPTORS * descriptors.itemsize))
    if not packet:
        return None
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return packet, list(descriptors)


def _tell(requests: socket.socket, number: int) -> None:
    requests.send(struct.pack("=i", number))


def _unpacked(packet: bytes) -> tuple[bytes, dict[bytes, bytes | None]]:
    """The folder, and the variables to set, or to remove where there is no value."""
    folder, *parts = packet.removesuffix(b"\0").split(b"\0")
    pairs = (part.partition(b"=") for part in parts)
    return folder, {name: value if equals else None for name, equals, value in pairs}


def _begin(
    folder: bytes,
    variables: dict[bytes, bytes | None],
    descriptors: list[int],
    parent: int,
    agent: int,
    requests: socket.socket,
) -> None:
    """Applies the request to this process, which is a copy."""
    while os.getppid() == parent:
        os.sched_yield()  # the process between ends
    if os.getppid() != agent:
        _tell(requests, NO_COPY)
        os._exit(127)
    _tell(requests, os.getpid())
    requests.close()
    started, stdout, stderr = descriptors
    try:
        _settle(folder, variables, agent, stdout, stderr)
    except OSError as error:
        os.write(started, str(error).encode())
        os._exit(127)
    for descriptor in descriptors:
        os.close(descriptor)


def _settle(folder: bytes, variables: dict[bytes, bytes | None], agent: int, stdout: int, stderr: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        raise OSError("the process that started this one has ended")
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(descriptor, standard)
    os.close(null)
    # Lines, so that what a rank prints before it dies is seen.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for name, value in variables.items():
        if value is None:
            os.environb.pop(name, None)
        else:
            os.environb[name] = value
    _mark()
    if folder:
        os.chdir(folder)


def _mark() -> None:
    """Sets the limit on file locks, which Linux ignores, to the id of the innermost agent, so that what this process leaves behind is found
    (`engine/process/src/orphans.rs`)."""
    try:
        number = int(os.environ.get(AGENT, "").rsplit(":")[-1], 16)
        _, most = resource.getrlimit(RLIMIT_LOCKS)
        resource.setrlimit(RLIMIT_LOCKS, (number, most))
    except (ValueError, OSError):
        return
