#!/usr/bin/env bash
# scripts/run.sh [ARGS]: set-up, build, then `lockstep ARGS` in the folder where it was called. Without ARGS: lockstep tour.
# The tour needs the command and one lab, and a bench the command and its ranks, so only these are built for them; anything else may
# need all labs.
# Its stdout is lockstep's; set-up and build write to stderr.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/arch.sh
. "$ROOT/scripts/lib/arch.sh"
# shellcheck source=scripts/lib/cargo.sh
. "$ROOT/scripts/lib/cargo.sh"

# --quiet keeps a finished set-up silent; the first one prints its progress.
set_up() {
  if [ -f "$(libtorch_of "$MACHINE")/installed" ]; then
    "$ROOT/scripts/setup.sh" --quiet
  else
    "$ROOT/scripts/setup.sh"
  fi
}

# build NAME [--package PACKAGE...]: without packages, all labs. cargo reads .cargo/config.toml and rust-toolchain.toml from the
# current folder.
build() {
  local what=$1
  shift
  [ -f "$TARGET/debug/lockstep" ] || say "compiling $what: the first time takes minutes, the next one seconds"
  (cd "$ROOT" && cargo build "$@" >&2) ||
    die "the build failed (see cargo's message above)" "scripts/setup.sh --force, if libtorch is missing"
}

[ $# -gt 0 ] || set -- tour
prepare_cargo
set_up
case $1 in
  tour) build "the lockstep command and lab 06" --package lockstep-harness --package lab-06-snapshot-resume ;;
  bench | measure) build "the lockstep command and the ranks of its benches" --package lockstep-harness --package lockstep-bench-ranks ;;
  *) build "the lockstep command and all labs" ;;
esac
exec "$TARGET/debug/lockstep" "$@"
