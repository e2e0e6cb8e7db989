# shellcheck shell=bash
# Messages of the scripts. They go to stderr, so that a script's stdout is that of the program which it starts.

QUIET=${QUIET:-0}
PROBLEMS=0

# say TEXT: progress, silent with --quiet.
say() { [ "$QUIET" = 1 ] || printf 'set-up: %s\n' "$*" >&2; }

# warn TEXT: printed even with --quiet.
warn() { printf 'set-up: warning: %s\n' "$*" >&2; }

# die TEXT [HINT]: ends the script.
die() {
  printf 'set-up: error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '    to fix it: %s\n' "$2" >&2
  exit 1
}

# problem TEXT HINT: one failed check; stop_on_problems ends the script after printing all of them.
problem() {
  printf 'set-up: error: %s\n    to fix it: %s\n' "$1" "$2" >&2
  PROBLEMS=$((PROBLEMS + 1))
}

stop_on_problems() {
  [ "$PROBLEMS" = 0 ] || die "$PROBLEMS check(s) failed; nothing was changed"
}

# megabytes PATH...: what they take on disk.
megabytes() {
  du -scm -- "$@" 2>/dev/null | awk 'END { print $1 + 0 }'
}

# with_ticker LABEL PATH COMMAND...: runs COMMAND and prints the size of PATH every 5 s.
with_ticker() {
  local label=$1 path=$2 ticker rc=0
  shift 2
  if [ "$QUIET" = 1 ]; then
    "$@"
    return
  fi
  tick "$label" "$path" $$ 9>&- &
  ticker=$!
  "$@" || rc=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  return "$rc"
}

# The loop of with_ticker; it ends with the script, however that ends.
tick() {
  while sleep 5 >/dev/null 2>&1 && kill -0 "$3" 2>/dev/null; do
    say "$1: $(megabytes "$2") MB"
  done
}
