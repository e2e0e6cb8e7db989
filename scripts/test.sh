#!/usr/bin/env bash
# scripts/test.sh [AREA | ARGS]: set-up, then the whole test run: format, everything compiled with clippy's lints, tests, documentation
# tests, learning on older instructions, the model checker, emulated aarch64, packages, the book, the page of a class in a browser, and
# what all this costs (budget.toml).
# With an AREA, what a change there can break: engine (what can be published), runtime (what the labs import), course (labs, graders,
# book) or site (clusters, doctor, batch scripts); CONTRIBUTING.md says why that is enough.
# With ARGS, only tests: ARGS go to cargo-nextest where it is installed, else to `cargo test` (scripts/test.sh -p c10d).
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
BUILT_MB=5000
INCREMENTAL_MB=4000

# The tests of each area; what no other has is the course's.
ENGINE='package(c10d) | package(tcpstore) | package(/^lockstep-(contract|launch|memory-model|paths|process)$/)
  | (package(lockstep-harness) & binary(it) & test(/^(run|run_usage|verdict)::/))'
RUNTIME='package(lockstep) | package(/^lockstep-(bench-ranks|cost|datasets|picture-decoder|plot|rank-messages|vision)$/)'
SITE='package(lockstep-site) | (package(lockstep-harness) & test(/^(cluster|doctor|render|sites)::/))'
# A process that loads libtorch costs 0.17 s of a core, and nextest starts one for each test. Many small tests without processes of their own
# share one, one after the other.
TOGETHER='((package(lockstep) | package(c10d)) & kind(lib)) | (package(lockstep) & binary(it) & not test(/^pace::/)) | package(lockstep-vision)'
declare -A TESTS=([engine]="($ENGINE) & not ($TOGETHER)" [runtime]="($RUNTIME) & not ($TOGETHER)" [site]=$SITE
  [course]="not ($ENGINE | $RUNTIME | $SITE)")
declare -A SHARING=([engine]="c10d" [runtime]="lockstep lockstep::it lockstep-vision lockstep-vision::it") # nextest's names of TOGETHER's binaries

SUMMARY=()
PASSED=0
FAILED=0

# step NAME COMMAND...: runs COMMAND and records how it ended, and its seconds of processor time; the other steps run in any case.
step() {
  local name=$1 start=$SECONDS rc=0
  shift
  printf '\ntest: %s: %s\n' "$name" "$*"
  measured "$COSTS/$name" "$@" || rc=$?
  record "$name" "$rc" $((SECONDS - start)) "$*"
}

# record NAME RC SECONDS COMMAND: a step that has ended.
record() {
  local verdict=passed
  if [ "$2" = 0 ]; then PASSED=$((PASSED + 1)); else verdict=FAILED FAILED=$((FAILED + 1)); fi
  SUMMARY+=("$(printf '%-14s %-7s %4d s %5d s of processors   %s' "$1" "$verdict" "$3" "$(cat "$COSTS/$1")" "$4")")
}

# measured FILE COMMAND...: in a process of its own, whose ended children are COMMAND's.
measured() (
  file=$1 rc=0
  shift
  "$@" || rc=$?
  read -ra stat <"/proc/$BASHPID/stat"
  echo $(((stat[15] + stat[16]) / $(getconf CLK_TCK))) >"$file"
  exit "$rc"
)

# beside NAME COMMAND...: starts COMMAND next to the steps that follow, its output in a file; `join_steps` records it. Only for what builds
# nothing in cargo's output folder, for whose lock a test would wait.
BESIDE=()
beside() {
  local name=$1
  shift
  printf '\ntest: %s, next to the tests: %s\n' "$name" "$*"
  (
    rc=0 start=$SECONDS
    measured "$COSTS/$name" "$@" >"$COSTS/$name.txt" 2>&1 </dev/null || rc=$?
    printf '%d\n%d\n%s\n' "$rc" $((SECONDS - start)) "$*" >"$COSTS/$name.ended"
  ) &
  BESIDE+=("$name")
}

join_steps() {
  local name ended
  wait
  for name in "${BESIDE[@]}"; do
    printf '\ntest: %s:\n' "$name"
    cat "$COSTS/$name.txt"
    mapfile -t ended <"$COSTS/$name.ended"
    record "$name" "${ended[@]}"
  done
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

# Clippy as the compiler of this workspace's crates: what it has looked at is compiled, too, where `cargo clippy` would look at each crate
# and all its dependencies once more. What plain cargo commands have compiled of these crates stays next to it.
lint_while_compiling() {
  local driver
  if driver=$(command -v clippy-driver) && has clippy; then
    export RUSTC_WORKSPACE_WRAPPER=$driver
  else
    leave_out clippy "rustup component add clippy"
  fi
}

without_lints() {
  env -u RUSTC_WORKSPACE_WRAPPER "$@"
}

# cargo repeats the warnings of what is compiled already.
compile_without_warnings() {
  local rc=0
  cargo test --no-run --all-targets "${ALL[@]}" 2>&1 | tee "$COSTS/compiled.txt" || rc=$?
  [ "$rc" = 0 ] && ! grep -E '^warning: .* generated [0-9]+ warning' "$COSTS/compiled.txt"
}

check_sources() {
  if has fmt; then step format cargo fmt --check; else leave_out format "rustup component add rustfmt"; fi
  check_tree
  lint_while_compiling
  [ -d "$TARGET/debug/deps" ] || WAS_EMPTY=1
  if [ "$WAS_EMPTY" = 1 ]; then
    step first-command cargo build "${TOUR[@]}"
    step rest-of-it becomes_whole
  fi
  step compile compile_without_warnings
}

# The first build, asked for what it lacks.
becomes_whole() {
  [[ $("$TARGET/debug/lockstep" --version) == *"(first build)" ]] &&
    "$TARGET/debug/lockstep" hint 02 average --level 1 && [[ $("$TARGET/debug/lockstep" --version) != *"(first build)" ]]
}

# What is written depends on the programs that have been compiled.
check_book() {
  if command -v python3 >/dev/null; then "$1" book read_book; else leave_out book "python3 is not on PATH"; fi
}

# Its stdout is captured for tell_unverified.
read_book() {
  {
    rc=0
    python3 scripts/record.py --check || rc=1
    python3 scripts/check_book.py || rc=1
    python3 scripts/check_class.py || rc=1
    python3 scripts/check_replay.py || rc=1
    exit "$rc"
  } | tee "$TARGET/book.txt"
}

# What others use: packages and their examples. After the tests, because it builds.
check_packages() {
  if command -v python3 >/dev/null; then
    step packages without_lints scripts/check_packages.py
  else
    leave_out packages "python3 is not on PATH"
  fi
}

# What learners begin with. After the tests, because it builds.
check_course() {
  step course-check "$TARGET/debug/lockstep" course check --build
}

# run_tests AREA...
run_tests() {
  local area
  if ! has nextest; then
    step tests cargo test --no-fail-fast "${ALL[@]}"
    return
  fi
  for area in "$@"; do
    step "$area" nextest "$area"
  done
}

# run_together AREA...: the tests of TOGETHER. c10d's `it` is not among them: most of its tests wait for ranks that are late or lost.
run_together() {
  local area binaries=()
  for area in "$@"; do
    read -ra binaries <<<"${binaries[*]} ${SHARING[$area]}"
  done
  cargo nextest list "${ALL[@]}" --list-type binaries-only --message-format json |
    python3 scripts/lib/together.py "${binaries[@]}" -- --skip pace::
}

nextest() {
  local rc=0
  cargo nextest run --no-fail-fast "${ALL[@]}" --filterset "${TESTS[$1]}" || rc=$?
  mv "$REPORT" "$COSTS/$1.xml" || rc=1
  return "$rc"
}

# All of it in an area, too: for some packages cargo would compile their libraries once more.
check_documentation() {
  ! has nextest || step documentation cargo test --doc "${ALL[@]}" # `cargo test` has run them already
}

# Repeats the tests that depend on the processor's instructions with older ones: a limit that holds only on this processor is a
# bug.
check_learning() {
  local older=(scripts/with_instructions.sh older)
  if ! has nextest; then
    leave_out learning "cargo install cargo-nextest --locked"
  elif "${older[@]}" true 2>/dev/null; then
    step learning "${older[@]}" cargo nextest run --profile learning --no-fail-fast "${ALL[@]}"
  else
    leave_out learning "this processor has neither AVX-512 nor AVX2 nor SVE, so there are no older instructions to run with"
  fi
}

# The protocols of shared memory, in the model checker's orders. With other flags than the rest, so in a folder of its own.
check_memory_model() {
  "$1" memory-model without_lints env RUSTFLAGS='--cfg loom' cargo test --package lockstep-memory-model --target-dir "$TARGET/loom"
}

# Emulated aarch64, where its tools are: scripts/setup.sh --arm-tools.
check_arm() {
  if [ -z "$(missing_arm_tools)" ]; then
    step aarch64 without_lints scripts/test_arm.sh
  else
    leave_out aarch64 "scripts/setup.sh --arm-tools installs what emulates it: $(missing_arm_tools | paste -sd ';' | sed 's/;/; /g')"
  fi
}

# tell_reports WHAT REPORT...: what scripts/lib/test_reports.py says of those reports that are there.
tell_reports() {
  local what=$1 report reports=()
  shift
  for report in "$@"; do
    [ ! -f "$report" ] || reports+=("$report")
  done
  [ ${#reports[@]} = 0 ] || ! command -v python3 >/dev/null || python3 scripts/lib/test_reports.py "$what" "${reports[@]}" | sed 's/^/test: /'
}

# The last that is printed: where only the end of a long output is at hand, it says what failed.
tell_failed() {
  tell_reports failed "$COSTS"/*.xml "$LEARNING_REPORT"
  { grep -hE '(\.\.\. FAILED$|: error: |is stale|[0-9] faults)' "$COSTS"/*.txt || true; } 2>/dev/null | sed 's/^/test: failed: /'
}

# What single tests could not check here: they pass and print it on stdout, but they prove nothing.
tell_unverified() {
  { grep -oh 'not verified here: .*' "$TARGET/book.txt" || true; } 2>/dev/null | sort -u | sed 's/^/test: /'
  if has nextest; then
    { grep -oh 'not verified here: [^<]*' "$REPORT" "$COSTS"/*.xml "$COSTS"/together.txt || true; } 2>/dev/null | sort -u | sed 's/^/test: /'
  else
    printf 'test: the output of the tests shows what could not be verified here: cargo test TEST -- --nocapture\n'
  fi
}

check_tree() {
  if ! command -v python3 >/dev/null; then
    leave_out tree "python3 is not on PATH"
  elif ! git -C "$ROOT" rev-parse --git-dir >/dev/null 2>&1; then
    leave_out tree "this folder is no git repository, which says what belongs to it"
  else
    step tree python3 scripts/budget.py --tree
  fi
}

# What an empty output folder is compiled in is compared only then.
check_budget() {
  local costs=()
  [ "$WAS_EMPTY" = 1 ] || rm -f "$COSTS/compile"
  if ! command -v python3 >/dev/null; then leave_out budget "python3 is not on PATH" && return; fi
  for file in "$COSTS"/*; do
    case $file in *.*) ;; *) costs+=("${file##*/}=$(cat "$file")") ;; esac
  done
  step budget python3 scripts/budget.py --yardstick "$YARDSTICK" "${costs[@]}" -- "${TOUR[@]}"
}

summarize() {
  printf '\n'
  tell_reports times "$COSTS"/*.xml
  tell_unverified
  printf 'test: %s\n' "${SUMMARY[@]}"
  if [ "$FAILED" -gt 0 ]; then
    tell_failed
    printf 'test: FAILED: %d of %d steps\n' "$FAILED" "${#SUMMARY[@]}"
    exit 1
  fi
  printf 'test: passed (%d of %d steps verified)\n' "$PASSED" "${#SUMMARY[@]}"
}

run_everything() {
  check_space
  check_sources
  ! has nextest || beside together run_together engine runtime
  check_memory_model beside
  check_book beside
  run_tests engine site course runtime
  join_steps
  check_documentation
  check_learning
  check_arm
  check_course
  check_packages
}

run_area() {
  has nextest || die "areas need cargo-nextest" "cargo install cargo-nextest --locked, or scripts/test.sh without an area"
  check_sources
  [ -z "${SHARING[$1]:-}" ] || beside together run_together "$1"
  case $1 in
    engine) check_memory_model beside ;;
    course) check_book beside ;;
  esac
  run_tests "$1"
  join_steps
  case $1 in
    engine) check_documentation && check_packages ;;
    runtime) check_documentation ;;
    course) check_course ;;
  esac
}

# run_some ARGS: for plain cargo and quick answers, so without lints.
run_some() {
  [[ " $* " =~ \ (-p|--package|--workspace)[\ =] ]] || set -- "${ALL[@]}" "$@"
  if has nextest; then
    step tests cargo nextest run --no-fail-fast "$@"
  else
    step tests cargo test --no-fail-fast "$@" # these include the documentation's
  fi
}

cd "$ROOT"
# Tests spend half of their time waiting: for messages, for processes, for what must not come.
export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$((2 * $(nproc)))}
prepare_cargo
check_temporary
scripts/setup.sh
find_peer
WAS_EMPTY=0
REPORT=$TARGET/nextest/${NEXTEST_PROFILE:-default}/junit.xml # nextest's, of this run
LEARNING_REPORT=$TARGET/nextest/learning/junit.xml
COSTS=$TARGET/test-run # of each step: seconds of processor time, reports, output
rm -rf "$TARGET/book.txt" "$REPORT" "$LEARNING_REPORT" "$COSTS"
mkdir -p "$COSTS"
YARDSTICK=$(python3 scripts/budget.py --measure 2>/dev/null || true)
case ${1:-} in
  '')
    run_everything
    check_budget
    ;;
  engine | runtime | site | course)
    [ $# = 1 ] || die "an area stands alone" "scripts/test.sh $1, or scripts/test.sh ARGS for single tests"
    run_area "$1"
    check_budget
    ;;
  *) run_some "$@" ;;
esac
summarize
