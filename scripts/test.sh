#!/usr/bin/env bash
# scripts/test.sh [ARGS]: set-up, then the whole test run: format, clippy, tests, documentation tests, the model checker, emulated
# aarch64, packages, the book, and the page of a class in a browser.
# With ARGS, only the tests: ARGS go to cargo-nextest where it is installed, else to `cargo test` (scripts/test.sh -p c10d).
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

# What a whole run leaves in cargo's output folder, and what its incremental files add there.
BUILT_MB=4500
INCREMENTAL_MB=4000

SUMMARY=()
PASSED=0
FAILED=0

# step NAME COMMAND...: runs COMMAND and records how it ended; the other steps run in any case.
step() {
  local name=$1 start=$SECONDS verdict=passed
  shift
  printf '\ntest: %s: %s\n' "$name" "$*"
  if "$@"; then PASSED=$((PASSED + 1)); else verdict=FAILED FAILED=$((FAILED + 1)); fi
  SUMMARY+=("$(printf '%-14s %-7s %4d s   %s' "$name" "$verdict" $((SECONDS - start)) "$*")")
}

# leave_out NAME REASON: reports a step that cannot run here; it never counts as passed.
leave_out() {
  SUMMARY+=("$(printf '%-14s %-14s   %s' "$1" 'not verified' "$2")")
}

# Before anything is compiled: a disk that fills up in the middle fails every step after it. What is already compiled counts.
check_space() {
  local needed=$BUILT_MB
  [ "${CARGO_INCREMENTAL:-1}" = 0 ] || needed=$((needed + INCREMENTAL_MB))
  mkdir -p "$TARGET"
  needed=$((needed - $(megabytes "$TARGET")))
  [ "$needed" -le 0 ] || check_disk "$TARGET" "$needed" "compiling and running all tests"
  stop_on_problems
}

has() {
  cargo "$1" --version >/dev/null 2>&1
}

check_sources() {
  if has fmt; then step format cargo fmt --check; else leave_out format "rustup component add rustfmt"; fi
  if has clippy; then
    step clippy cargo clippy --all-targets -- -D warnings
  else
    leave_out clippy "rustup component add clippy"
  fi
}

# After the tests, whose programs determine which options the book may name.
check_book() {
  if command -v python3 >/dev/null; then step book read_book; else leave_out book "python3 is not on PATH"; fi
}

# Its stdout is captured for tell_unverified.
read_book() {
  {
    rc=0
    python3 scripts/record.py --check || rc=1
    python3 scripts/check_book.py || rc=1
    python3 scripts/check_class.py || rc=1
    exit "$rc"
  } | tee "$TARGET/book.txt"
}

# What others use: documentation, packages and their examples. After the tests, because it reuses their build.
check_packages() {
  if command -v python3 >/dev/null; then
    step packages scripts/check_packages.py
  else
    leave_out packages "python3 is not on PATH"
  fi
}

# What learners begin with. After the tests, because it reuses their build.
check_course() {
  step course "$TARGET/debug/lockstep" course check --build
}

run_tests() {
  if has nextest; then
    step tests cargo nextest run --no-fail-fast "$@"
    [ $# -gt 0 ] || step documentation cargo test --doc
  else
    step tests cargo test --no-fail-fast "$@" # these include the documentation's
  fi
}

# Repeats the tests that depend on the processor's instructions with older ones: a limit that holds only on this processor is a
# bug.
check_learning() {
  local older=(scripts/with_instructions.sh older)
  if ! has nextest; then
    leave_out learning "cargo install cargo-nextest --locked"
  elif "${older[@]}" true 2>/dev/null; then
    step learning "${older[@]}" cargo nextest run --profile learning --no-fail-fast
  else
    leave_out learning "this processor has neither AVX-512 nor AVX2 nor SVE, so there are no older instructions to run with"
  fi
}

# The protocols of shared memory, in the model checker's orders. With other flags than the rest, so in a folder of its own.
check_memory_model() {
  step memory-model env RUSTFLAGS='--cfg loom' cargo test --package lockstep-memory-model --target-dir "$TARGET/loom"
}

# Emulated aarch64, where its tools are: scripts/setup.sh --arm-tools.
check_arm() {
  if [ -z "$(missing_arm_tools)" ]; then
    step aarch64 scripts/test_arm.sh
  else
    leave_out aarch64 "scripts/setup.sh --arm-tools installs what emulates it: $(missing_arm_tools | paste -sd ';' | sed 's/;/; /g')"
  fi
}

# Where the time of the tests went.
tell_times() {
  [ ! -f "$REPORT" ] || ! command -v python3 >/dev/null || python3 scripts/lib/times.py "$REPORT" | sed 's/^/test: /'
}

# What single tests could not check here: they pass and print it on stdout, but they prove nothing.
tell_unverified() {
  { grep -oh 'not verified here: .*' "$TARGET/book.txt" || true; } 2>/dev/null | sort -u | sed 's/^/test: /'
  if has nextest; then
    { grep -oh 'not verified here: [^<]*' "$REPORT" || true; } 2>/dev/null | sort -u | sed 's/^/test: /'
  else
    printf 'test: the output of the tests shows what could not be verified here: cargo test TEST -- --nocapture\n'
  fi
}

summarize() {
  printf '\n'
  tell_times
  tell_unverified
  printf 'test: %s\n' "${SUMMARY[@]}"
  [ "$FAILED" = 0 ] || { printf 'test: FAILED: %d of %d steps\n' "$FAILED" "${#SUMMARY[@]}" && exit 1; }
  printf 'test: passed (%d of %d steps verified)\n' "$PASSED" "${#SUMMARY[@]}"
}

cd "$ROOT"
# Tests spend half of their time waiting: for messages, for processes, for what must not come.
export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$((2 * $(nproc)))}
prepare_cargo
check_temporary
scripts/setup.sh
find_peer
[ $# -gt 0 ] || check_space
REPORT=$TARGET/nextest/${NEXTEST_PROFILE:-default}/junit.xml # nextest's, of this run
rm -f "$TARGET/book.txt" "$REPORT"
[ $# -gt 0 ] || check_sources
run_tests "$@"
[ $# -gt 0 ] || check_learning
[ $# -gt 0 ] || check_memory_model
[ $# -gt 0 ] || check_arm
[ $# -gt 0 ] || check_course
[ $# -gt 0 ] || check_packages
[ $# -gt 0 ] || check_book
summarize
