# shellcheck shell=bash
# What the book is built and checked with: mdBook in .tools, the command that prints reference pages, and a Chromium of the system. Needs
# say.sh and checks.sh, for build_reference arch.sh and cargo.sh, and ROOT.

# check_book.py reads it here.
MDBOOK_VERSION=0.5.4
# What compiles it in the least time. Of its features only the search is needed: its server and what that needs are a
# third of all crates, and serve_book.py takes their place. It builds the book in two seconds without optimization.
MDBOOK_FEATURES=search
MDBOOK_CRATES=123
MDBOOK_PROFILE=(CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_PANIC=abort)
# In seconds, and MB during compilation.
INSTALL_SECONDS=1800
# How long apt-get may take, in seconds; Chromium and what it needs are 200 MB.
APT_SECONDS=600
INSTALL_MB=700

# find_mdbook: sets MDBOOK to one of the pinned version.
find_mdbook() {
  local candidate
  for candidate in mdbook "$ROOT/.tools/bin/mdbook"; do
    MDBOOK=$(command -v "$candidate") || continue
    [ "$("$MDBOOK" --version 2>/dev/null)" != "mdbook v$MDBOOK_VERSION" ] || return 0
  done
  return 1
}

install_mdbook() {
  local rc=0 free
  command -v cargo >/dev/null ||
    die "no Rust: 'cargo' is not on PATH, and mdbook $MDBOOK_VERSION is not installed" "install rustup as rust-lang.org/tools/install shows"
  mkdir -p "$ROOT/.tools"
  free=$(df -Pm -- "$ROOT/.tools" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$INSTALL_MB" ] ||
    die "mdbook needs $INSTALL_MB MB of disk while it is compiled, $free MB are free in $ROOT" "make room there (df -h '$ROOT')"
  say "compiling mdbook $MDBOOK_VERSION into .tools, once: less than a minute on two cores, 20 MB on disk afterwards; meanwhile the chapters in book/src can be read as they are"
  # Uses a separate build folder, which is removed afterwards; the caller's RUSTFLAGS are not meant for it.
  env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_TARGET CARGO_TARGET_DIR="$ROOT/.tools/build" CARGO_TERM_COLOR=never \
    "${MDBOOK_PROFILE[@]}" \
    timeout --foreground "$INSTALL_SECONDS" cargo install mdbook --version "=$MDBOOK_VERSION" --locked --no-default-features --features "$MDBOOK_FEATURES" --root "$ROOT/.tools" 2>&1 |
    how_far >&2 || rc=$?
  case $rc in
  0) rm -rf "$ROOT/.tools/build" ;;
  124) die "mdbook was not compiled within $INSTALL_SECONDS s" "run the same command again; it continues where this one stopped" ;;
  130 | 143) exit "$rc" ;;
  *) die "cargo could not install mdbook $MDBOOK_VERSION (see its message above)" "check the network and the disk, then run the same command again" ;;
  esac
  find_mdbook ||
    die "mdbook was installed, but '$ROOT/.tools/bin/mdbook --version' does not say $MDBOOK_VERSION" \
      "rm -r '$ROOT/.tools', then run the same command again"
}

# build_reference: the program that prints the reference pages (preprocess.py). Without it they only say how to print them.
build_reference() {
  prepare_cargo
  [ -f "$TARGET/debug/lockstep" ] || say "compiling the lockstep command, which prints the reference pages, once: a minute or two on two cores"
  (cd "$ROOT" && cargo build --quiet --package lockstep-harness >&2) ||
    warn "the lockstep command cannot be built (see cargo's message above): the reference pages will only say how to print them"
}

# how_far: cargo's output with a count of crates in place of their names: on a terminal in one line, otherwise a line for every tenth.
how_far() {
  local line count=0 every=10 end='\n'
  [ ! -t 2 ] || { every=1 && end='\r'; }
  while IFS= read -r line; do
    case $line in
    ' '*Compiling*)
      count=$((count + 1))
      [ $((count % every)) != 0 ] || printf "mdbook: %d of %d crates$end" "$count" "$MDBOOK_CRATES"
      ;;
    ' '*Updating* | ' '*Download* | ' '*Install* | ' '*Finished* | 'warning: be sure to add'*) ;;
    *) printf '%s\n' "$line" ;;
    esac
  done
  [ "$every" != 1 ] || echo
}

# install_book_tools: mdBook, what its figures are compiled for, and Chromium if root can install it without a prompt.
install_book_tools() {
  local name
  find_mdbook || install_mdbook
  say "mdbook $MDBOOK_VERSION is in place"
  rustup target add wasm32-unknown-unknown || warn "rustup could not add wasm32-unknown-unknown (see its message above): the book's figures will not move"
  for name in chromium chromium-browser google-chrome; do # as in browser.py
    ! command -v "$name" >/dev/null || return 0
  done
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Chromium with apt-get"
    { timeout "$APT_SECONDS" apt-get -q update &&
      DEBIAN_FRONTEND=noninteractive timeout "$APT_SECONDS" apt-get -q install -y --no-install-recommends chromium; } >&2 ||
      warn "apt-get could not install Chromium (see its message above): how the book looks in a browser will not be verified"
  else
    warn "no Chromium is on PATH: how the book looks in a browser will not be verified; to install it: $(packages chromium chromium)"
  fi
}
