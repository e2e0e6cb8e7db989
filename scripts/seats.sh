#!/usr/bin/env bash
# Seats without a build: one checkout is built once, and everybody else on this file system takes a copy that compiles nothing but
# what its user edits. What is large stays where it is: libtorch, compiled libraries, crates and Rust are shared, read-only.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# Everything that seats share, except libtorch and cargo's output.
SHARED=$ROOT/.seats
SEAT=$SHARED/seat.tar
# cargo compares times of change to the nanosecond, which tar's usual format cuts off.
TAR=(tar --format=posix)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/arch.sh
. "$ROOT/scripts/lib/arch.sh"
# shellcheck source=scripts/lib/cargo.sh
. "$ROOT/scripts/lib/cargo.sh"

usage() {
  cat <<'END'
usage: scripts/seats.sh prepare    the instructor, once, in a checkout that all can read and nobody works in
       scripts/seats.sh new DIR    each participant, by the path of that checkout: makes the seat DIR

prepare    installs libtorch if it is missing, compiles everything, and packs what a seat begins with. Run it before the first build,
           which it then is, for setup.sh, run.sh and test.sh, too: a quarter of an hour of processor time. In a checkout that is built
           already it takes that time again: cargo notes the path of each crate's source, and seats cannot read those in your ~/.cargo,
           so it compiles from a copy in .seats. Run it again after each change of the checkout.
new        unpacks a seat, and prints what to put into the shell. Needs no network, no compiler, and no Rust of its own.
END
}

prepare() {
  case $ROOT in *[!A-Za-z0-9/._+@-]*) die "the path '$ROOT' has characters that cargo's configuration would have to quote" "move the checkout" ;; esac
  check_readable
  unset CARGO_TARGET_DIR
  prepare_cargo
  "$ROOT/scripts/setup.sh"
  mkdir -p "$SHARED"
  rm -f "$SEAT"
  # What was compiled before the crates' sources were here is no use: cargo's fingerprint of a crate has the absolute path of its source.
  if ! [ -f "$SHARED/crates.lock" ] && [ -d "$ROOT/target/debug/deps" ]; then BUILT_ELSEWHERE=1; fi
  share_rust
  share_crates
  say "compiling everything: $(left_to_compile)"
  # One exercise stands for all: what they are compiled with is the same.
  (cd "$ROOT" && cargo build --offline >&2 && cargo test --offline --no-run --package ex-01 >&2) ||
    die "the build failed (see cargo's message above)" "scripts/setup.sh --force, if libtorch is missing"
  pack
  chmod -R a+rX,go-w "$ROOT"
  say "ready; $(megabytes "$SEAT") MB for each seat. Each participant runs: $ROOT/scripts/seats.sh new ~/lockstep"
}

# How long the build takes, on two cores without other work.
left_to_compile() {
  if [ "${BUILT_ELSEWHERE:-0}" = 1 ]; then
    echo "what this checkout has compiled was made from crates in ~/.cargo, which seats cannot read, and is compiled again, a quarter of an \
hour of processor time; before the first build in a fresh clone, prepare is that build"
  elif [ -f "$TARGET/debug/lockstep" ]; then
    echo "what has changed since the last time"
  else
    echo "the first time takes a quarter of an hour of processor time, and test.sh or run.sh use it afterwards"
  fi
}

# Others must get here.
check_readable() {
  local folder=$ROOT
  while folder=$(dirname "$folder") && [ "$folder" != / ]; do
    [ -n "$(find "$folder" -maxdepth 0 -perm -o=x)" ] ||
      problem "other users cannot enter $folder" "chmod o+x '$folder', or clone the project into a folder that all can read"
  done
  [ "$PROBLEMS" = 0 ] || exit 1
}

# This checkout's toolchain without its documentation. Its programs need no rustup.
share_rust() {
  local sysroot
  sysroot=$(cd "$ROOT" && rustc --print sysroot)
  if ! [ "$sysroot" -ef "$SHARED/rust" ]; then
    say "copying Rust from $sysroot"
    rm -rf "$SHARED/rust"
    mkdir "$SHARED/rust"
    cp -a --reflink=auto -t "$SHARED/rust" "$sysroot"/{bin,lib}
  fi
  PATH=$SHARED/rust/bin:$PATH
}

# cargo compiles a crate again if its sources have another path, and libtorch's binding if libtorch has. So every seat takes both from
# here, by the configuration of this checkout.
share_crates() {
  local config=$ROOT/.cargo/config.toml shared=$SHARED/config.toml
  git -C "$ROOT" show HEAD:.cargo/config.toml | sed "s|^LIBTORCH = .*|LIBTORCH = { value = \"$ROOT/.libtorch\", force = true }|" >"$shared"
  grep -q "^LIBTORCH = .*$ROOT/" "$shared" || die "no line of .cargo/config.toml sets LIBTORCH" "git checkout .cargo/config.toml"
  printf '\n[source.crates-io]\nreplace-with = "seats"\n\n[source.seats]\ndirectory = "%s"\n' "$SHARED/crates" >>"$shared"
  if ! cmp -s "$ROOT/Cargo.lock" "$SHARED/crates.lock"; then
    say "fetching the crates of Cargo.lock"
    (cd "$ROOT" && cargo vendor --quiet --locked --versioned-dirs "$SHARED/crates" >/dev/null) ||
      die "cargo could not fetch the crates (see its message above)" "check the network, then run the same command again"
    mkdir -p "$SHARED/crates" # where there is none
    cp "$ROOT/Cargo.lock" "$SHARED/crates.lock"
  fi
  cmp -s "$shared" "$config" || cp "$shared" "$config"
  # git status should not show participants a change that they did not make.
  git -C "$ROOT" update-index --skip-worktree .cargo/config.toml
}

# pack: the seat as an archive. Sources and cargo's notes keep their times, which cargo compares. What is large in cargo's output is
# a link to here: rustc and the linker replace such a file as a whole. They write to files named .d. An exercise is compiled in the seat,
# since its test holds the path of the answers; the command looks for labs next to itself, so that it is a copy.
pack() {
  local links=$SHARED/links path
  local kept=(find target/debug -type f -not -path '*/incremental/*' -not -path '*/ex[-_][0-9][0-9]*' -not -name 'grade-*')
  local large=(-size +64k -not -name '*.d' -not -path '*/.fingerprint/*')
  local copied=(-not -samefile target/debug/lockstep)
  say "packing what a seat begins with"
  rm -rf "$links"
  mkdir -p "$links"
  cd "$ROOT"
  ln -s "$ROOT/.libtorch" "$links/.libtorch"
  while IFS= read -r path; do
    mkdir -p "$links/${path%/*}"
    ln -s "$ROOT/$path" "$links/$path"
  done < <("${kept[@]}" "${large[@]}" "${copied[@]}")
  "${TAR[@]}" -cf "$SEAT.partial" --anchored --exclude=./target --exclude=./.libtorch --exclude=./.seats --exclude=./.tools .
  "${kept[@]}" -not \( "${large[@]}" "${copied[@]}" \) -print0 | "${TAR[@]}" -rf "$SEAT.partial" --null --files-from=-
  "${TAR[@]}" -rf "$SEAT.partial" -C "$links" .libtorch target
  rm -rf "$links"
  mv "$SEAT.partial" "$SEAT"
}

# new DIR
new() {
  local seat=$1
  [ -f "$SEAT" ] || die "no seats are prepared in $ROOT" "the instructor runs scripts/seats.sh prepare there"
  [ ! -e "$seat" ] || [ -z "$(ls -A "$seat")" ] || die "'$seat' is there already" "name a folder that does not exist"
  mkdir -p "$seat"
  seat=$(cd "$seat" && pwd -P)
  "${TAR[@]}" -xf "$SEAT" -C "$seat" || die "could not unpack a seat (see tar's message above)" "rm -r '$seat', then try elsewhere"
  [ -z "${CARGO_TARGET_DIR:-}" ] || warn "CARGO_TARGET_DIR is set, and cargo would compile everything there: unset it"
  say "$seat is ready. In each new shell:"
  # The last PATH is the shell's that reads these lines.
  # shellcheck disable=SC2016
  printf 'cd %q\nexport PATH=%q:%q:$PATH\n' "$seat" "$seat/target/debug" "$SHARED/rust/bin"
}

case ${1:-} in
--help | -h) usage ;;
prepare) [ $# = 1 ] || { usage >&2 && exit 2; } && prepare ;;
new) [ $# = 2 ] || { usage >&2 && exit 2; } && new "$2" ;;
*) usage >&2 && exit 2 ;;
esac
