# shellcheck shell=bash
# The surroundings in which run.sh and test.sh call cargo: those of .cargo/config.toml, whatever the caller's shell exports.

# The Python for comparisons, if set-up installed one: see peer.sh.
find_peer() {
  if [ -z "${LOCKSTEP_PYTHON:-}" ] && [ -f "$ROOT/.libtorch/python/installed" ]; then
    export LOCKSTEP_PYTHON=$ROOT/.libtorch/python/bin/python
  fi
}

# Sets TARGET, cargo's output folder. Binaries look for libtorch relative to $ROOT/target; elsewhere they need a hint.
prepare_cargo() {
  local name
  for name in RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTDOCFLAGS CARGO_ENCODED_RUSTDOCFLAGS CARGO_BUILD_TARGET; do
    [ -z "${!name:-}" ] || say "leaving $name out: it would replace the settings of .cargo/config.toml"
  done
  unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTDOCFLAGS CARGO_ENCODED_RUSTDOCFLAGS CARGO_BUILD_TARGET
  unset LIBTORCH_USE_PYTORCH LIBTORCH_INCLUDE LIBTORCH_LIB LIBTORCH_STATIC LIBTORCH_CXX11_ABI
  TARGET=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")
  export CARGO_TARGET_DIR=$TARGET
  [ "$TARGET" = "$ROOT/target" ] || export LD_LIBRARY_PATH=$ROOT/.libtorch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
