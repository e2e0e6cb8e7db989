#!/usr/bin/env python3
"""Records what the labs print, for the book and the READMEs, and reports which recordings are stale.

    scripts/record.py [NAME...]    run the labs again (all, or those named) and write book/src/recorded/NAME.txt and the pages
    scripts/record.py --check      run nothing: is every recording up to date with its source? (what pages show of it: check_book.py)

A recording ends with a line that says where it comes from. It is stale when the lab's source has changed since: the line holds
the first 12 hex digits of the source's SHA-256. A program that does not end with the expected exit code (0,
except for those that show a failure) is not recorded. Needs a finished set-up, and no package. CARGO names another cargo,
LOCKSTEP_DATA the folder with the real digits, LOCKSTEP_PYTHON a Python with PyTorch; without these, recordings that need them stay as
they are.

Output is recorded unchanged, except for what differs on each machine: the folders of the checkout
and of temporary files, and the host's name where the launcher reports it (`places`). Ids and process numbers stay.
"""

import datetime
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from lib import included  # noqa: E402
from lib.pages import BOOK, ROOT, documents  # noqa: E402

# For files that a recorded command writes; emptied before each recording, so that nothing resumes from it.
TRY = ROOT / "target" / "try"
LAB_1, LAB_2 = "labs/01-single-gpu/src/main.rs", "labs/02-spawn-ddp/src/main.rs"
LAB_4 = "labs/04-point-to-point/src"
LAB_5 = "labs/05-collectives/src"
LAB_3, LAB_6 = "labs/03-torchrun-env/src/main.rs", "labs/06-snapshot-resume/src/lib.rs"
LAB_7 = "labs/07-cifar-resnet/src"
LAB_9 = "labs/09-many-nodes"
LAB_10 = "labs/10-nccl/src"
LAB_11 = "labs/11-scaling/src"
LAB_12 = "labs/12-parallelism/src"
LAB_13 = "labs/13-language-model/src"
SLOW_11 = "lockstep run --standalone --nproc-per-node=4 lab-11-scaling --epochs 1 --bucket-mb 0.5"
LAB_8 = "labs/08-image-folder/src"
MNIST = "cargo run -q -p lab-02-spawn-ddp"
# The launcher and the labs by name, as the set-up chapter puts them into PATH.
TWO_RANKS = "lockstep run --standalone --nproc-per-node=2"
# The chapters of labs 04 and 05 show sockets.
TWO_OVER_GLOO = "lockstep run --standalone --backend=gloo --nproc-per-node=2"

VIRTUAL = "lockstep run --standalone --nproc-per-node={} lab-06-snapshot-resume --virtual-ranks 4"

# name: (command, source, ranks that it starts[, (rank to kill, how the line begins at which it is killed)])
RECORDINGS = {
    "tour": ("scripts/run.sh", "harness/prove/src/tour.rs", 0),
    "lab-01": ("cargo run -q -p lab-01-single-gpu -- 10 2 --checkpoint target/lab-01.safetensors", LAB_1, 1),
    "lab-01-usage": ("cargo run -q -p lab-01-single-gpu -- 10 0", LAB_1, 0),
    "lab-02-toy": (MNIST + " --bin lab-02-toy-model -- --nprocs 4", "labs/02-spawn-ddp/src/bin/toy_model.rs", 4),
    "lab-02-line": (
        MNIST + " --bin lab-02-linear-regression -- --epochs 3",
        "labs/02-spawn-ddp/src/bin/linear_regression.rs",
        2,
    ),
    "lab-02-mnist": (MNIST, LAB_2, 2),
    "lab-02-one-rank": (MNIST + " -- --nprocs 1 --batch-size 64", LAB_2, 1),
    "lab-02-four-ranks": (MNIST + " -- --nprocs 4", LAB_2, 4),
    "lab-02-real": (MNIST + ' -- --epochs 5 --data "$LOCKSTEP_DATA/mnist"', LAB_2, 2),
    "error-launcher": ("RANK=0 WORLD_SIZE=2 " + MNIST, LAB_2, 0),
    "error-data": (MNIST + " -- --data absent", LAB_2, 2),
    "error-killed": (MNIST + " -- --epochs 1000", LAB_2, 2, (1, "[rank 1] Epoch 1 ")),
    "error-roll-call": (
        "LOCKSTEP_BACKEND=gloo LOCKSTEP_COMPARE_CALLS=0 " + MNIST + " --example rank_0_evaluates",
        "labs/02-spawn-ddp/examples/rank_0_evaluates.rs",
        2,
    ),
    "finding": ("lockstep course try 02 average/summed --seed 7", "labs/02-spawn-ddp/tasks/average/grade.rs", 0),
    "finding-hang": ("lockstep course try 04 ring/all_send --seed 7", "labs/04-point-to-point/tasks/ring/grade.rs", 0),
    "lab-03": (TWO_RANKS + " lab-03-torchrun-env", LAB_3, 2),
    "lab-03-alone": ("lab-03-torchrun-env", LAB_3, 0),
    "lab-03-two-nodes": (
        "lockstep run --nnodes=2 --node-rank=0 --nproc-per-node=2 lab-03-torchrun-env --epochs 1 & "
        "lockstep run --nnodes=2 --node-rank=1 lab-03-torchrun-env --epochs 1 & wait",
        LAB_3,
        3,
    ),
    "lab-04": (TWO_OVER_GLOO + " lab-04-point-to-point --part send-recv --part isend-irecv --part ring", LAB_4, 2),
    "lab-04-deadlock": ("LOCKSTEP_BACKEND=gloo lab-04-point-to-point --nprocs 3 --part deadlock", LAB_4, 3),
    "lab-04-stuck": (TWO_OVER_GLOO + " lab-04-point-to-point --part stuck", LAB_4, 2),
    "lab-04-latency": (TWO_OVER_GLOO + " lab-04-point-to-point --part latency --plot target/try/latency.svg", LAB_4, 2),
    "lab-05": (
        "lockstep run --standalone --backend=gloo --nproc-per-node=4 lab-05-collectives broadcast scatter gather reduce all_reduce all_gather "
        "reduce_scatter all_to_all barrier ops groups ring doubling compare",
        LAB_5,
        4,
    ),
    "lab-05-last-bits": ("LOCKSTEP_BACKEND=gloo lab-05-collectives last_bits --nprocs 4", LAB_5, 4),
    # Sizes at which bytes matter more than the scheduling of four ranks on two cores.
    "lab-05-timing": (
        "LOCKSTEP_BACKEND=gloo lab-05-collectives timing --nprocs 4 --min-bytes 65536 --max-bytes 33554432 --plot target/try/all_reduce.svg",
        LAB_5,
        4,
    ),
    "lab-06": (
        TWO_RANKS + " --max-restarts=1 lab-06-snapshot-resume --epochs 2 --save-every-steps 32 --snapshots target/try/snapshots",
        LAB_6,
        2,
        (1, "[default0]:Epoch 1 | Training snapshot saved at target/try/snapshots/snapshot-000001-00000032"),
    ),
    "lab-06-torn": (
        "lab-06-snapshot-resume --epochs 2 --snapshots target/try/torn && "
        "truncate --no-create --size=-1000 target/try/torn/snapshot-000002-00000000.safetensors && "
        "lab-06-snapshot-resume --epochs 3 --snapshots target/try/torn",
        LAB_6,
        1,
    ),
    "lab-06-torchrun": (
        'lab-02-draw-digits target/try/digits && "$LOCKSTEP_PYTHON" labs/06-snapshot-resume/torchrun_elastic.py --data target/try/digits',
        "labs/06-snapshot-resume/torchrun_elastic.py",
        0,
    ),
    "lab-06-virtual-ranks": (
        f"{VIRTUAL.format(4)} --snapshots target/try/whole --weights target/try/four && "
        f"{VIRTUAL.format(4)} --snapshots target/try/fewer --epochs 1 && "
        f"{VIRTUAL.format(3)} --snapshots target/try/fewer --weights target/try/three && "
        "lockstep same target/try/four/rank-0.safetensors target/try/three/rank-0.safetensors",
        LAB_6,
        4,
    ),
    "lab-07": (TWO_RANKS + " lab-07-cifar-resnet --num-epochs 3 --model-dir target/try/models", LAB_7, 2),
    "lab-07-real": (TWO_RANKS + ' lab-07-cifar-resnet --data "$LOCKSTEP_DATA" --model-dir target/try/models', LAB_7, 2),
    "lab-08": (TWO_RANKS + " lab-08-image-folder --snapshots target/try/snapshots", LAB_8, 2),
    "lab-08-frozen": (
        TWO_RANKS + " lab-08-image-folder --samples 512 --freeze --epochs 1 --snapshots target/try/snapshots",
        LAB_8,
        2,
    ),
    "lab-08-broken": (
        "lab-08-draw-houses target/try/houses --samples 24 && truncate --size=1000 target/try/houses/Train/C4/house-00002.jpg && "
        "lab-08-image-folder --data target/try/houses --snapshots target/try/snapshots",
        LAB_8,
        1,
    ),
    "lab-09": (
        "lockstep run --nnodes=2 --node-rank=0 --nproc-per-node=1 lab-09-many-nodes --epochs 1 --snapshots target/try/snapshots & "
        "lockstep run --nnodes=2 --node-rank=1 --nproc-per-node=3 lab-09-many-nodes --epochs 1 --snapshots target/try/snapshots & wait",
        LAB_9 + "/src/main.rs",
        4,
    ),
    "lab-10": ("LOCKSTEP_GPU=simulated " + TWO_RANKS + " lab-10-nccl", LAB_10, 2),
    "lab-10-alone": ("LOCKSTEP_GPU=simulated lab-10-nccl", LAB_10, 1),
    "lab-11": (TWO_RANKS + " lab-11-scaling", LAB_11, 2),
    # The grader of task 2 reads these three.
    "lab-11-log": (f"{SLOW_11} --log-every-step", LAB_11, 4),
    "lab-11-loader": (f"{SLOW_11} --slow-loader 40", LAB_11, 4),
    "lab-11-straggler": (f"{SLOW_11} --straggler 40", LAB_11, 4),
    "lab-12-ddp": (TWO_RANKS + " lab-12-parallelism --scheme ddp --steps 4", LAB_12, 2),
    "lab-12-tensor": (TWO_RANKS + " lab-12-parallelism --scheme tensor --steps 4", LAB_12, 2),
    "lab-12-sharded": (TWO_RANKS + " lab-12-parallelism --scheme sharded --steps 4", LAB_12, 2),
    "bench-elastic": ("lockstep bench elastic", "harness/bench/src/elastic.rs", 0),
    "layouts": ("lockstep bench predict labs/12-parallelism/cluster.toml", "harness/bench/src/layouts.rs", 0),
    "lab-12-pipeline": (TWO_RANKS + " lab-12-parallelism --scheme pipeline --steps 4", LAB_12, 2),
    "lab-12-context": (TWO_RANKS + " lab-12-parallelism --scheme context --steps 4", LAB_12, 2),
    "lab-12-expert": (TWO_RANKS + " lab-12-parallelism --scheme expert --steps 4", LAB_12, 2),
    "lab-13": (TWO_RANKS + " lab-13-language-model --snapshots target/try/gpt", LAB_13, 2),
    "launcher-failed": (TWO_RANKS + " lab-03-torchrun-env --data absent", "engine/launch/src/report", 0),
    "launcher-missing-node": (
        "lockstep run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost --rdzv-conf=join_timeout=5 lab-03-torchrun-env",
        "engine/launch/src/diagnose",
        0,
    ),
    "inject-list": ("lockstep inject --list", "harness/prove/scenarios", 0),
    "inject-scenario": ("lockstep inject --show torn-snapshot", "harness/prove/scenarios/torn-snapshot.toml", 0),
    "inject": ("lockstep inject kill-one-worker kill-in-the-middle-of-a-save torn-snapshot", "harness/prove/src", 0),
    "inject-elastic": (
        "lockstep inject lost-for-good one-leaves one-comes-later eight-three-five-eight requeued-on-fewer-nodes",
        "harness/prove/src/soak_elastic.rs",
        0,
    ),
    "tour-elastic": ("lockstep tour --elastic", "harness/prove/src/tour_elastic.rs", 0),
    "verify": ("lockstep verify 06", "harness/prove/src/verify.rs", 0),
    # These need root, Slurm and nftables.
    "cluster": (
        "lockstep cluster up --nodes 2 && lockstep cluster exec ctl -- srun --nodes=2 hostname && "
        "lockstep cluster status && lockstep cluster down",
        "harness/site/src/cluster",
        0,
    ),
    "cluster-training": (
        "lockstep cluster up --nodes 2 && lockstep cluster exec ctl -- srun --nodes=2 --ntasks-per-node=1 "
        "lockstep run --nproc-per-node=2 lab-03-torchrun-env --epochs 1 && lockstep cluster down",
        LAB_3,
        4,
    ),
    "cluster-lost-node": (f"{LAB_9}/lost-node.sh lose", f"{LAB_9}/lost-node.sh", 0),
    "cluster-go-on": (f"{LAB_9}/lost-node.sh go-on", f"{LAB_9}/lost-node.sh", 0),
    "cluster-cut-node": (f"{LAB_9}/lost-node.sh cut", f"{LAB_9}/lost-node.sh", 0),
    "doctor": (
        "lockstep cluster up --nodes 2 && lockstep cluster fault block n2 --port 29500 && "
        "lockstep cluster exec n2 -- mount -o remount,size=64m /dev/shm && "
        "lockstep cluster exec ctl -- srun --nodes=2 --ntasks-per-node=1 lockstep doctor --job 2>/dev/null; lockstep cluster down",
        "harness/site/src/doctor",
        0,
    ),
    "cluster-faults": (
        "lockstep cluster up --nodes 2 --no-slurm && lockstep cluster fault cut n1 n2 && "
        "lockstep cluster fault slow n1 --rate 10mbit && lockstep cluster fault lose n2 && lockstep cluster status && "
        "lockstep cluster fault boot n2 && lockstep cluster fault heal && lockstep cluster down",
        "harness/site/src/cluster",
        0,
    ),
}

# Recordings that show a failure, and their expected exit codes; all others must succeed.
FAILURES = {
    "lab-01-usage": 2,
    "error-launcher": 2,
    "error-data": 1,
    "error-killed": 1,
    "error-roll-call": 1,
    "lab-03-alone": 2,
    "lab-04-stuck": 1,
    "lab-08-broken": 1,
    "launcher-failed": 1,
    "launcher-missing-node": 1,
}

PROVENANCE = re.compile(r"\[recorded ([^\s,]+)(?: on (\S+), world size (\d+))?, exit code (\d+), (\S+) ([0-9a-f]{12})(, .*)?\]")


def main(arguments):
    if arguments == ["--check"]:
        return report(check())
    unknown = [name for name in arguments if name not in RECORDINGS]
    if unknown:
        sys.exit(f"record: no recording is called {', '.join(unknown)}; there are {', '.join(RECORDINGS)}")
    for name in arguments or RECORDINGS:
        if variable := lacks(name):
            print(f"record: {name} is kept as it is: set {variable} to record it")
            continue
        print(f"record: {name}: {RECORDINGS[name][0]}", flush=True)
        path_of(name).parent.mkdir(exist_ok=True)
        path_of(name).write_text(record(FAILURES.get(name, 0), *RECORDINGS[name]))
    for page in documents():
        included.fill(page)
    return report(check())


def lacks(name):
    """The variable that the recording needs and that is not set, if there is one."""
    needed = re.findall(r"\$(LOCKSTEP_\w+)", RECORDINGS[name][0])
    return next((variable for variable in needed if not os.environ.get(variable)), None)


def report(faults):
    for fault in faults:
        print(f"record: {fault}", file=sys.stderr)
    print(f"record: {len(faults)} faults in the recordings" if faults else "record: the recordings are in order")
    return 1 if faults else 0


# ---- recording


def record(expected, command, source, world_size, kill=None):
    """Runs the command at the root of the checkout, which must end with the expected exit code; returns its text with the line of
    provenance."""
    shutil.rmtree(TRY, ignore_errors=True)
    with tempfile.TemporaryDirectory() as events, tempfile.TemporaryDirectory() as temporary:
        process = start(command, events, temporary)
        text, due = "", kill
        for line in process.stdout:
            text += line
            if due and line.startswith(due[1]):
                os.kill(first_event(events, due[0])["pid"], signal.SIGKILL)
                due = None  # a restarted worker prints the line again, and lives
        code = process.wait()
        started = first_event(events, 0)
    if due:
        sys.exit(f"record: {command} never printed the line at which rank {due[0]} is killed: {due[1]}")
    if code != expected:
        sys.exit(f"{text}record: {command} ended with exit code {code}, {expected} was expected; the recording stays as it was")
    if started and started["world_size"] != world_size:
        sys.exit(f"record: {command} ran on {started['world_size']} ranks, not {world_size}")
    # Only what the run itself wrote in its event files: a program without event files has no device and world size to state.
    place = f" on {started['device']}, world size {world_size}" if started else ""
    note = f", rank {kill[0]} was sent SIGKILL" if kill else ""
    today = datetime.date.today().isoformat()
    line = f"[recorded {today}{place}, exit code {code}, {source} {digest(source)}{note}]"
    return f"$ {command}\n{places(text, temporary)}{line}\n"


def start(command, events, temporary):
    # Variables that would change the behaviour or the verbosity of a launcher or a rank.
    dropped = re.compile(r"RUST_BACKTRACE|OMP_NUM_THREADS|(LOCAL_)?RANK|WORLD_SIZE|(PET|TORCHELASTIC)_.*|LOCKSTEP_(FAULTS|COMPARE_CALLS)")
    environment = {name: value for name, value in os.environ.items() if not dropped.fullmatch(name)}
    environment.update(LOCKSTEP_EVENTS=events, TMPDIR=temporary, CARGO_TERM_QUIET="true")
    if "cargo" not in command:
        environment["PATH"] = f"{built()}{os.pathsep}{os.environ['PATH']}"
    shell = command.replace("cargo run", f"{shlex.quote(cargo())} run", 1)
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(shell, shell=True, cwd=ROOT, env=environment, text=True, **pipe)


def cargo():
    return os.environ.get("CARGO", "cargo")


@functools.cache
def target():
    """Cargo's output folder."""
    metadata = subprocess.check_output([cargo(), "metadata", "--no-deps", "--format-version=1"], cwd=ROOT)
    return pathlib.Path(json.loads(metadata)["target_directory"])


@functools.cache
def built():
    """The folder with `lockstep` and the labs, of the present source."""
    subprocess.run([cargo(), "build", "--quiet"], cwd=ROOT, check=True)
    return target() / "debug"


def places(text, temporary):
    """The text without the names of this machine and of its folders. The launcher's report, its account of a rendezvous,
    lab 09's nodes and the folders of snapshots name the host; only those forms are looked for, since the name itself may be any word."""
    for folder, name in [(temporary, "/tmp"), (f"{target()}/", "target/"), (f"{ROOT}/", "")]:
        text = text.replace(folder, name)
    text = re.sub(r"^(  host      : ).+$", r"\1laptop", text, flags=re.M)
    text = re.sub(r"^(node \d+: )\S+ (?=\(127\.0\.0\.1\))", r"\1laptop ", text, flags=re.M)
    text = re.sub(r"(?<=[ (])" + re.escape(os.uname().nodename) + r"(?=:\S+[,)])", "laptop", text)
    text = re.sub(r"^((?:lockstep: provisional )?verdict: .*?(?:rank \d+|the launcher) on )" + re.escape(os.uname().nodename) + r"\b", r"\1laptop", text, flags=re.M)
    return re.sub(r"\([^\s()]+, pid (\d+)\)", r"(laptop, pid \1)", text)


def first_event(folder, rank):
    """A rank's start event; nothing for programs that write none."""
    path = pathlib.Path(folder) / f"rank-{rank}.jsonl"
    events = (json.loads(line) for line in path.read_text().splitlines()) if path.exists() else ()
    # A rank that has joined a group says so before it starts to train.
    return next((event for event in events if "device" in event), None)


def digest(source):
    """The hash of a file, or of all Rust and TOML files of a folder."""
    path = ROOT / source
    files = sorted([*path.rglob("*.rs"), *path.rglob("*.toml")]) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def path_of(name):
    return BOOK / "recorded" / f"{name}.txt"


# ---- checking


def check():
    faults = []
    for name in RECORDINGS:
        found = stale(name)
        if found and (variable := lacks(name)):
            print(f"record: not verified here: {found[0]} (with {variable} set)")
        else:
            faults += found
    left = {path.stem for path in (BOOK / "recorded").glob("*.txt")} - set(RECORDINGS)
    return faults + [f"recorded/{name}.txt belongs to no recording" for name in sorted(left)]


def stale(name):
    """Why a recording no longer shows what the lab would print."""
    command, source, world_size = RECORDINGS[name][:3]
    if not path_of(name).exists():
        return [f"recorded/{name}.txt is missing: scripts/record.py {name}"]
    lines = path_of(name).read_text().splitlines()
    found = PROVENANCE.fullmatch(lines[-1])
    if not found:
        return [f"recorded/{name}.txt does not say where it comes from: scripts/record.py {name}"]
    code = f"exit code {FAILURES.get(name, 0)}"
    present = (f"$ {command}", str(world_size) if found[3] else None, code, source, digest(source))
    recorded = (lines[0], found[3], f"exit code {found[4]}", found[5], found[6])
    changed = [f"{old} is now {new}" for old, new in zip(recorded, present) if old != new]
    return [f"recorded/{name}.txt is stale ({', '.join(changed)}): scripts/record.py {name}"] if changed else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
