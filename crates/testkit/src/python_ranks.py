"""Runs Python scripts for a test, each in a process that is forked from this one, which has imported what the script imports.

To import PyTorch takes seconds on a core, which otherwise every rank needs.

Reads JSON from stdin, a line per run: the processes, each with the "args" of Python, the changes to the "env", and files for "stdout"
and "stderr". When all have ended it writes a line with their wait statuses. Once one is killed, the others are killed, too.
"""

import ast
import ctypes
import functools
import importlib
import json
import os
import random
import re
import runpy
import signal
import sys
import traceback
from pathlib import Path

import torch

import sitecustomize

PR_SET_PDEATHSIG = 1
SERVER = os.getpid()


def main():
    # A new interpreter would import PyTorch again.
    torch.multiprocessing.spawn = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
    for line in sys.stdin:
        processes = json.loads(line)
        for script in {process["args"][0] for process in processes}:
            import_what_it_imports(script)
        assert len(os.listdir("/proc/self/task")) == 1, "a fork has none of the other threads"
        print(json.dumps(statuses([start(process) for process in processes])), flush=True)


def import_what_it_imports(script):
    source = Path(script).read_text()
    modules = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                modules += [name.name for name in names]
            case ast.ImportFrom(module):
                modules.append(module)
    all_were_found = all([could_import(module) for module in modules])
    # DistributedDataParallel and all optimizers import it when they are first used, perhaps in a module of the script's folder.
    if not all_were_found or re.search("torch.optim|DistributedDataParallel", source):
        could_import("torch._dynamo")


def could_import(module):
    try:
        importlib.import_module(module)
        return True
    except ModuleNotFoundError:
        return False


def start(process):
    pid = os.fork()
    if pid == 0:
        run(process)
    return pid


def run(process):
    """Runs a script as Python itself does, and ends this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != SERVER:
        os._exit(1)
    redirect(0, os.devnull, os.O_RDONLY)
    redirect(1, process["stdout"], os.O_WRONLY)
    redirect(2, process["stderr"], os.O_WRONLY)
    for name, value in process["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    random.seed()
    sys.argv = process["args"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        sitecustomize.leave(end.code)
    except BaseException:
        traceback.print_exc()
        sitecustomize.leave(1)
    sitecustomize.leave()


def redirect(fd, path, flags):
    opened = os.open(path, flags)
    os.dup2(opened, fd)
    os.close(opened)


def statuses(pids):
    ended = {}
    while len(ended) < len(pids):
        pid, status = os.wait()
        ended[pid] = status
        if os.WIFSIGNALED(status):
            for other in set(pids) - ended.keys():
                os.kill(other, signal.SIGKILL)
    return [ended[pid] for pid in pids]


if __name__ == "__main__":
    main()
