#!/usr/bin/env bash
# scripts/book.sh [OPTIONS]: serves the book; scripts/book.sh build [OPTIONS] only builds it, into target/book. OPTIONS go to mdbook.
# mdbook is taken from PATH or from .tools if it has the version below, else it is compiled into .tools, which git ignores.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/checks.sh
. "$ROOT/scripts/lib/checks.sh"
# shellcheck source=scripts/lib/book.sh
. "$ROOT/scripts/lib/book.sh"

usage() {
  cat <<'END'
usage: scripts/book.sh [build] [OPTIONS]

Serves the book at http://localhost:3000 and follows changes of its text until Ctrl-C; build writes it into target/book.
OPTIONS are mdbook's, such as --open, --port 3001, --hostname 0.0.0.0. `mdbook serve book` does the same.
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
exec "$MDBOOK" "$COMMAND" "$ROOT/book" "$@"
