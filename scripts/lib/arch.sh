# shellcheck shell=bash
# One checkout serves machines of several architectures at once, such as x86_64 login nodes and aarch64 compute nodes that see the same
# folder. x86_64 has .libtorch and target; any other has folders of its own in these. Needs ROOT.

# As rustc, Python and Debian's compilers name it.
MACHINE=$(uname -m 2>/dev/null) || MACHINE=$HOSTTYPE # where uname is not on PATH, who needs it says so
[ "$MACHINE" != arm64 ] || MACHINE=aarch64

# libtorch_of MACHINE: the folder of its libtorch. .cargo/config.toml, engine/c10d/build.rs and the lockstep command know it as well.
libtorch_of() {
  if [ "$1" = x86_64 ]; then echo "$ROOT/.libtorch"; else echo "$ROOT/.libtorch/$1"; fi
}

# target_of MACHINE: cargo's output folder. `cargo build --target` on another machine writes to the same one.
target_of() {
  if [ "$1" = x86_64 ]; then echo "$ROOT/target"; else echo "$ROOT/target/$1-unknown-linux-gnu"; fi
}

# machine_of FILE: the architecture of a program or library; its e_machine in hexadecimal digits, for one that Lockstep does not know.
machine_of() {
  local number
  number=$(od -An -tx1 -j18 -N2 -- "$1" 2>/dev/null | tr -d ' \n')
  case $number in
  3e00) echo x86_64 ;;
  b700) echo aarch64 ;;
  *) echo "unknown${number:+ (ELF machine $number)}" ;;
  esac
}
