#!/usr/bin/env bash
# scripts/book.sh [OPTIONS]: serves the book; scripts/book.sh build [OPTIONS] only builds it, into target/book.
# mdbook is taken from PATH or from .tools if it has the version below, else it is compiled into .tools, which git ignores.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/checks.sh
. "$ROOT/scripts/lib/checks.sh"
# shellcheck source=scripts/lib/book.sh
. "$ROOT/scripts/lib/book.sh"
# shellcheck source=scripts/lib/arch.sh
. "$ROOT/scripts/lib/arch.sh"
# shellcheck source=scripts/lib/cargo.sh
. "$ROOT/scripts/lib/cargo.sh"

usage() {
  cat <<'END'
usage: scripts/book.sh [OPTIONS]
       scripts/book.sh build [OPTIONS]

Serves the book at http://localhost:3000 and builds it again when a file changes, until Ctrl-C; build writes it into target/book.

  -p, --port PORT      serve at this port; 0 takes a free one
  -n, --hostname NAME  serve at this address; 0.0.0.0 for everywhere
  -o, --open           open the book in a browser

The options of build are those of mdbook build.
END
}

COMMAND=serve
case ${1:-} in
-h | --help) usage && exit ;;
build | serve) COMMAND=$1 && shift ;;
-* | '') ;;
*) die "there is no command '$1', but build" "scripts/book.sh --help" ;;
esac
find_mdbook || install_mdbook
build_reference
[ "$COMMAND" = serve ] || exec "$MDBOOK" build "$ROOT/book" "$@"
exec python3 "$ROOT/scripts/lib/serve_book.py" "$MDBOOK" "$@"
