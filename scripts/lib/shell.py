"""Checks shell lines of the book and the READMEs without executing them. Bash must be able to parse a line, each
program of it must be known, and packages, targets, subcommands and long options must exist. For readers who copy a line: of nine in ten of them
no recording shows that they work."""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

from lib.pages import FENCE, ROOT, name_of, spans

# Programs of the system and of the shell: only their names are checked.
TOOLS = set("apptainer apt-get bash cat cd chmod cmp cp diff echo export find getent git grep head hostname ip kill ls mkdir mmdebstrap mount mpiexec mpirun nc nft nvidia-smi pip podman rm rustup sbatch scontrol sh sort squeue sysctl tail true truncate wait".split())
# They start the command that follows their own options.
CONTAINERS = {"apptainer", "podman"}
STARTERS = {"srun", "env", "nice", "timeout", "exec"}
# A package that the reader makes, and what it is a copy of.
COPIES = {"my-model": "lockstep-template"}
CARGO_OWN = set("bench build check clean clippy doc fmt insta install nextest run search test yank".split())
SEPARATORS = {"&&", "||", ";", "|", "&", "(", ")"}
BEGINS = re.compile(r"(?:lockstep|cargo|scripts/\S+|lab-\d\d-\S+) ")
LANGUAGES = "console", "sh", "bash", "text", ""
SECONDS = 30


def lines(page):
    """(line number, command) of each shell line of a page: those after `$ `, all of a block that is shell and has no `$ `, and
    code within a sentence that begins with a program of the project."""
    text = page.read_text()
    for fence in FENCE.finditer(text):
        language = fence[3].split(",")[0].strip()
        if language not in LANGUAGES:
            continue
        number = text.count("\n", 0, fence.start(4)) + 1
        block = [line[len(fence[1]) :] for line in fence[4].split("\n")[1:]]
        yield from commands(block, number, language in ("console", "sh", "bash"))
    for span in spans(page):
        if BEGINS.match(span):
            yield None, re.sub(r"[][]", "", span)


def commands(block, number, is_shell):
    prompted = any(line.startswith("$ ") for line in block)
    left = iter(enumerate(block, number))
    for at, line in left:
        if line.startswith("$ "):
            line = line[2:]
        elif prompted or not is_shell or not line.strip() or line.startswith("#"):
            continue
        while unfinished(line):
            following = next(left, None)
            if following is None:
                break
            line += "\n" + following[1]
        yield at, line.strip()


def unfinished(line):
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return line.endswith("\\")

# Of scripts/test.sh.
AREAS = ("engine", "runtime", "course", "site")

class DryRun:
    """Faults and gaps (what could not be verified) of one command after another."""

    def __init__(self, recorded):
        self.recorded, self.faults, self.gaps, self.count = set(recorded), [], set(), {"recorded": 0, "dry-run": 0}

    def page(self, page):
        for number, command in lines(page):
            self.where = f"{name_of(page)}:{number}" if number else name_of(page)
            kind = "recorded" if re.sub(r" \\\n +", " ", command) in self.recorded else "dry-run"
            self.count[kind] += 1
            if kind == "dry-run":
                self.line(command)

    def fault(self, text):
        self.faults.append(f"{self.where}: {text}")

    def line(self, command):
        parsed = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, timeout=SECONDS)
        if parsed.returncode:
            return self.fault(f"bash cannot parse `{command}`: {parsed.stderr.strip()}")
        command = command.replace("\\\n", " ")
        for inner in re.findall(r"\$\(([^()]*)\)", command):
            self.line(inner)
        command = re.sub(r"\$\([^()]*\)", "VALUE", command)
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, "#"
        words, redirected = [], False
        for word in [*lexer, ";"]:
            if word in SEPARATORS:
                self.program(words)
                words = []
            elif re.fullmatch(r"\d*[<>]+&?", word):
                redirected = True
            elif not redirected:
                words.append(word)
            else:
                redirected = False

    def program(self, words):
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        if not words:
            return
        name, arguments = COPIES.get(words[0], words[0]), words[1:]
        if name in ("python", "python3"):
            self.python(arguments)
        elif name == "cargo":
            self.cargo(arguments)
        elif name == "torchrun":  # `lockstep run` has its options
            self.launcher([word if "=" not in word else word.replace("_", "-") for word in arguments])
        elif name in CONTAINERS and arguments[:1] in (["exec"], ["run"]):  # options, the image, and a command in it
            self.program(drop_options(arguments[1:])[1:])
        elif name in STARTERS:
            self.program([*drop_options(arguments)])
        elif name.startswith("scripts/"):
            self.script(name, arguments)
        elif name.rpartition("/")[2] == "lockstep":
            self.lockstep(arguments)
        elif name.rpartition("/")[2] in binaries():
            self.binary(name.rpartition("/")[2], arguments)
        elif name not in TOOLS:
            self.fault(f"`{name}` is no program that is known here")

    # ---- cargo

    def cargo(self, words):
        words, _, passed = " ".join(map(shlex.quote, words)).partition(" -- ")
        words, passed = shlex.split(words), shlex.split(passed)
        words = aliases().get(words[0], words[:1]) + words[1:] if words else ["--help"]
        if words[0] not in CARGO_OWN:
            return self.fault(f"cargo has no subcommand {words[0]} that is known here")
        own = [(package, kinds) for package, kinds in (packages().get(name, (name, None)) for name in named(words, "-p", "--package"))]
        for package, kinds in own:
            if kinds is None and not package.isupper():
                self.fault(f"no package is called {package}")
        chosen = [kinds for _, kinds in own if kinds is not None] or [kinds for _, kinds in packages().values()]
        targets = [(kind, name) for kind in ("bin", "example", "test", "bench") for name in named(words, f"--{kind}")]
        for kind, name in targets:
            if not any((kind, name) in kinds for kinds in chosen):
                self.fault(f"no {kind} is called {name}" + (f" in {own[0][0]}" if own else ""))
        self.options(words[1:], cargo_help(words[0]), f"cargo {words[0]}")
        if words[0] == "run" and own and own[0][1] is not None:
            self.runs(own[0][0], targets, passed)
        elif words[0] == "test" and own:
            self.exercise(own[0][0], passed)

    def runs(self, package, targets, passed):
        """The program that `cargo run` starts."""
        kinds = packages()[package][1]
        programs = sorted(name for kind, name in kinds if kind == "bin")
        kind, name = targets[0] if targets else ("bin", package if package in programs else programs[0])
        if not targets and package not in programs and len(programs) > 1 and not default_run(package):
            self.fault(f"{package} has several programs: --bin must say which ({', '.join(programs)})")
        self.binary(name if kind == "bin" else f"examples/{name}", passed)

    def exercise(self, package, passed):
        """`cargo test -p ex-NN -- TASK`: the tests are tasks of the lab."""
        if re.fullmatch(r"ex-\d\d", package) and passed and not passed[0].startswith("-") and package in packages():
            self.task(package[3:], passed[0])

    def task(self, lab, task):
        known = [re.findall(r'^\[\[task\]\]\nname = "([^"]+)"', path.read_text(), re.M) for path in ROOT.glob(f"labs/{lab}-*/lab.toml")]
        if known and task not in known[0] and not task.isupper():
            self.fault(f"lab {lab} has no task {task}, but {', '.join(known[0])}")

    # ---- programs of the project

    def script(self, name, arguments):
        path = ROOT / name
        if not path.is_file():
            return self.fault(f"{name} does not exist")
        if name == "scripts/run.sh":
            return self.lockstep(arguments) if arguments else None
        if name == "scripts/test.sh":
            return None if arguments[:1] and arguments[0] in AREAS else self.cargo(["test", *arguments])
        self.options(arguments, described(path), name)

    def python(self, arguments):
        scripts = [word for word in drop_options(arguments) if word.endswith(".py")]
        if scripts and scripts[0].startswith("scripts/"):
            self.script(scripts[0], arguments[arguments.index(scripts[0]) + 1 :])

    def has_commands(self, names):
        return re.search(r"^Commands:$", self.help_of("lockstep", *names) or "", re.M)

    def lockstep(self, arguments):
        if not arguments or arguments[0].startswith("-") or arguments[0].isupper() or arguments[0] == "…":
            return
        if arguments[0] == "run":
            return self.launcher(arguments[1:])
        if arguments[0] == "cluster" and "--" in arguments:  # what `exec` runs on a node
            self.program(arguments[arguments.index("--") + 1 :])
            arguments = arguments[: arguments.index("--")]
        depth = 1
        while len(arguments) > depth and arguments[depth].islower() and self.has_commands(arguments[:depth]):
            depth += 1
        self.binary("lockstep", arguments[depth:], *arguments[:depth])
        words = drop_options(arguments[1:])
        if arguments[0] == "hint" and len(words) > 1 and words[0].isdigit():
            self.task(words[0].zfill(2), words[1])
        for task in named(arguments, "--task"):
            self.task(words[0][:2].zfill(2), task)

    def launcher(self, words):
        """Options up to the program, then the program with its own."""
        text = self.help_of("lockstep", "run")
        left = list(words)
        while left and (left[0].startswith("-") or left[0] in ("…", "FLAGS")):
            option = left.pop(0)
            if left and text and "=" not in option and re.search(rf"(?<![\w-]){re.escape(option)}(, --[\w-]+)? <", text):
                left.pop(0)
        if text:
            self.options(words[: len(words) - len(left)], text, "lockstep run", "lockstep")
        if left and not left[0].endswith((".py", "…")) and not left[0].isupper():
            self.program(left)

    def binary(self, name, arguments, *subcommand):
        asks = subcommand or any(word.startswith("--") for word in arguments)
        text = asks and self.help_of(name, *subcommand)
        if text:
            self.options(arguments, text, " ".join([name, *subcommand]), name)

    def help_of(self, name, *subcommand):
        """The program's own --help; without one nothing, and a gap or a fault."""
        path = target() / name
        if not os.access(path, os.X_OK):
            return self.gaps.add(f"options of {name}, which is not built: cargo build -p {binaries().get(name, name)}")
        text = help_text(path, *subcommand)
        if text is None:
            if stale(name):
                self.gaps.add(f"{' '.join([name, *subcommand])}: the {name} that is built is older than its source")
            else:
                self.fault(f"{' '.join([name, *subcommand])} --help fails")
        return text

    def options(self, words, text, whose, binary=None):
        for word in words:
            option = word.partition("=")[0]
            if not re.fullmatch(r"--[a-z][\w-]+", option) or re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
                continue
            if binary and stale(binary):
                self.gaps.add(f"{option} of {whose}: the {binary} that is built is older than its source")
            else:
                self.fault(f"{whose} has no option {option}")


def drop_options(words):
    return [word for at, word in enumerate(words) if not word.startswith("-") or any(not other.startswith("-") for other in words[:at])]


def named(words, *options):
    """The values of an option that may be repeated, as `-p NAME` or `--package=NAME`."""
    given = [after for word, after in zip(words, words[1:]) if word in options]
    return given + [word.partition("=")[2] for word in words if word.partition("=")[0] in options and "=" in word]


# ---- what cargo and the programs accept


def output(*command):
    """The output of a program; None if it fails or does not end."""
    try:
        found = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout if found.returncode == 0 else None


@functools.cache
def metadata():
    text = output(os.environ.get("CARGO", "cargo"), "metadata", "--no-deps", "--format-version", "1")
    return json.loads(text) if text else sys.exit("check-book: cargo metadata fails here: scripts/setup.sh checks for what it needs")


@functools.cache
def packages():
    """Each package by name: its name and its targets as (kind, name)."""
    return {p["name"]: (p["name"], {(kind, t["name"]) for t in p["targets"] for kind in t["kind"]}) for p in metadata()["packages"]}


def default_run(package):
    return next(p["default_run"] for p in metadata()["packages"] if p["name"] == package)


@functools.cache
def binaries():
    return {name: package for package, kinds in packages().values() for kind, name in kinds if kind == "bin"}


@functools.cache
def target():
    return ROOT / metadata()["target_directory"] / "debug"


@functools.cache
def aliases():
    text = (ROOT / ".cargo/config.toml").read_text().partition("[alias]")[2]
    return {name: json.loads(words) for name, words in re.findall(r"^([\w-]+) = (\[.*?\])$", text, re.M)}


@functools.cache
def cargo_help(subcommand):
    # Not every extension is installed; its options are then not checked.
    words = ("nextest", "run", "--help") if subcommand == "nextest" else (subcommand, "-h")
    return output(os.environ.get("CARGO", "cargo"), *words) or ""


@functools.cache
def help_text(path, *subcommand):
    return output(str(path), *subcommand, "--help")


@functools.cache
def stale(name):
    """Whether a source of the program's package is newer than the program."""
    package = next((p for p in metadata()["packages"] if p["name"] == binaries().get(name.rpartition("/")[2])), None)
    if package is None:
        return False
    newest = max(path.stat().st_mtime for path in (ROOT / package["manifest_path"]).parent.rglob("*.rs"))
    return newest > (target() / name).stat().st_mtime


@functools.cache
def described(script):
    """The --help of a script that parses its arguments, otherwise its source."""
    source = script.read_text()
    if "import argparse" in source and shutil.which("python3"):
        return output("python3", "-B", str(script), "--help") or source
    return source
