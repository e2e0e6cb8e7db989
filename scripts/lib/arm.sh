# shellcheck shell=bash
# Building for aarch64 on x86_64, and running that under user-mode emulation. Needs say.sh, arch.sh, checks.sh, and book.sh for APT_SECONDS.

ARM_TRIPLE=aarch64-unknown-linux-gnu
ARM_COMPILER=aarch64-linux-gnu-g++
# Where Debian has the C library of its cross compiler.
ARM_SYSROOT=/usr/aarch64-linux-gnu
# Older ones do not know all that the launcher asks of the kernel: 7.2 lacks the child subreaper.
QEMU_MIN=10
# Debian 12 has 7.2, and this one in its backports.
BACKPORTS_URI=http://deb.debian.org/debian

# missing_arm_tools: what is missing here, a sentence on each line.
missing_arm_tools() {
  [ "$(uname -m)" = x86_64 ] || echo "this machine is $(uname -m), the tools are for x86_64"
  command -v "$ARM_COMPILER" >/dev/null || echo "no $ARM_COMPILER"
  has_arm_rust || echo "no Rust for $ARM_TRIPLE"
  if ! has_qemu; then
    echo "no qemu-aarch64 $QEMU_MIN or newer"
  elif ! emulated true 2>/dev/null; then
    echo "binfmt_misc cannot be mounted in a user namespace (Linux 6.7 or newer, and user namespaces allowed)"
  fi
  [ -f "$(libtorch_of aarch64)/installed" ] || echo "no libtorch for aarch64"
}

has_arm_rust() {
  (cd "$ROOT" && [ -d "$(rustc --print target-libdir --target "$ARM_TRIPLE" 2>/dev/null)" ])
}

has_qemu() {
  local version
  version=$(qemu-aarch64 --version 2>/dev/null | awk 'NR == 1 { print $3 }')
  [ -n "$version" ] && version_at_least "$version" "$QEMU_MIN"
}

# install_arm_tools: compiler and emulator with apt-get, where root can do it without a prompt; Rust's library with rustup; libtorch.
install_arm_tools() {
  local missing
  [ "$(uname -m)" = x86_64 ] || die "--arm-tools are for x86_64; this machine is $(uname -m)" "leave it out: scripts/test.sh verifies all of it here"
  command -v "$ARM_COMPILER" >/dev/null || apt_install "${ARM_COMPILER/g++/gcc} and g++" g++-aarch64-linux-gnu
  has_qemu || install_qemu
  has_arm_rust || (cd "$ROOT" && rustup target add "$ARM_TRIPLE" >&2) || warn "rustup could not add the target $ARM_TRIPLE (see its message above)"
  if command -v "$ARM_COMPILER" >/dev/null; then (install_arm_libtorch); fi
  missing=$(missing_arm_tools | paste -sd ';')
  if [ -z "$missing" ]; then
    say "what builds for aarch64 and emulates it is in place: scripts/test_arm.sh"
  else
    warn "aarch64 will not be verified: ${missing//;/; }"
  fi
}

# apt_install WHAT PACKAGE [OPTION...]
apt_install() {
  local what=$1 package=$2 command
  shift 2
  command="apt-get $* -q install -y --no-install-recommends $package"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    warn "no $what; to install it: $(packages "$package" "this system's cross compiler or emulator for aarch64")"
    return
  fi
  say "installing $what with apt-get"
  # shellcheck disable=SC2086 # words
  { timeout "$APT_SECONDS" apt-get "$@" -q update && DEBIAN_FRONTEND=noninteractive timeout "$APT_SECONDS" $command; } >&2 ||
    warn "apt-get could not install $what (see its message above)"
}

# The system's own version if that is new enough, else that of its backports, whose lists are kept apart: the system's sources stay.
install_qemu() {
  local lists codename candidate
  candidate=$(apt-cache policy qemu-user 2>/dev/null | awk '/Candidate:/ && $2 != "(none)" { print $2 }')
  candidate=${candidate#*:}
  if version_at_least "${candidate:-0}" "$QEMU_MIN"; then
    apt_install "qemu-user $candidate" qemu-user
    return
  fi
  codename=$(. /etc/os-release && echo "${ID:-}-${VERSION_CODENAME:-}")
  case $codename in
  debian-*) ;;
  *) warn "no qemu-user $QEMU_MIN or newer among this system's packages (${candidate:-none there}); install one by hand" && return ;;
  esac
  if [ "$(id -u)" != 0 ]; then
    warn "no qemu-user $QEMU_MIN or newer: run scripts/setup.sh --arm-tools as root, which takes it from ${codename#debian-}-backports"
    return
  fi
  lists=$(mktemp -d)
  mkdir -p "$lists/of/partial" # where apt-get update removes all files but its own
  echo "deb $BACKPORTS_URI ${codename#debian-}-backports main" >"$lists/sources.list"
  apt_install "qemu-user of ${codename#debian-}-backports" qemu-user \
    -o "Dir::Etc::SourceList=$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$lists/of"
  rm -rf "$lists"
}

# In a shell of its own, where all of set-up is for aarch64. Its Python for comparisons, its NCCL and a libtorch that is elsewhere are
# this machine's matter.
install_arm_libtorch() {
  for_machine aarch64
  # shellcheck disable=SC2034 # setup.sh reads them
  BACKEND=cpu SIZE=slim WANT=own WANT_PEER=0 WANT_NCCL=0 FORCE=0
  set_up_libtorch
}

# emulated COMMAND...: runs it where the kernel gives programs of aarch64 to the emulator: in a user and mount namespace of its own, which ends
# with the command. P and O: the emulator gets the first argument and the file as they are (a file without a name in the case of
# /proc/self/fd/N); C: it has the program's rights; F: it is opened now, so that it is found in every folder.
emulated() {
  local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  # shellcheck disable=SC2016 # the other shell expands it
  QEMU_LD_PREFIX=$ARM_SYSROOT unshare --user --map-root-user --mount --propagation private -- bash -euc '
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    printf %s "$1" >/proc/sys/fs/binfmt_misc/register
    shift
    exec "$@"' _ ":lockstep-aarch64:M::$magic:$mask:$(command -v qemu-aarch64):POCF" "$@"
}
