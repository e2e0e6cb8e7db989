#!/usr/bin/env bash
# Runs in the image: the launcher answers, and two ranks train together. Leaves nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
lockstep --version
lockstep run --standalone --nproc-per-node=2 lab-03-torchrun-env --epochs 1
