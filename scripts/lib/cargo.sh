# shellcheck shell=bash
# The surroundings in which run.sh and test.sh call cargo: those of .cargo/config.toml, whatever the caller's shell exports. Needs say.sh,
# arch.sh and ROOT.

# What the tour needs: a lab, and the part of the command that runs it (harness/src/first.rs).
# shellcheck disable=SC2034 # for the scripts that read this file
TOUR=(--package lockstep-harness --package lab-06-snapshot-resume --no-default-features)
# All but the unsolved exercises.
# shellcheck disable=SC2034
ALL=(--workspace --exclude 'ex-*')

# The Python for comparisons, if set-up installed one: see peer.sh.
find_peer() {
  # PYTHONPATH is searched before the Python's own packages.
  [ -z "${PYTHONPATH:-}${PYTHONHOME:-}" ] || say "leaving PYTHONPATH and PYTHONHOME out: they may lead to another PyTorch"
  unset PYTHONPATH PYTHONHOME
  local python
  python=$(libtorch_of "$MACHINE")/python
  if [ -z "${LOCKSTEP_PYTHON:-}" ] && [ -f "$python/installed" ]; then
    export LOCKSTEP_PYTHON=$python/bin/python
  fi
}

# The variables with flags for the compilers, of which some name an architecture: CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS.
flags_for_cargo() {
  compgen -v | grep -E '^(CARGO_.*)?RUST(DOC)?FLAGS$' || true
}

# The first of the user's cargo configurations that sets [build] target, in the order in which cargo reads them. cargo then puts programs
# into a folder of the target's name, and nothing but another target takes that back.
configured_target() {
  local folder=$ROOT home=~ files=() file
  while [ "$folder" != / ]; do
    folder=$(dirname "$folder")
    files+=("${folder%/}/.cargo/config" "${folder%/}/.cargo/config.toml")
  done
  files+=("${CARGO_HOME:-$home/.cargo}/config" "${CARGO_HOME:-$home/.cargo}/config.toml")
  for file in "${files[@]}"; do
    [ -r "$file" ] || continue
    if awk '/^[ \t]*\[/ { build = /^[ \t]*\[ *build *\]/ }
      build && /^[ \t]*target[ \t]*=/ || /^[ \t]*build *\. *target[ \t]*=/ { found = 1 } END { exit !found }' "$file"; then
      echo "$file"
      return
    fi
  done
}

# Sets TARGET, cargo's output folder, which is this architecture's and must be writable. Programs look for libtorch by a path relative to
# that folder, but in the folders of LD_LIBRARY_PATH first, where a module may have put another PyTorch: ours goes before it, and serves a
# TARGET elsewhere, too.
prepare_cargo() {
  local name file
  for name in CARGO_BUILD_TARGET $(flags_for_cargo); do
    [ -z "${!name:-}" ] || say "leaving $name out: it would change what is built"
    unset "$name"
  done
  file=$(configured_target)
  [ -z "$file" ] || die "$file sets [build] target, by which cargo puts programs where these scripts do not find them" \
    "take that line out, or work by hand with plain cargo and the programs in target/TARGET/debug"
  unset LIBTORCH_USE_PYTORCH LIBTORCH_INCLUDE LIBTORCH_LIB LIBTORCH_STATIC LIBTORCH_CXX11_ABI
  TARGET=$(realpath -m "${CARGO_TARGET_DIR:-$(target_of "$MACHINE")}")
  export CARGO_TARGET_DIR=$TARGET
  if [ "$TARGET" != "$(target_of "$MACHINE")" ] || [ -n "${LD_LIBRARY_PATH:-}" ]; then
    LD_LIBRARY_PATH=$(libtorch_of "$MACHINE")/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
  fi
  { mkdir -p "$TARGET" && [ -w "$TARGET" ]; } 2>/dev/null ||
    die "cannot write to $TARGET, where cargo puts what it builds" \
      "clone the project into a folder of your own, or export CARGO_TARGET_DIR=DIR, a folder in which you may write"
}

# Tests make programs among the temporary files and run them, and rustdoc does so with documentation tests.
check_temporary() {
  local probe ran
  probe=$(mktemp 2>&1) || die "no temporary files can be made ($probe)" "export TMPDIR=DIR, a folder in which you may write"
  { printf '#!/bin/sh\n' >"$probe"; } 2>/dev/null || die "nothing can be written to ${TMPDIR:-/tmp}: it is full" "export TMPDIR=DIR, a folder on another file system"
  chmod +x "$probe"
  ran=$("$probe" 2>&1) || ran=${ran:-failed}
  rm -f "$probe"
  [ -z "$ran" ] ||
    die "programs in ${TMPDIR:-/tmp} cannot be run (${ran##*: }): it is probably mounted noexec" \
      "export TMPDIR=DIR, a folder on another file system"
}
