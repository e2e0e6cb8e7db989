//! Programs that cannot start, or not with what they need: libraries, modules, flags.

use lockstep_contract::rules::{Finding, Rule};

use super::rules::{Causes, RULE, between, ended, last_quoted};

pub(super) const START: &[Rule<Causes>] = &[
    Rule {
        name: "program-cannot-start",
        source: "the kernel's answer to `execve`, and the file: its permission bits, mount, first line and ELF header",
        fix: "correct what the message names, on every node",
        wrong: ended(127, "").with(|failure, _| failure.death.not_started = Some("it is a folder".into())),
        right: ended(127, ""),
        find: |worker| {
            let why = worker.failure.death.not_started.as_ref()?;
            Some(Finding::new(
                format!("the program could not be started: {why}"),
                "the system's answer when it was started",
            ))
        },
        ..RULE
    },
    Rule {
        name: "library-missing",
        source: "the dynamic loader's message",
        fix: "run the set-up on this node too, or check LD_LIBRARY_PATH there; `ldd PROGRAM` names all that is missing",
        wrong: ended(
            127,
            "./lab: error while loading shared libraries: libtorch.so: cannot open shared object file: No such file or directory",
        ),
        right: ended(127, "./lab: libtorch.so is there"),
        find: |worker| {
            let line = worker.line(&["cannot open shared object file"])?;
            let before = line.split(": cannot open shared object file").next().unwrap_or_default();
            let library = before.rsplit([' ', ':']).next().unwrap_or_default();
            Some(worker.found(format!("the shared library {library} is missing"), line))
        },
        ..RULE
    },
    Rule {
        name: "library-too-old",
        source: "the dynamic loader's message",
        fix: "build the program on the oldest of the nodes, or in a container with this system's libraries",
        wrong: ended(1, "./lab: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by ./lab)"),
        right: ended(1, "version `GLIBC_2.38' found"),
        find: |worker| {
            let line = worker.line(&["version `"]).filter(|line| line.contains("' not found"))?;
            let version = between(line, "version `", "'")?;
            let what = if version.starts_with("GLIBC_") { "glibc" } else { "a system library" };
            Some(worker.found(format!("{what} is too old on this node: the program needs {version}"), line))
        },
        ..RULE
    },
    Rule {
        name: "library-for-another-machine",
        source: "the dynamic loader's message",
        fix: "install the library that was built for this processor; `file LIBRARY` and `uname -m` show both",
        wrong: ended(1, "ImportError: /opt/lib/libfoo.so: wrong ELF class: ELFCLASS32"),
        right: ended(1, "ImportError: /opt/lib/libfoo.so: undefined symbol: f"),
        find: |worker| {
            worker.words(&["wrong elf class", "invalid elf header"], "a shared library was built for another machine")
        },
        ..RULE
    },
    Rule {
        name: "library-not-loaded",
        source: "the dynamic loader's message",
        fix: "`ulimit -v` must be unlimited; `ldd PROGRAM` shows whether LD_LIBRARY_PATH, of a module for example, leads to another file: unset it",
        wrong: ended(
            127,
            "./lab: error while loading shared libraries: libtorch_cpu.so: failed to map segment from shared object",
        ),
        right: ended(127, "./lab: libtorch.so was loaded"),
        find: |worker| {
            let line = worker.line(&["error while loading shared libraries:"])?;
            let after = line.split("error while loading shared libraries: ").nth(1).unwrap_or_default();
            let library = after.split(':').next().unwrap_or_default();
            Some(worker.found(format!("the shared library {library} cannot be loaded"), line))
        },
        ..RULE
    },
    Rule {
        name: "library-mismatch",
        source: "the dynamic loader's message",
        fix: "`ldd PROGRAM` shows whether LD_LIBRARY_PATH, of a module for example, leads to another version: unset it; or rebuild the extension \
              against the installed version (for PyTorch extensions: the same torch)",
        wrong: ended(127, "./lab: symbol lookup error: ./lab: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
        right: ended(
            127,
            "./lab: error while loading shared libraries: libtorch.so: cannot open shared object file: No such file or directory",
        ),
        find: |worker| {
            worker.words(&["undefined symbol:"], "a library has another version than the program was built for")
        },
        ..RULE
    },
    Rule {
        name: "binary-for-another-machine",
        source: "a shell's message, with exit code 126",
        fix: "build the program for this processor; `file PROGRAM` and `uname -m` show both",
        wrong: ended(126, "sh: 1: ./lab: Exec format error"),
        right: ended(126, "sh: 1: ./lab: Permission denied"),
        find: |worker| {
            worker.words(&["exec format error"], "a program was built for another processor, or has no `#!` line")
        },
        ..RULE
    },
    Rule {
        name: "command-not-found",
        source: "exit code 127 and a shell's message",
        fix: "install the command on this node, or correct PATH there",
        wrong: ended(127, "sh: 1: nvidia-smi-x: not found"),
        right: ended(1, "sh: 1: nvidia-smi-x: not found"),
        find: |worker| {
            let line = worker.line(&["not found"]).filter(|_| worker.failure.death.exitcode == 127)?;
            Some(worker.found("a command in the script does not exist on this node", line))
        },
        ..RULE
    },
    Rule {
        name: "command-not-executable",
        source: "exit code 126 and a shell's message",
        fix: "`ls -l FILE` shows its bits (`chmod +x FILE`), `findmnt -T FILE` whether the mount forbids it (noexec)",
        wrong: ended(126, "sh: 1: ./lab: Permission denied"),
        right: ended(126, "sh: 1: ./lab: Exec format error"),
        find: |worker| {
            let line = worker.line(&["permission denied"]).filter(|_| worker.failure.death.exitcode == 126)?;
            Some(worker.found("a command in the script may not be executed", line))
        },
        ..RULE
    },
    Rule {
        name: "spawns-under-launcher",
        source: "the message of this project's runtime",
        fix: "start it without `lockstep run`, or remove the spawning and read RANK and LOCAL_RANK from the environment",
        wrong: ended(1, "Error: cannot spawn under a launcher (RANK, WORLD_SIZE): it has started"),
        right: ended(1, "Error: cannot spawn: too many ranks"),
        find: |worker| {
            let what = "the program starts its own workers, and was itself started by the launcher";
            worker.words(&["cannot spawn under a launcher"], what)
        },
        ..RULE
    },
    Rule {
        name: "launcher-in-worker",
        source: "torchrun's exception",
        fix: "start torchrun or `lockstep run` once for each node, never one inside the other",
        wrong: ended(1, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
        right: ended(1, "TimeoutError: no answer"),
        find: |worker| {
            let what = "a launcher inside the worker waited for other nodes that never came";
            worker.words(&["rendezvoustimeouterror", "rendezvousconnectionerror"], what)
        },
        ..RULE
    },
    Rule {
        name: "python-not-a-module",
        source: "Python's message about `-m`",
        fix: "-m takes a module's name with dots, not a path: `-m package.train`, without `.py` and slashes, from the folder that has the package; \
              a script is named without -m",
        wrong: ended(
            1,
            "/usr/bin/python3: Error while finding module specification for 'pkg/train.py' (ModuleNotFoundError: No module named 'pkg/train'). Try using 'pkg/train' instead of 'pkg/train.py' as the module name.",
        ),
        right: ended(1, "/usr/bin/python3: No module named train"),
        find: |worker| {
            let marks =
                ["finding module specification for '", "no module named ", "relative module names not supported"];
            let line = worker.line(&marks)?;
            if let Some(package) = between(line, "; '", "' is a package and cannot be directly executed") {
                let what = format!("-m was given {package}, a package that has no module __main__ to execute");
                return Some(worker.found(what, line));
            }
            let given = between(line, "specification for '", "'").or_else(|| line.split(": No module named ").nth(1));
            let given = given.unwrap_or(if line.contains("elative module names") { "./" } else { "" });
            let is_path = given.contains('/') || given.ends_with(".py") || given.starts_with('.');
            let shown = if given == "./" { "a relative name".to_owned() } else { given.to_owned() };
            // Only what Python itself says of -m has no traceback.
            (is_path && worker.error.is_none())
                .then(|| worker.found(format!("-m was given {shown}, which is not a module's name with dots"), line))
        },
        ..RULE
    },
    Rule {
        name: "python-module-missing",
        source: "the exception",
        fix: "activate the environment that has it on every node, or name its interpreter in PYTHON_EXEC",
        wrong: ended(1, "ModuleNotFoundError: No module named 'torch'"),
        right: ended(1, "ImportError: cannot import name 'a' from 'b' (/x/b.py)"),
        find: |worker| {
            let line = worker.line(&["no module named", "finding module specification for '"])?;
            let named = line.split("o module named ").nth(1).map(|rest| rest.trim_start_matches('\''));
            let module = match named {
                Some(rest) => rest.split(['\'', ' ', ';', ')']).next().unwrap_or_default(),
                None => between(line, "specification for '", "'")?,
            };
            Some(worker.found(format!("Python does not find the module {module}"), line))
        },
        ..RULE
    },
    Rule {
        name: "python-import-error",
        source: "the exception",
        fix: "compare the versions of the two packages on this node (`pip list`) with a node where it works",
        wrong: ended(1, "ImportError: cannot import name 'a' from 'b' (/x/b.py)"),
        right: ended(1, "ModuleNotFoundError: No module named 'torch'"),
        find: |worker| {
            let line = worker.line(&["cannot import name"])?;
            Some(worker.found("a Python module does not have the name that is imported from it", line))
        },
        ..RULE
    },
    Rule {
        name: "script-missing",
        source: "Python's message, with exit code 2",
        fix: "check the path; it must exist on every node, so use a shared folder or copy it",
        wrong: ended(2, "/usr/bin/python3: can't open file '/home/ada/train.py': [Errno 2] No such file or directory"),
        right: ended(1, "FileNotFoundError: [Errno 2] No such file or directory: '/data/1.tar'"),
        find: |worker| {
            let line = worker.line(&["can't open file '"])?;
            let file = between(line, "open file '", "'").or_else(|| last_quoted(line)).unwrap_or("the script");
            Some(worker.found(format!("Python cannot open the script {file}"), line))
        },
        ..RULE
    },
    Rule {
        name: "syntax-error",
        source: "the exception",
        fix: "correct the line; if it is right, the node's Python is too old for it (`python3 --version`)",
        wrong: ended(1, "  File \"train.py\", line 3\n    print(\n         ^\nSyntaxError: '(' was never closed"),
        right: ended(
            1,
            "Traceback (most recent call last):\n  File \"train.py\", line 3, in f\n    f()\nValueError: SyntaxError",
        ),
        find: |worker| {
            let error = worker.error.as_ref().map(|error| error.original())?;
            let known = ["SyntaxError", "IndentationError", "TabError"].iter().any(|name| error.starts_with(name));
            known.then(|| worker.found("a Python file has a syntax error", error))
        },
        ..RULE
    },
    Rule {
        name: "wrong-flags",
        source: "exit code 2 and a parser's message",
        fix: "correct the program's flags: those after the program's name are its own, those before are the launcher's",
        wrong: ended(2, "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lt 3"),
        right: ended(1, "train.py: error: unrecognized arguments: --lt 3"),
        find: |worker| {
            let marks = [
                "error: unrecognized arguments",
                "error: the following arguments are required",
                "error: argument ",
                "unexpected argument '",
                "the following required arguments",
                "invalid value '",
            ];
            let line = worker.line(&marks).filter(|_| worker.failure.death.exitcode == 2)?;
            Some(worker.found("the program does not accept its arguments", line))
        },
        ..RULE
    },
];
