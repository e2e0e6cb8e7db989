#!/usr/bin/env bash
# smoke.sh [grade]: runs in an image, and leaves nothing. The launcher answers, and two ranks train together; in an image that grades, an
# answer is graded on real ranks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
lockstep --version
if [ "${1:-}" != grade ]; then
  lockstep run --standalone --nproc-per-node=2 lab-03-torchrun-env --epochs 1
  exit
fi
lockstep init mine
cd mine
answer=tasks/05_collectives/mean.py
# A right answer, in place of the line that says what is missing.
awk '/raise NotImplementedError/ {
  print "    totals = torch.stack([losses.sum(), torch.tensor(losses.numel(), dtype=torch.float64)])"
  print "    dist.all_reduce(totals)"
  print "    return (totals[0] / totals[1]).item()"
  next
} 1' "$answer" >"$answer.new"
mv "$answer.new" "$answer"
lockstep grade 05 mean
