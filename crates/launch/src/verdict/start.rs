//! Programs that cannot start, or not with what they need: libraries, modules, flags.

use super::rules::Class::Cause;
use super::rules::{Rule, between, last_quoted};
use super::worker_end::Found;

pub(super) const START: &[Rule] = &[
    Rule {
        name: "program-cannot-start",
        class: Cause,
        evidence: "the kernel's answer to `execve`, and the file: its permission bits, mount, first line and ELF header",
        advice: "correct what the message names, on every node",
        example: (127, ""),
        find: |case| {
            let why = case.failure.death.not_started.as_ref()?;
            Some(Found::new(
                format!("the program could not be started: {why}"),
                "the system's answer when it was started",
            ))
        },
    },
    Rule {
        name: "library-missing",
        class: Cause,
        evidence: "the dynamic loader's message",
        advice: "run the set-up on this node too, or check LD_LIBRARY_PATH there; `ldd PROGRAM` names all that is missing",
        example: (
            127,
            "./lab: error while loading shared libraries: libtorch.so: cannot open shared object file: No such file or directory",
        ),
        find: |case| {
            let line = case.line(&["cannot open shared object file"])?;
            let before = line.split(": cannot open shared object file").next().unwrap_or_default();
            let library = before.rsplit([' ', ':']).next().unwrap_or_default();
            Some(case.found(format!("the shared library {library} is missing"), line))
        },
    },
    Rule {
        name: "library-too-old",
        class: Cause,
        evidence: "the dynamic loader's message",
        advice: "build the program on the oldest of the nodes, or in a container with this system's libraries",
        example: (1, "./lab: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by ./lab)"),
        find: |case| {
            let line = case.line(&["version `"]).filter(|line| line.contains("' not found"))?;
            let version = between(line, "version `", "'")?;
            let what = if version.starts_with("GLIBC_") { "glibc" } else { "a system library" };
            Some(case.found(format!("{what} is too old on this node: the program needs {version}"), line))
        },
    },
    Rule {
        name: "library-for-another-machine",
        class: Cause,
        evidence: "the dynamic loader's message",
        advice: "install the library that was built for this processor; `file LIBRARY` and `uname -m` show both",
        example: (1, "ImportError: /opt/lib/libfoo.so: wrong ELF class: ELFCLASS32"),
        find: |case| {
            case.words(&["wrong elf class", "invalid elf header"], "a shared library was built for another machine")
        },
    },
    Rule {
        name: "library-mismatch",
        class: Cause,
        evidence: "the dynamic loader's message",
        advice: "rebuild the extension against the installed version (for PyTorch extensions: the same torch)",
        example: (127, "./lab: symbol lookup error: ./lab: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
        find: |case| case.words(&["undefined symbol:"], "a library has another version than the program was built for"),
    },
    Rule {
        name: "binary-for-another-machine",
        class: Cause,
        evidence: "a shell's message, with exit code 126",
        advice: "build the program for this processor; `file PROGRAM` and `uname -m` show both",
        example: (126, "sh: 1: ./lab: Exec format error"),
        find: |case| {
            case.words(&["exec format error"], "a program was built for another processor, or has no `#!` line")
        },
    },
    Rule {
        name: "command-not-found",
        class: Cause,
        evidence: "exit code 127 and a shell's message",
        advice: "install the command on this node, or correct PATH there",
        example: (127, "sh: 1: nvidia-smi-x: not found"),
        find: |case| {
            let line = case.line(&["not found"]).filter(|_| case.failure.death.exitcode == 127)?;
            Some(case.found("a command in the script does not exist on this node", line))
        },
    },
    Rule {
        name: "command-not-executable",
        class: Cause,
        evidence: "exit code 126 and a shell's message",
        advice: "`ls -l FILE` shows its bits (`chmod +x FILE`), `findmnt -T FILE` whether the mount forbids it (noexec)",
        example: (126, "sh: 1: ./lab: Permission denied"),
        find: |case| {
            let line = case.line(&["permission denied"]).filter(|_| case.failure.death.exitcode == 126)?;
            Some(case.found("a command in the script may not be executed", line))
        },
    },
    Rule {
        name: "spawns-under-launcher",
        class: Cause,
        evidence: "the message of this project's runtime",
        advice: "start it without `lockstep run`, or remove the spawning and read RANK and LOCAL_RANK from the environment",
        example: (1, "Error: cannot spawn under a launcher (RANK, WORLD_SIZE): it has started"),
        find: |case| {
            let what = "the program starts its own workers, and was itself started by the launcher";
            case.words(&["cannot spawn under a launcher"], what)
        },
    },
    Rule {
        name: "launcher-in-worker",
        class: Cause,
        evidence: "torchrun's exception",
        advice: "start torchrun or `lockstep run` once for each node, never one inside the other",
        example: (1, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
        find: |case| {
            let what = "a launcher inside the worker waited for other nodes that never came";
            case.words(&["rendezvoustimeouterror", "rendezvousconnectionerror"], what)
        },
    },
    Rule {
        name: "python-module-missing",
        class: Cause,
        evidence: "the exception",
        advice: "activate the environment that has it on every node, or name its interpreter in PYTHON_EXEC",
        example: (1, "ModuleNotFoundError: No module named 'torch'"),
        find: |case| {
            let line = case.line(&["no module named"])?;
            let module = line.split("o module named ").nth(1).unwrap_or_default().trim_matches(['\'', ' ']);
            Some(case.found(format!("Python does not find the module {module}"), line))
        },
    },
    Rule {
        name: "python-import-error",
        class: Cause,
        evidence: "the exception",
        advice: "compare the versions of the two packages on this node (`pip list`) with a node where it works",
        example: (1, "ImportError: cannot import name 'a' from 'b' (/x/b.py)"),
        find: |case| {
            let line = case.line(&["cannot import name"])?;
            Some(case.found("a Python module has not the name that is imported from it", line))
        },
    },
    Rule {
        name: "script-missing",
        class: Cause,
        evidence: "Python's message, with exit code 2",
        advice: "check the path; it must exist on every node, so use a shared folder or copy it",
        example: (2, "/usr/bin/python3: can't open file '/home/ada/train.py': [Errno 2] No such file or directory"),
        find: |case| {
            let line = case.line(&["can't open file '"])?;
            let file = between(line, "open file '", "'").or_else(|| last_quoted(line)).unwrap_or("the script");
            Some(case.found(format!("Python cannot open the script {file}"), line))
        },
    },
    Rule {
        name: "syntax-error",
        class: Cause,
        evidence: "the exception",
        advice: "correct the line; if it is right, the node's Python is too old for it (`python3 --version`)",
        example: (1, "  File \"train.py\", line 3\n    print(\n         ^\nSyntaxError: '(' was never closed"),
        find: |case| {
            let error = case.error.as_ref().map(|error| error.original())?;
            let known = ["SyntaxError", "IndentationError", "TabError"].iter().any(|name| error.starts_with(name));
            known.then(|| case.found("a Python file has a syntax error", error))
        },
    },
    Rule {
        name: "wrong-flags",
        class: Cause,
        evidence: "exit code 2 and a parser's message",
        advice: "correct the program's flags: those after the program's name are its own, those before are the launcher's",
        example: (2, "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lt 3"),
        find: |case| {
            let marks = [
                "error: unrecognized arguments",
                "error: the following arguments are required",
                "error: argument ",
                "error: unexpected argument",
                "error: the following required arguments",
                "invalid value '",
            ];
            let line = case.line(&marks).filter(|_| case.failure.death.exitcode == 2)?;
            Some(case.found("the program does not accept its arguments", line))
        },
    },
];
