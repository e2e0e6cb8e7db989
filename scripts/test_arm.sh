#!/usr/bin/env bash
# scripts/test_arm.sh: cross-builds for aarch64 on x86_64, and runs a part of the tests under user-mode emulation (scripts/setup.sh --arm-tools
# installs what that needs). The output folder is kept, so that a later run compiles what has changed.
#
# All of it runs under emulation, which does not show how the processor orders accesses to memory, pages of 64 KiB, NCCL or speed.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/arch.sh
. "$ROOT/scripts/lib/arch.sh"
# shellcheck source=scripts/lib/cargo.sh
. "$ROOT/scripts/lib/cargo.sh"
# shellcheck source=scripts/lib/checks.sh
. "$ROOT/scripts/lib/checks.sh"
# shellcheck source=scripts/lib/book.sh
. "$ROOT/scripts/lib/book.sh"
# shellcheck source=scripts/lib/arm.sh
. "$ROOT/scripts/lib/arm.sh"

# How long a step may take, in seconds: a process loads libtorch in 4 s of a core under emulation.
STEP_SECONDS=1800
# Libraries and tests in one command: with the same packages, cargo compiles each crate once.
LIBRARIES=(--package tcpstore --package lockstep-contract --package c10d --package lockstep --package lockstep-vision)
# resnet_golden takes minutes under emulation; procs_ need a Python, which is not emulated.
SKIPPED=(--skip resnet_golden:: --skip procs_)

FAILED=()

# seen NAME COMMAND...: runs it emulated, within the deadline.
seen() {
  local name=$1 rc=0 why begun=$SECONDS
  shift
  say "emulated aarch64: $name"
  emulated timeout --kill-after=10 "$STEP_SECONDS" "$@" || rc=$?
  if [ "$rc" = 0 ]; then
    SUMMARY+=("emulated: $name ($((SECONDS - begun)) s)")
  else
    case $rc in 124 | 137) why=", still running after $STEP_SECONDS s" ;; *) why= ;; esac
    SUMMARY+=("FAILED, emulated: $name (exit code $rc$why)")
    FAILED+=("$name")
  fi
}

# program PACKAGE TARGET: the file of a program of tests, of which cargo has just built or found the newest.
program() {
  cargo test --no-run "${LIBRARIES[@]}" --lib --test it --message-format json 2>/dev/null |
    sed -n 's/.*"reason":"compiler-artifact".*[/#]'"$1"'[@#].*"target":{[^}]*"name":"'"$2"'".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

# resumes: lab 06 loses a rank to SIGKILL after its first snapshot, is restarted, and ends with the weights of a run that nobody killed.
resumes() {
  local lab=$BIN/lab-06-snapshot-resume args=(--model mlp --samples 512 --epochs 2 --save-every-steps 2)
  "$BIN/lockstep" run --standalone --nproc-per-node=2 "$lab" "${args[@]}" --snapshots "$1/whole" --weights "$1/whole-weights"
  # shellcheck disable=SC2016 # the other shell expands it
  ONCE_KILLED=$1/killed "$BIN/lockstep" run --standalone --nproc-per-node=2 --max-restarts=1 \
    bash -c 'set -e
      if [ "$RANK" = 1 ] && [ ! -e "$ONCE_KILLED" ]; then
        rank=$BASHPID
        (
          until [ -n "$(find "$1" -name "*.safetensors" -print -quit 2>/dev/null)" ]; do
            kill -0 "$rank" 2>/dev/null || exit 0
            sleep 0.2
          done
          touch "$ONCE_KILLED"
          kill -9 "$rank" || rm "$ONCE_KILLED"
        ) &
      fi
      folder=$1
      shift
      exec "$@" --snapshots "$folder"' _ "$1/parts" "$lab" "${args[@]}" --weights "$1/parts-weights"
  [ -e "$1/killed" ] || { echo "the rank ended before it was killed" >&2 && return 1; }
  cmp "$1/whole-weights/rank-0.safetensors" "$1/parts-weights/rank-0.safetensors"
}

main() {
  local missing work
  SUMMARY=()
  missing=$(missing_arm_tools | paste -sd ';')
  [ -z "$missing" ] || die "aarch64 cannot be emulated here: ${missing//;/; }" "scripts/setup.sh --arm-tools"
  cd "$ROOT"
  prepare_cargo
  export CARGO_BUILD_TARGET=$ARM_TRIPLE CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=${ARM_COMPILER/g++/gcc}
  BIN=$TARGET/$ARM_TRIPLE/debug
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder's name now
  trap "rm -rf '$work'" EXIT
  cargo build "${LIBRARIES[@]}" --package lockstep-harness --package lab-06-snapshot-resume
  cargo test --no-run "${LIBRARIES[@]}" --lib --test it
  seen "contract's tests" "$(program lockstep-contract lockstep_contract)"
  seen "tcpstore's tests" "$(program tcpstore it)"
  export -f resumes
  export BIN
  # shellcheck disable=SC2016 # the other shell expands it
  seen "lockstep run, and lab 06 killed and resumed to the same bits" bash -euo pipefail -c 'resumes "$1"' _ "$work"
  seen "c10d in memory" "$(program c10d it)" shared_memory:: p2p:: collectives:: "${SKIPPED[@]}"
  seen "golden values" "$(program lockstep it)" golden "${SKIPPED[@]}"
  printf '%s\n' "${SUMMARY[@]}"
  echo "not verified here: aarch64's order of accesses to memory, pages of 64 KiB, NCCL and speed (aarch64 was emulated)"
  [ "${#FAILED[@]}" = 0 ]
}

main "$@"
