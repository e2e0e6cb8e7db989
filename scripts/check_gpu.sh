#!/usr/bin/env bash
# Checks everything that only a machine with a GPU can show, in under ten minutes: see scripts/check_gpu.sh --help.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
LIB=$ROOT/scripts/lib
# shellcheck source=scripts/lib/say.sh
. "$LIB/say.sh"
# shellcheck source=scripts/lib/arch.sh
. "$LIB/arch.sh"
# shellcheck source=scripts/lib/view.sh
. "$LIB/view.sh"

HOME_DIR=$(libtorch_of "$MACHINE")
BIN=$(target_of "$MACHINE")/debug

# What is packed: programs, and programs of tests by package and name.
PROGRAMS=(lockstep lockstep-bench-ranks lab-01-single-gpu lab-02-toy-model lab-05-collectives lab-06-snapshot-resume
  lab-07-cifar-resnet lab-07-draw-objects lab-10-nccl)
TESTS=(c10d:cuda lockstep-gpu:it)
LARGEST=64 # MiB
LONGEST=570 # seconds
# What an error says where there is no GPU.
NO_GPU='load CUDA failed|no CUDA device|no GPU|NVIDIA.s driver|NVIDIA driver|cannot train on a GPU|CUDA_ERROR_NO_DEVICE'

usage() {
  cat <<'END'
usage: scripts/check_gpu.sh --pack FILE.tar.xz
       scripts/check_gpu.sh [--python PYTHON] [--report FILE.md]

--pack builds the programs for NCCL and packs them with this script and the labs' Python scripts: at most 64 MiB, for Linux on this
machine's architecture.
It needs a checkout after `scripts/setup.sh --nccl` (or --cuda), and no GPU.

The second form checks a machine with an NVIDIA GPU, in the unpacked folder or in a checkout. It needs a Python with PyTorch 2.11 for CUDA,
whose libtorch the programs use, but no Rust and no compiler. Each step has a deadline and a verdict. Where there is no GPU, a step runs
as far as it can and says so. The report is gpu-report.md; the exit code is 0 if no step failed.

  --python PYTHON   with PyTorch 2.11 (default: python3)
  --report FILE     where the report goes (default: gpu-report.md)
END
}

main() {
  local pack='' report=gpu-report.md
  PYTHON=python3
  while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage && exit 0 ;;
    --pack | --python | --report)
      [ $# -ge 2 ] || die "$1 needs a value" "scripts/check_gpu.sh --help"
      case $1 in
      --pack) pack=$2 ;;
      --python) PYTHON=$2 ;;
      *) report=$2 ;;
      esac
      shift
      ;;
    *) die "unknown option '$1'" "scripts/check_gpu.sh --help" ;;
    esac
    shift
  done
  if [ -n "$pack" ]; then pack_programs "$pack"; else check "$report"; fi
}

# ---- packing

pack_programs() {
  local file test size packed
  [ -e "$HOME_DIR/nvidia/nccl/include/nccl.h" ] ||
    die "this checkout has no headers of NCCL, so its programs would be built without it" "scripts/setup.sh --nccl"
  TREE=$(mktemp -d)
  trap 'rm -rf "$TREE"' EXIT
  packed=$TREE/${BIN#"$ROOT"/}
  mkdir -p "$TREE/scripts/lib" "$packed/deps"
  export CARGO_TARGET_DIR=${BIN%/debug}
  (cd "$ROOT" && cargo build --workspace "${PROGRAMS[@]/#/--bin=}") >&2
  for file in "${PROGRAMS[@]}"; do strip -o "$packed/$file" "$BIN/$file"; done
  for test in "${TESTS[@]}"; do
    file=$(built_test "${test%:*}" "${test#*:}")
    strip -o "$packed/${test/:/-}" "$file"
  done
  strip --strip-unneeded -o "$packed/deps/libsimgpu.so" "$BIN/deps/libsimgpu.so"
  cp "${BASH_SOURCE[0]}" "$TREE/scripts"
  cp "$LIB"/{say,arch,view}.sh "$TREE/scripts/lib"
  (cd "$ROOT" && cp --parents labs/*/*.py "$TREE")
  tar -C "$TREE" -cJf "$1" .
  size=$(($(stat -c %s "$1") / 1048576 + 1))
  [ "$size" -le "$LARGEST" ] || die "$1 takes $size MiB, more than $LARGEST"
  say "$1 takes $size MiB: unpack it on the machine with the GPU, and run scripts/check_gpu.sh there"
}

# built_test PACKAGE NAME: the file of a program of tests. Where no other package has the name, it is built with --workspace, like the
# programs above: c10d alone has fewer features of its dependencies, with which cargo would compile tch and c10d a second time.
built_test() {
  local package=(--workspace)
  if [ "$2" = it ]; then package=(--package "$1"); fi
  (cd "$ROOT" && cargo test --no-run "${package[@]}" --test "$2" --message-format json 2>/dev/null) |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

# ---- checking

check() {
  local report=$1
  [ -x "$BIN/lockstep" ] || die "no program $BIN/lockstep: this folder has none for $MACHINE" "unpack a pack that was made on a machine of this architecture, or build here"
  REPORT=$(realpath -m "$report")
  # Steps run in folders of their own.
  case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/${PYTHON##*/} ;; esac
  WORK=$(mktemp -d)
  trap 'rm -rf "$WORK"' EXIT
  ROWS=$WORK/rows FAILED=0 GPUS=0
  export LOCKSTEP_PYTHON=$PYTHON OMP_NUM_THREADS=2
  unset RUST_BACKTRACE # an error is its last lines

  step 60 "a Python with PyTorch 2.11 for CUDA" find_python
  step 60 "its libtorch for these programs" find_libtorch
  step 60 "libtorch finds the GPU" "$BIN/lab-01-single-gpu" --device cuda 1 1 --checkpoint "$WORK/first.safetensors"
  step 60 "lab 01 trains, and has Python's losses" lab_01
  step 60 "lab 02 on as many ranks as there are GPUs" "$BIN/lab-02-toy-model" --device cuda --nprocs "$(ranks)"
  step 90 "lab 06 resumes to the same bits, with deterministic kernels" lab_06
  step 60 "a snapshot moves from the CPU to the GPU and back" across_devices
  step 90 "lab 07 trains, with SyncBatchNorm" lab_07 --sync-batch-norm
  step 60 "SyncBatchNorm on two GPUs trains as on one" sync_batch_norm
  step 90 "lab 07 in bfloat16, with channels last" lab_07 --precision bfloat16 --channels-last
  step 90 "lab 07 in float16, with a gradient scaler" lab_07 --precision float16
  step 120 "lab 07 has the losses of Python's DDP" beside_python
  step 60 "a step of DDP, its time and memory, next to Python's" bench_step
  step 60 "collectives of two ranks, next to Python's" bench_collectives
  step 60 "an NCCL group of one rank, and Gloo next to it" tests c10d-cuda
  step 60 "an NCCL group of two ranks" two_ranks
  step 60 "the simulated device behaves as documented" simulated_device
  step 60 "real devices behave as the simulated one" real_device
  step 60 "lab 10, in one process" lab_10

  say "$report has the details"
  [ "$FAILED" = 0 ]
}

# step SECONDS NAME COMMAND...: runs a step and notes its verdict. All steps together have ten minutes. A function runs in a shell of
# its own, under the deadline.
step() {
  local limit=$1 name=$2 log=$WORK/log begun=$SECONDS rc=0 verdict
  shift 2
  if [ "$limit" -gt $((LONGEST - SECONDS)) ]; then limit=$((LONGEST - SECONDS)); fi
  if [ "$limit" -lt 5 ]; then limit=5; fi
  if [ "$(type -t "$1")" = function ]; then
    # shellcheck disable=SC2163 # the function that it names
    export -f "$1" ranks tests trained in_work launch with_nccl needs_two
    # shellcheck disable=SC2016 # the other shell expands it
    (export PYTHON BIN WORK ROOT GPUS HOME_DIR LIB && timeout -k 5 "$limit" bash -euo pipefail -c '. "$LIB/say.sh"; . "$LIB/arch.sh"; . "$LIB/view.sh"; "$@"' _ "$@") >"$log" 2>&1 || rc=$?
  else
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 || rc=$?
  fi
  verdict=$(verdict "$rc" "$limit" "$log")
  case $verdict in FAILED*) FAILED=$((FAILED + 1)) ;; esac
  if [ -f "$WORK/gpus" ]; then GPUS=$(cat "$WORK/gpus"); fi
  printf '%s\t%s\t%s s\n' "$name" "$verdict" $((SECONDS - begun)) >>"$ROWS"
  cp "$log" "$WORK/log-$(wc -l <"$ROWS")"
  printf '%-60s %s\n' "$name" "$verdict"
  write_report "$REPORT" "$SECONDS"
}

# verdict RC LIMIT LOG. Without a GPU, a step may end with an error that says so, and with nothing else.
verdict() {
  local note
  note=$(grep -m 1 'result: ' "$3" | sed 's/.*result: //') || true
  if [ "$1" = 0 ]; then
    # A test's name stands before what it prints.
    if grep -q 'not verified here: ' "$3"; then
      echo "not verified here: $(sed -n 's/.*not verified here: //p' "$3" | sort -u | head -n 3 | paste -sd ';')"
    else
      echo "passed${note:+: $note}"
    fi
  elif [ "$1" = 124 ] || [ "$1" = 137 ]; then
    echo "FAILED: still running after $2 s"
  elif [ "$GPUS" = 0 ] && grep -qiE "$NO_GPU" "$3"; then
    echo "needs a GPU: $(grep -iE "$NO_GPU" "$3" | tail -n 1 | cut -c 1-160 | sed 's/^ *//')"
  else
    echo "FAILED: exit code $1: $({ grep -m 1 -E '^(error|.*Error|.*panicked)' "$3" || grep -v '^ *$' "$3" | tail -n 1; } | cut -c 1-160)"
  fi
}

# How many ranks this machine can have on GPUs: at least one.
ranks() { echo $((GPUS > 1 ? GPUS : 1)); }

in_work() { mkdir -p "$WORK/$1" && cd "$WORK/$1"; }

launch() { "$BIN/lockstep" run --standalone --nproc-per-node="$(ranks)" "$@"; }

find_python() {
  "$PYTHON" - "$WORK/gpus" <<'END'
import sys, torch
assert torch.__version__.startswith("2.11."), f"PyTorch is {torch.__version__}, not 2.11"
assert torch.version.cuda, "this PyTorch was built without CUDA"
count = torch.cuda.device_count()
open(sys.argv[1], "w").write(str(count))
names = ", ".join(torch.cuda.get_device_name(one) for one in range(count)) or "no GPU"
print(f"result: Python {sys.version.split()[0]}, PyTorch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}: {names}")
END
}

# In a checkout, what set-up has installed stays; the slim one lacks CUDA's libraries, and each step says so.
find_libtorch() {
  local torch
  if [ -e "$HOME_DIR/installed" ]; then
    echo "result: that of the checkout, $(libtorch_version "$HOME_DIR/site/torch" 2>/dev/null || true)"
    return
  fi
  torch=$("$PYTHON" -c 'import torch, os; print(os.path.dirname(torch.__file__))')
  mkdir -p "$HOME_DIR"
  make_view "$torch"
  echo "result: $torch"
}

lab_01() {
  local args=(3 3 --seed 7)
  in_work lab-01
  "$BIN/lab-01-single-gpu" "${args[@]}" --device cuda >ours
  "$PYTHON" "$ROOT/labs/01-single-gpu/single_gpu.py" "${args[@]}" >theirs
  trained 'loss' 1e-3
}

lab_06() {
  local args=(--samples 1024 --device cuda --save-every-steps 4)
  in_work lab-06
  export LOCKSTEP_DETERMINISTIC=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
  launch "$BIN/lab-06-snapshot-resume" "${args[@]}" --epochs 2 --snapshots whole --weights whole-weights
  launch "$BIN/lab-06-snapshot-resume" "${args[@]}" --epochs 1 --snapshots parts --weights first-epoch
  launch "$BIN/lab-06-snapshot-resume" "${args[@]}" --epochs 2 --snapshots parts --weights parts-weights
  cmp whole-weights/rank-0.safetensors parts-weights/rank-0.safetensors
  echo "result: the same bits as the run that did not stop"
}

across_devices() {
  in_work across
  local args=(--samples 512 --snapshots snapshots)
  launch "$BIN/lab-06-snapshot-resume" "${args[@]}" --epochs 1 --device cpu
  launch "$BIN/lab-06-snapshot-resume" "${args[@]}" --epochs 2 --device cuda
  launch "$BIN/lab-06-snapshot-resume" "${args[@]}" --epochs 3 --device cpu
}

lab_07() {
  in_work "lab-07$*"
  launch "$BIN/lab-07-cifar-resnet" --device cuda --epochs 1 --samples 1024 "$@"
}

sync_batch_norm() {
  local args=(--device cuda --epochs 1 --samples 512 --width 16 --lr 0.0003 --sync-batch-norm)
  needs_two || return 0
  in_work sync
  "$BIN/lab-07-cifar-resnet" "${args[@]}" --batch-size 32 --model-dir one >theirs
  "$BIN/lockstep" run --standalone --nproc-per-node=2 "$BIN/lab-07-cifar-resnet" "${args[@]}" --batch-size 16 --model-dir two >ours
  trained 'train loss' 1e-3
}

bench_step() {
  in_work bench
  "$BIN/lockstep" bench ddp --device cuda --ranks "$(ranks)" --models mlp --rounds 1 --warm-up 0 --steps 5 --against python --report bench.json
  "$PYTHON" - <<'END'
import json
for measure in json.load(open("bench.json"))["measures"]:
    if measure["quantity"] == "step":
        print("result:", ", ".join(f"{side['name']} {1000 * side['samples'][0]:.2f} ms" for side in measure["sides"]))
END
}

bench_collectives() {
  needs_two || return 0
  in_work bench
  "$BIN/lockstep" bench collectives --device cuda --ranks 2 --operations all_reduce,all_gather --rounds 1 --warm-up 0 --against python
}

# Returns false, and says so, where there are fewer than two GPUs.
needs_two() {
  [ "$GPUS" -lt 2 ] || return 0
  echo "not verified here: two ranks need two GPUs (here: $GPUS)"
  return 1
}

beside_python() {
  local args=(--epochs 2 --batch-size 32 --seed 3)
  in_work beside
  "$BIN/lab-07-draw-objects" --samples 2048 data
  launch "$BIN/lab-07-cifar-resnet" --device cuda --data data "${args[@]}" >ours
  launch "$PYTHON" "$ROOT/labs/07-cifar-resnet/cifar_resnet.py" --data data "${args[@]}" >theirs
  trained 'train loss' 5e-2
}

two_ranks() {
  needs_two || return 0
  in_work two
  "$BIN/lockstep" run --standalone --nproc-per-node=2 "$BIN/lab-05-collectives" --device cuda --results results
}

# cudarc asks for libnccl.so; PyTorch's wheel has libnccl.so.2.
with_nccl() {
  local torch nccl
  torch=$("$PYTHON" -c 'import torch, os; print(os.path.dirname(torch.__file__))')
  nccl=$(find "$torch/lib" "$torch"/../nvidia/*/lib -maxdepth 1 -name libnccl.so.2 -print -quit 2>/dev/null) || true
  mkdir -p "$WORK/libraries"
  [ -z "$nccl" ] || ln -sf "$(realpath "$nccl")" "$WORK/libraries/libnccl.so"
  LD_LIBRARY_PATH="$WORK/libraries:$torch/lib:${LD_LIBRARY_PATH:-}" "$@"
}

simulated_device() { LOCKSTEP_GPU=simulated tests lockstep-gpu-it; }

real_device() { LOCKSTEP_GPU=real with_nccl tests lockstep-gpu-it; }

lab_10() { LOCKSTEP_GPU=real with_nccl "$BIN/lab-10-nccl"; }

# tests PROGRAM [FILTER]
tests() {
  local program=$BIN/$1
  [ -x "$program" ] || { echo "not verified here: $1 is packed by --pack only" && return; }
  "$program" --test-threads 1 --nocapture "${@:2}"
}

# trained WORDS TOLERANCE: whether the numbers after these words are the same in both outputs.
trained() {
  "$PYTHON" - "$@" <<'END'
import re, sys
words, tolerance = sys.argv[1], float(sys.argv[2])
numbers = lambda name: [float(one) for one in re.findall(re.escape(words) + r"[: ]+([\d.]+)", open(name).read(), re.I)]
ours, theirs = numbers("ours"), numbers("theirs")
assert ours and len(ours) == len(theirs), f"{len(ours)} numbers, and {len(theirs)} to compare them with"
most = max(abs(a - b) for a, b in zip(ours, theirs))
assert most <= tolerance, f"losses differ by {most:g}: {ours} and {theirs}"
print(f"result: {len(ours)} losses differ by at most {most:.1g}")
END
}

write_report() {
  local row=0 name verdict seconds
  {
    echo "# What a machine with a GPU showed"
    echo
    echo "\`scripts/check_gpu.sh\`, $(date -u +%F), $2 s on $(uname -srm), $(nproc) cores: $(sed -n '1s/^[^\t]*\t\([^\t]*\).*/\1/p' "$ROWS")."
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sed 's/^/- /' || echo "- no nvidia-smi"
    echo
    echo "| step | verdict | time |"
    echo "|---|---|---|"
    sed 's/|/\\|/g; s/\t/ | /g; s/^/| /; s/$/ |/' "$ROWS"
    while IFS=$'\t' read -r name verdict seconds; do
      row=$((row + 1))
      # shellcheck disable=SC2016 # Markdown
      case $verdict in
      FAILED*) printf '\n## %s\n\nAfter %s, its last lines:\n\n```text\n%s\n```\n' "$name" "$seconds" "$(tail -n 30 "$WORK/log-$row")" ;;
      esac
    done <"$ROWS"
  } >"$1"
}

main "$@"
