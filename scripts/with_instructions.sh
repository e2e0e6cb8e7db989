#!/usr/bin/env bash
# scripts/with_instructions.sh own|avx2|sse4|neon|older COMMAND...: runs COMMAND with libtorch's CPU libraries limited to a set of instructions,
# as if on an older processor: `own` leaves them alone, `older` is the newest set below this processor's own. Floats are then summed
# in another order. If the processor lacks the set, prints that and exits with 3.
set -euo pipefail

# has FLAG: true if the processor's flags name it.
has() { grep -qw "$1" /proc/cpuinfo; } # x86-64: flags; AArch64: Features

# what_is_older: the newest set below the processor's own, empty if there is none.
what_is_older() {
  if has avx512f; then echo avx2; elif has avx2; then echo sse4; elif has sve; then echo neon; fi
}

# hold_to SET: the variables of ATen, oneDNN and MKL.
hold_to() {
  case $1 in
    own) ;;
    avx2) export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ;;
    sse4) export ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 ;;
    neon) export ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=ADVSIMD ;;
    *) echo "with_instructions.sh: expected own, avx2, sse4, neon or older, found '$1'" >&2 && exit 2 ;;
  esac
}

# is_there SET: true if the processor has it.
is_there() {
  case $1 in
    avx2) has avx2 ;;
    sse4) has sse4_2 ;;
    neon) has asimd ;;
    *) [ -n "$1" ] ;;
  esac
}

[ $# -ge 2 ] || { sed -n '2,4s/^# //p' "$0" >&2 && exit 2; }
chosen=$1
shift
[ "$chosen" != older ] || chosen=$(what_is_older)
if ! is_there "$chosen"; then
  echo "with_instructions.sh: this processor has no set of instructions '${chosen:-older}'" >&2
  exit 3
fi
hold_to "$chosen"
exec "$@"
