#!/usr/bin/env bash
# scripts/wheel.sh [OPTIONS]: builds the wheel of the `lockstep` command, with the book, for x86_64 and for aarch64, into target/wheel.
# zig is the linker for both: it brings glibc 2.28, so that the wheels run on every system of the last seven years.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"

# What builds it, from PyPI, in a virtual environment in .tools.
BUILDERS=(maturin==1.16.0 ziglang==0.17.1)
PLATFORM=manylinux_2_28
# In MB: what an index or a slow line should not have to carry.
LARGEST=20

usage() {
  cat <<'END'
usage: scripts/wheel.sh [--arch ARCH] [--out DIR]

Builds one wheel per architecture, and checks its size and the newest glibc that it asks for. Needs rustup, Python with venv, what
scripts/book.sh needs, and a network for maturin, zig and the Rust standard library of aarch64, unless they are installed. It compiles the
command with optimization: four to eight minutes per architecture on two cores.

  --arch ARCH   x86_64 or aarch64 (default: both)
  --out DIR     where the wheels go (default: target/wheel)
END
}

ARCHITECTURES=(x86_64 aarch64) OUT=$ROOT/target/wheel
while [ $# -gt 0 ]; do
  case $1 in
  --arch | --out)
    [ $# -ge 2 ] || die "$1 needs a value" "scripts/wheel.sh --help"
    if [ "$1" = --arch ]; then
      case $2 in x86_64 | aarch64) ARCHITECTURES=("$2") ;; *) die "there is no wheel for '$2'" "scripts/wheel.sh --help" ;; esac
    else
      OUT=$(realpath -m -- "$2")
    fi
    shift
    ;;
  -h | --help) usage && exit ;;
  *) die "unknown option '$1'" "scripts/wheel.sh --help" ;;
  esac
  shift
done

# find_maturin: sets MATURIN; installs it and zig if they are missing.
find_maturin() {
  local tools=$ROOT/.tools/wheel
  if [ ! -x "$tools/bin/maturin" ] || [ "$(cat "$tools/builders" 2>/dev/null)" != "${BUILDERS[*]}" ]; then
    say "installing ${BUILDERS[*]} into .tools/wheel, once: 100 MB"
    python3 -m venv --clear "$tools" || die "python3 cannot make a virtual environment" "install python3-venv"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "${BUILDERS[@]}" ||
      die "pip could not install ${BUILDERS[*]} (see its message above)" "check the network, then run the same command again"
    printf '%s' "${BUILDERS[*]}" >"$tools/builders"
  fi
  MATURIN=$tools/bin/maturin
  PATH=$tools/bin:$PATH # maturin finds zig as `python3 -m ziglang`
}

# build_book: the book, in the folder that pyproject.toml names; pip installs it where the command looks for it.
build_book() {
  local data=$ROOT/target/wheel-data book
  book=$data/data/share/lockstep/lockstep-book-$(sed -n 's/^version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml")
  rm -rf "$data"
  "$ROOT/scripts/book.sh" build --dest-dir "$book"
  cp "$ROOT/book/LICENSE" "$book"
}

# build ARCH: one wheel, into OUT.
build() {
  local target=$1-unknown-linux-gnu
  rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" ||
    die "rustup cannot add $target" "check the network, then run the same command again"
  say "compiling the command for $1"
  # Without the folders of libraries in .cargo/config.toml, which are a checkout's.
  (cd "$ROOT" && RUSTFLAGS='' "$MATURIN" build --release --locked --zig --target "$target" --compatibility "$PLATFORM" --out "$OUT")
}

# check ARCH: the wheel is there, small enough, and for the platform that its name promises.
check() {
  local wheel size
  wheel=$(find "$OUT" -name "lockstep_course-*-${PLATFORM}_$1.whl" -newer "$OUT/.begun" | head -n 1)
  [ -n "$wheel" ] || die "there is no wheel for $1 in $OUT" "see maturin's messages above"
  size=$(stat -c %s "$wheel")
  [ "$size" -le $((LARGEST * 1000000)) ] || die "$wheel has $size bytes, more than $LARGEST MB" "see what grew: unzip -lv '$wheel'"
  python3 - "$wheel" <<'END' || die "$wheel is not what pip would install" "see above"
import re, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = wheel.namelist()
    command = next((name for name in names if name.endswith(".data/scripts/lockstep")), None)
    if command is None or not any(name.endswith(".dist-info/METADATA") for name in names):
        sys.exit(f"it has no command: {names}")
    if not any(re.search(r"/share/lockstep/lockstep-book-[^/]+/index\.html$", name) for name in names):
        sys.exit("it has no book")
    # Names of the dynamic section end with NUL; the program's own texts speak of versions, too.
    asks = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"(?<=\0)GLIBC_(\d+\.\d+)(?=\0)", wheel.read(command))}
    if max(asks, default=(0,)) > (2, 28):
        sys.exit(f"it asks for glibc {max(asks)}")
END
  say "$wheel: $((size / 100000))00 kB"
}

find_maturin
mkdir -p "$OUT"
touch "$OUT/.begun"
build_book
for arch in "${ARCHITECTURES[@]}"; do
  build "$arch"
  check "$arch"
done
rm "$OUT/.begun"
