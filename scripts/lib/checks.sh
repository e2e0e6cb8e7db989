# shellcheck shell=bash
# What this machine must have before anything is fetched. Each check that fails prints the command that fixes it; all of
# them are made before the script ends. Needs say.sh.

# Versions of Python with wheels of torch 2.11.
PYTHON_MIN=10
PYTHON_MAX=14
# The oldest C library that those wheels support.
GLIBC_MIN=2.28
# CUDA 13.0 needs this driver.
DRIVER_MIN=580

# packages APT DNF: the command that installs a system package here.
packages() {
  if command -v apt-get >/dev/null; then
    echo "sudo apt-get install -y $1"
  elif command -v dnf >/dev/null; then
    echo "sudo dnf install -y $2"
  else
    echo "install '$1' with this system's package manager (on a cluster: look for it with 'module avail')"
  fi
}

check_system() {
  local glibc
  [ "$(uname -s)" = Linux ] || problem "Lockstep runs on Linux, this is $(uname -s)" "use a Linux machine, container or WSL 2"
  case $(uname -m) in
  x86_64) ;;
  aarch64 | arm64) say "the processor is $(uname -m): Lockstep has been tested there only under emulation" ;;
  *) problem "no libtorch exists for the processor $(uname -m)" "use an x86_64 or aarch64 machine" ;;
  esac
  glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{ print $2 }')
  if [ -z "$glibc" ]; then
    problem "libtorch needs glibc $GLIBC_MIN or newer, found no glibc" "use a distribution with glibc (Alpine has musl)"
  elif ! version_at_least "$glibc" "$GLIBC_MIN"; then
    problem "libtorch needs glibc $GLIBC_MIN or newer, found $glibc" "use a newer distribution"
  fi
}

# version_at_least HAVE WANT
version_at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# The binding is C++17 (compiled by $CXX or c++) and rustc links with cc.
check_compiler() {
  local cxx=${CXX:-c++} hint out
  hint=$(packages "g++" "gcc-c++")
  if ! command -v "${cxx%% *}" >/dev/null; then
    [ -n "${CXX:-}" ] || ! command -v g++ >/dev/null || hint="export CXX=g++, or $hint"
    problem "no C++ compiler: '$cxx' is not on PATH" "$hint"
  elif ! out=$(compile_probe "$cxx" 2>&1); then
    out=${out:-no message}
    problem "'$cxx' cannot compile and link a C++17 program with libgomp (${out%%$'\n'*})" "$hint"
  fi
  command -v cc >/dev/null || problem "rustc links with 'cc', which is not on PATH" "$(packages "gcc libc6-dev" "gcc glibc-devel")"
}

compile_probe() {
  local dir rc=0
  dir=$(mktemp -d) || return 1
  # $1 may carry flags.
  # shellcheck disable=SC2086
  echo '#include <optional>
int main() { return std::optional<int>(0).value(); }' | $1 -std=c++17 -x c++ - -o "$dir/probe" -lgomp || rc=$?
  rm -rf "$dir"
  return "$rc"
}

# check_rust TOOLCHAIN_FILE: rustup fetches the pinned toolchain by itself unless it was configured not to.
check_rust() {
  local pinned
  pinned=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' "$1")
  if ! command -v cargo >/dev/null; then
    problem "no Rust: 'cargo' is not on PATH" \
      "install rustup as rust-lang.org/tools/install shows (it fetches Rust $pinned by itself), then open a new shell"
  elif command -v rustup >/dev/null; then
    ensure_toolchain "$pinned"
  elif ! version_at_least "$(rustc --version | awk '{ print $2 }')" "$pinned"; then
    problem "Rust $pinned or newer is needed, found $(rustc --version)" \
      "install rustup as rust-lang.org/tools/install shows, which keeps both"
  fi
}

ensure_toolchain() {
  [ -z "${RUSTUP_TOOLCHAIN:-}" ] || return 0
  rustup toolchain list 2>/dev/null | grep "^$1-" >/dev/null && return
  say "asking rustup for the pinned Rust $1"
  rustup toolchain install "$1" --profile minimal --component clippy --component rustfmt >&2 ||
    problem "rustup could not install Rust $1" "rustup toolchain install $1 --component clippy --component rustfmt"
}

# check_python WANTED: sets PYTHON to an interpreter that can fetch wheels, and PYTHON_HAS to venv or pip.
# shellcheck disable=SC2034 # install.sh reads PYTHON_HAS
check_python() {
  local candidate
  PYTHON='' PYTHON_HAS=''
  for candidate in ${1:-python3 $(seq -f python3.%g "$PYTHON_MAX" -1 "$PYTHON_MIN") /usr/bin/python3}; do
    python_version_ok "$candidate" || continue
    PYTHON=${PYTHON:-$candidate}
    PYTHON_HAS=$(python_has "$candidate") || continue
    PYTHON=$candidate
    return 0
  done
  if [ -z "$PYTHON" ]; then
    problem "torch 2.11 comes as a wheel for Python 3.$PYTHON_MIN to 3.$PYTHON_MAX; ${1:-python3} is $(python_called "${1:-python3}")" \
      "$(packages "python3 python3-venv" "python3 python3-pip"), or name another one with --python PATH"
  else
    problem "$PYTHON has neither venv nor pip" "$(packages "python3-venv" "python3-pip")"
  fi
}

python_called() {
  command -v "$1" >/dev/null || { echo "not on PATH" && return; }
  "$1" --version 2>&1 | awk 'NR == 1'
}

python_version_ok() {
  "$1" -c "import sys; sys.exit(not (3, $PYTHON_MIN) <= sys.version_info[:2] <= (3, $PYTHON_MAX))" 2>/dev/null
}

python_has() {
  if "$1" -c 'import venv, ensurepip' 2>/dev/null; then
    echo venv
  elif "$1" -m pip --version >/dev/null 2>&1; then
    echo pip
  else
    return 1
  fi
}

# check_disk DIR MEGABYTES WHAT
check_disk() {
  local free
  free=$(df -Pm -- "$1" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$2" ] ||
    problem "$3 needs $2 MB of disk, $free MB are free in $1" "make room there (df -h $1), or clone the project onto a larger disk"
}

has_gpu() {
  [ -e /dev/nvidia0 ] || [ -e /proc/driver/nvidia/version ] ||
    { command -v nvidia-smi >/dev/null && timeout 10 nvidia-smi -L 2>/dev/null | grep '^GPU ' >/dev/null; }
}

# A driver that is too old runs on the CPU only; this is detected now rather than in the first lab.
check_driver() {
  local driver
  driver=$(timeout 10 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | awk 'NR == 1') || return 0
  [ -z "$driver" ] || [ "${driver%%.*}" -ge "$DRIVER_MIN" ] 2>/dev/null ||
    warn "the NVIDIA driver is $driver, CUDA 13.0 needs $DRIVER_MIN or newer: GPUs will not be usable until it is updated"
}
