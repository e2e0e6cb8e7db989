#!/usr/bin/env bash
# Puts libtorch 2.11 where this checkout's cargo configuration looks for it: .libtorch, a folder that git ignores. It changes
# nothing outside the checkout, except rustup's toolchain and what --book-tools, --cluster-tools and --arm-tools install. You can run it
# again at any time: it continues after an interruption and ends at once if there is nothing to do. It does not build anything.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
LIB=$ROOT/scripts/lib
# shellcheck source=scripts/lib/say.sh
. "$LIB/say.sh"
# shellcheck source=scripts/lib/arch.sh
. "$LIB/arch.sh"
# shellcheck source=scripts/lib/cargo.sh
. "$LIB/cargo.sh"

# for_machine MACHINE: all that follows is for this architecture.
for_machine() {
  MACHINE=$1
  HOME_DIR=$(libtorch_of "$1")
  RECORD=$HOME_DIR/installed
  PEER=$HOME_DIR/python
}
for_machine "$MACHINE"

# shellcheck source=scripts/lib/checks.sh
. "$LIB/checks.sh"
# shellcheck source=scripts/lib/view.sh
. "$LIB/view.sh"
# shellcheck source=scripts/lib/install.sh
. "$LIB/install.sh"
# shellcheck source=scripts/lib/peer.sh
. "$LIB/peer.sh"
# shellcheck source=scripts/lib/book.sh
. "$LIB/book.sh"
# shellcheck source=scripts/lib/cluster.sh
. "$LIB/cluster.sh"
# shellcheck source=scripts/lib/arm.sh
. "$LIB/arm.sh"

# Disk in MB while the wheels are unpacked, and with cargo's output in target/ for the tour and the labs; all tests take 6,000
# MB there.
declare -A DISK=([slim]=1900 [slim-built]=4000 [full]=7500 [full-built]=8500)

# How long to wait for another set-up of the same checkout, in seconds.
LOCK_SECONDS=1800

usage() {
  cat <<'END'
usage: scripts/setup.sh [OPTIONS]

Installs libtorch 2.11.0 into .libtorch, for this checkout only. Without options it keeps what is installed; on the first
run it looks for a GPU and installs for CUDA or for the CPU.

what to install
  --auto               look for a GPU and install for what is found
  --cpu                for the CPU only
  --cuda               for NVIDIA GPUs, with NCCL: 2.9 GB to fetch
  --slim               only what a CPU run loads: 545 MB to fetch, 1.2 GB on disk (the default for --cpu)
  --full               PyTorch with all its packages: 2.7 GB to fetch, 4.5 GB on disk (always so for --cuda)
  --nccl               also the headers that NCCL's part is compiled with, as --cuda does: 202 MB to fetch
  --python-peer        also a Python with PyTorch and torchvision, with which tests compare: 40 MB to fetch, 0.4 GB on disk
  --book-tools         also what checks the built book: mdBook, compiled into .tools, and Chromium, where root can install it
  --cluster-tools      also what tests of clusters run on, such as Slurm and Open MPI, where root can install them
  --arm-tools          also what builds for aarch64 on x86_64 and emulates it, and libtorch for it: 550 MB to fetch
  --force              install again, whatever is there

an existing libtorch 2.11 instead
  --use-libtorch DIR   an unpacked libtorch or a torch folder of a Python (the variable LIBTORCH means the same)
  --use-python-torch   the PyTorch of the active Python

  --python PYTHON      the Python that fetches the wheel, or whose PyTorch is used (default: python3)
  --quiet              warnings and errors only
  --help               this text

variables
  LIBTORCH                        as --use-libtorch; --auto, --cpu, --cuda, --slim and --full take precedence
  LIBTORCH_BYPASS_VERSION_CHECK   accept an existing libtorch whose version is not 2.11
  LOCKSTEP_FETCH=pip              let pip fetch the files by itself (for an index that asks for a login)
END
}

parse_arguments() {
  BACKEND='' SIZE='' FOREIGN='' PYTHON_TORCH=0 WANT_PYTHON='' WANT_NCCL=0 WANT_PEER=0 WANT_BOOK=0 WANT_CLUSTER=0 WANT_ARM=0 FORCE=0
  while [ $# -gt 0 ]; do
    case $1 in
    --auto | --cpu | --cuda) BACKEND=${1#--} ;;
    --slim | --full) SIZE=${1#--} ;;
    --nccl) WANT_NCCL=1 ;;
    --python-peer) WANT_PEER=1 ;;
    --book-tools) WANT_BOOK=1 ;;
    --cluster-tools) WANT_CLUSTER=1 ;;
    --arm-tools) WANT_ARM=1 ;;
    --force) FORCE=1 ;;
    --quiet) QUIET=1 ;;
    --use-python-torch) PYTHON_TORCH=1 ;;
    --use-libtorch | --python)
      [ $# -ge 2 ] || die "$1 needs a value" "scripts/setup.sh --help"
      if [ "$1" = --python ]; then WANT_PYTHON=$2; else FOREIGN=$2; fi
      shift
      ;;
    --help | -h) usage && exit 0 ;;
    *) die "unknown option '$1'" "scripts/setup.sh --help" ;;
    esac
    shift
  done
}

# The request, as WANT: "" (whatever is there), "own" or the folder of an existing libtorch.
resolve_request() {
  local asked_own=${BACKEND}${SIZE}
  WANT=''
  if [ -n "$asked_own" ]; then WANT=own; fi
  if [ -n "$FOREIGN" ] || [ "$PYTHON_TORCH" = 1 ]; then
    [ -z "$asked_own" ] || die "--auto, --cpu, --cuda, --slim and --full choose what to install; they do not apply to an existing libtorch"
  elif [ -z "$asked_own" ] && [ -n "${LIBTORCH:-}" ] && ! [ "$LIBTORCH" -ef "$HOME_DIR" ]; then
    FOREIGN=$LIBTORCH
  fi
  if [ "$PYTHON_TORCH" = 1 ]; then FOREIGN=$(python_torch); fi
  if [ -n "$FOREIGN" ]; then WANT=$(libtorch_dir "$FOREIGN") || no_libtorch_in "$FOREIGN"; fi
  [ "$BACKEND" != auto ] || choose_backend
  [ "$BACKEND-$SIZE" != -slim ] || BACKEND=cpu
  [ "$BACKEND-$SIZE" != cuda-slim ] || die "a CUDA run needs the packages that --slim leaves out" "scripts/setup.sh --cuda"
}

no_libtorch_in() {
  die "no lib/libtorch_cpu.so and include in '$1', nor in a folder torch or libtorch in it" \
    "name the folder of an unpacked libtorch 2.11, or unset LIBTORCH to let this script fetch one"
}

python_torch() {
  local python=${WANT_PYTHON:-python3}
  "$python" -c 'import importlib.util, os, sys
spec = importlib.util.find_spec("torch")
sys.exit(1) if spec is None or not spec.origin else print(os.path.dirname(spec.origin))' 2>/dev/null ||
    die "$python has no PyTorch" \
      "activate the environment that has it, name it with --python, or run scripts/setup.sh without --use-python-torch"
}

choose_backend() {
  if has_gpu; then
    BACKEND=cuda
    say "found an NVIDIA GPU: installing for CUDA (--cpu would install less)"
  else
    BACKEND=cpu
    say "found no NVIDIA GPU: installing for the CPU (--cuda installs for GPUs anyway)"
  fi
}

# recorded FILE KEY
recorded() {
  [ ! -f "$1" ] || sed -n "s/^$2=//p" "$1"
}

# Whether .libtorch holds what was requested. The record is written last, so it stands for a complete installation.
is_satisfied() {
  [ "$FORCE" = 0 ] && [ -f "$RECORD" ] && view_is_sound || return 1
  ! wants_headers || [ -e "$HOME_DIR/nvidia/nccl/include/nccl.h" ] || return 1
  [ "$WANT_PEER" = 0 ] || { peer_is_in_place && peer_is_compiled; } || return 1
  case $WANT in
  '') return 0 ;;
  own) [ "$(recorded "$RECORD" source)" = own ] && site_fits ;;
  *) [ "$(recorded "$RECORD" source)" = "$WANT" ] ;;
  esac
}

# Whether .libtorch/site matches --cpu, --cuda, --slim and --full.
site_fits() {
  local site=$HOME_DIR/site/lockstep.txt
  [ -f "$site" ] && [ -e "$HOME_DIR/site/torch/lib/libtorch_cpu.so" ] || return 1
  [ -z "$BACKEND" ] || [ "$BACKEND" = "$(recorded "$site" backend)" ] || return 1
  [ -z "$SIZE" ] || [ "$SIZE" = "$(recorded "$site" size)" ]
}

# Whether NCCL's part is to be compiled: with our own libtorch for CUDA, always.
wants_headers() {
  [ "$WANT_NCCL" = 1 ] || [ "$(recorded "$HOME_DIR/site/lockstep.txt" backend)" = cuda ]
}

# One set-up at a time for each architecture. The children inherit the lock, so the children of a killed run end first.
take_lock() {
  mkdir -p "$HOME_DIR" 2>/dev/null || die "cannot write to $ROOT" "clone the project into a folder that you own"
  { : >>"$HOME_DIR/.lock"; } 2>/dev/null || die "cannot write to $HOME_DIR" "clone the project into a folder that you own (ls -ld $HOME_DIR)"
  exec 9>>"$HOME_DIR/.lock"
  command -v flock >/dev/null || die "'flock' is not on PATH" "$(packages util-linux util-linux)"
  local rc=0
  flock -n 9 2>/dev/null || rc=$?
  case $rc in
  0) return ;;
  1) ;;
  *) # flock(1) ends with 1 for a lock that another holds
    warn "the file system of $HOME_DIR has no locks (flock ended with $rc): do not start a second set-up of this checkout meanwhile"
    return
    ;;
  esac
  say "another set-up of this checkout is running; waiting for it, at most $((LOCK_SECONDS / 60)) minutes"
  flock -w "$LOCK_SECONDS" 9 ||
    die "another set-up held $HOME_DIR/.lock for $((LOCK_SECONDS / 60)) minutes" "see what it does: ps -ef | grep setup.sh"
}

check_machine() {
  check_system
  check_compiler
  check_rust "$ROOT/rust-toolchain.toml"
  if [ "$1" = fetch ]; then
    check_python "$WANT_PYTHON"
    check_disk "$HOME_DIR" "$(disk_needed)" "the $SIZE installation"
  fi
  stop_on_problems
}

# An existing build needs no additional space.
disk_needed() {
  local kind=$SIZE
  [ -d "$(target_of "$MACHINE")/debug" ] || kind+=-built
  local headers=0
  if [ "$WANT_NCCL" = 1 ] || [ "$BACKEND" = cuda ]; then headers=500; fi
  echo $((DISK[$kind] + headers))
}

install_own() {
  if [ "$FORCE" = 1 ] || ! site_fits; then
    complete_choice
    check_machine fetch
    [ "$BACKEND" = cpu ] || check_driver
    rm -f "$RECORD"
    install_site "$BACKEND" "$SIZE"
  fi
  rm -f "$RECORD"
  make_view site/torch
}

# Fills in what was not requested; a bare --force repeats what is installed.
complete_choice() {
  local site=$HOME_DIR/site/lockstep.txt
  if [ -z "$BACKEND$SIZE" ]; then
    BACKEND=$(recorded "$site" backend)
    SIZE=$(recorded "$site" size)
  fi
  [ -n "$BACKEND" ] || choose_backend
  if [ -z "$SIZE" ]; then
    if [ "$BACKEND" = cuda ]; then SIZE=full; else SIZE=slim; fi
  fi
}

use_existing() {
  local version
  version=$(libtorch_version "$WANT")
  case $version in
  2.11.*) ;;
  *)
    [ -n "${LIBTORCH_BYPASS_VERSION_CHECK:-}" ] ||
      die "the libtorch in $WANT is version ${version:-unknown}; Lockstep needs 2.11 (the release for its binding, tch 0.24)" \
        "unset LIBTORCH (or leave the option out) and run scripts/setup.sh, which installs 2.11.0 in the checkout; or set LIBTORCH_BYPASS_VERSION_CHECK=1 to try"
    warn "the libtorch in $WANT is version ${version:-unknown}, not 2.11; continuing because LIBTORCH_BYPASS_VERSION_CHECK is set"
    ;;
  esac
  check_machine keep
  rm -f "$RECORD"
  make_view "$WANT"
}

# For the build, which compiles the binding again when this file changes, and only then.
say_what_is_built() {
  local built=cpu
  [ ! -e "$HOME_DIR/nvidia/nccl/include/nccl.h" ] || built=nccl
  [ "$(cat "$HOME_DIR/backend" 2>/dev/null)" = "$built" ] || echo "$built" >"$HOME_DIR/backend"
}

# tch's binding is compiled with the headers in .libtorch, whatever the architecture: those that it includes are the same for both. (Others
# differ, such as sleef.h and the macros of ATen/Config.h.) Where x86_64 has none yet, they are this architecture's.
share_headers() {
  [ "$HOME_DIR" = "$ROOT/.libtorch" ] || [ -e "$ROOT/.libtorch/include" ] || ln -sfn "$MACHINE/include" "$ROOT/.libtorch/include"
}

# write_record SOURCE: last of all, in one step.
write_record() {
  local torch=$1
  if [ "$torch" = own ]; then torch=$HOME_DIR/site/torch; fi
  printf 'source=%s\nversion=%s\n' "$1" "$(libtorch_version "$torch")" >"$RECORD.partial"
  mv "$RECORD.partial" "$RECORD"
}

describe() {
  local source
  source=$(recorded "$RECORD" source)
  if [ "$source" = own ]; then
    source="$(recorded "$HOME_DIR/site/lockstep.txt" backend), $(recorded "$HOME_DIR/site/lockstep.txt" size)"
  fi
  if peer_is_in_place; then source+=', with a Python for comparisons'; fi
  echo "libtorch $(recorded "$RECORD" version) ($source)"
}

# Variables that make cargo ignore .libtorch.
warn_of_variables() {
  local name file
  for name in LIBTORCH_USE_PYTORCH LIBTORCH_INCLUDE LIBTORCH_LIB LIBTORCH_STATIC LIBTORCH_CXX11_ABI RUSTFLAGS CARGO_ENCODED_RUSTFLAGS; do
    [ -z "${!name:-}" ] || warn "the variable $name is set: plain cargo commands will not build as .cargo/config.toml says; unset $name"
  done
  file=$(configured_target)
  [ -z "${CARGO_BUILD_TARGET:-}" ] || file="the variable CARGO_BUILD_TARGET"
  [ -z "$file" ] || warn "$file names a target: plain cargo puts programs into target/TARGET/debug, not into target/debug"
}

main() {
  parse_arguments "$@"
  resolve_request
  warn_of_variables
  set_up_libtorch
  [ "$WANT_BOOK" = 0 ] || install_book_tools
  [ "$WANT_CLUSTER" = 0 ] || install_cluster_tools
  [ "$WANT_ARM" = 0 ] || install_arm_tools
}

set_up_libtorch() {
  if is_satisfied; then
    say "$(describe) is in place"
    return
  fi
  take_lock
  if is_satisfied; then # the other set-up did it
    say "$(describe) is in place"
    return
  fi
  # The rest runs with the lock held.
  install_wanted
  say "$(describe) is in place; plain cargo build, run and test work now"
}

install_wanted() {
  local source=$WANT
  [ -n "$source" ] || source=$(recorded "$RECORD" source)
  if [ -z "$source" ] || [ "$source" = own ] || ! libtorch_dir "$source" >/dev/null; then
    source=own
    install_own
  else
    WANT=$source
    use_existing
  fi
  if wants_headers; then
    [ -n "${PYTHON:-}" ] || { check_python "$WANT_PYTHON" && stop_on_problems; }
    install_nccl_headers
  fi
  say_what_is_built
  share_headers
  [ "$WANT_PEER" = 0 ] || install_peer
  remove_leftovers
  write_record "$source"
}

main "$@"
