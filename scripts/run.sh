#!/usr/bin/env bash
# scripts/run.sh [ARGS]: set-up, build, then `lockstep ARGS` in the folder where it was called. Without ARGS: lockstep tour.
# Its stdout is lockstep's; set-up and build write to stderr.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/cargo.sh
. "$ROOT/scripts/lib/cargo.sh"

# The first set-up prints what it does; later ones are silent.
set_up() {
  if [ -f "$ROOT/.libtorch/installed" ]; then
    "$ROOT/scripts/setup.sh" --quiet
  else
    "$ROOT/scripts/setup.sh"
  fi
}

# cargo reads .cargo/config.toml and rust-toolchain.toml from the folder that it runs in.
build() {
  (cd "$ROOT" && cargo build >&2) || die "the build failed (see cargo's message above)" "scripts/setup.sh --force, if libtorch is missing"
}

[ $# -gt 0 ] || set -- tour
prepare_cargo
set_up
build
exec "$TARGET/debug/lockstep" "$@"
