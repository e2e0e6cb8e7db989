#!/usr/bin/env bash
# scripts/run.sh [ARGS]: set-up, build, then `lockstep ARGS` in the folder where it was called. Without ARGS: lockstep tour.
# Its stdout is that of lockstep; set-up and build speak on stderr.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/cargo.sh
. "$ROOT/scripts/lib/cargo.sh"

# --quiet on a finished set-up keeps it silent; the first one talks.
set_up() {
  if [ -f "$ROOT/.libtorch/installed" ]; then
    "$ROOT/scripts/setup.sh" --quiet
  else
    "$ROOT/scripts/setup.sh"
  fi
}

# cargo reads .cargo/config.toml and rust-toolchain.toml from the folder that it runs in.
build() {
  (cd "$ROOT" && cargo build >&2) || die "the build failed (cargo's message stands above)" "scripts/setup.sh --force, if it is libtorch that is missing"
}

[ $# -gt 0 ] || set -- tour
prepare_cargo
set_up
build
exec "$TARGET/debug/lockstep" "$@"
