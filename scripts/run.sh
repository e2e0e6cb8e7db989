#!/usr/bin/env bash
# scripts/run.sh [ARGS]: set-up, build, then `lockstep ARGS` in the folder where it was called. Without ARGS: lockstep tour.
# The tour needs one lab and a part of the command, and a bench the command and its ranks, so only these are built for them; anything else
# may need all labs.
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

# Whether the command was built with more than the tour: then it stays so (harness/src/first.rs).
is_whole() {
  local version
  version=$("$TARGET/debug/lockstep" --version 2>/dev/null) && [[ $version != *"(first build)" ]]
}

[ $# -gt 0 ] || set -- tour
prepare_cargo
set_up
case $1 in
  tour)
    if is_whole; then unset 'TOUR[-1]'; fi
    build "the tour" "${TOUR[@]}"
    ;;
  bench | measure) build "the lockstep command and the ranks of its benches" --package lockstep-harness --package lockstep-bench-ranks ;;
  course) build "the lockstep command, all labs and all answers" "${ALL[@]}" ;;
  *) build "the lockstep command and all labs" ;;
esac
exec "$TARGET/debug/lockstep" "$@"
