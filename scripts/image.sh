#!/usr/bin/env bash
# scripts/image.sh [apptainer|oci] [OPTIONS]: builds a container image of the course and trains two ranks in it.
# containers/recipe.sh says what is in the image; this script gathers what the build needs, so that the build itself is offline.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=scripts/lib/say.sh
. "$ROOT/scripts/lib/say.sh"
# shellcheck source=scripts/lib/arch.sh
. "$ROOT/scripts/lib/arch.sh"
# shellcheck source=scripts/lib/checks.sh
. "$ROOT/scripts/lib/checks.sh"
# shellcheck source=scripts/lib/image.sh
. "$ROOT/scripts/lib/image.sh"

usage() {
  cat <<'END'
usage: scripts/image.sh [apptainer|oci] [OPTIONS] [-- OPTIONS of apptainer, podman or buildah]

Builds an image with the labs, their launcher and libtorch, then trains two ranks in it; or one that grades. Without one of the two words it takes what
is installed: apptainer, which writes a .sif file, or else podman, buildah or docker, which write an archive in OCI's format.

  --cuda        for NVIDIA GPUs, with NCCL; the checkout needs scripts/setup.sh --cuda
  --grade       one that grades tasks in Python instead: the command's wheel (scripts/wheel.sh) and PyTorch for the CPU, without a compiler
  --wheels DIR  where the wheels are (default: target/wheel)
  --base BASE   the system in the image: a name for a registry, or a folder or image file that is here, for which no network is needed
                if it has g++ (default: debian:12-slim; with --grade python:3.12-slim)
  --work DIR    where the context, cargo's output and the image are kept (default: target/image)
  --context     only gather what the build needs
  --help        this text

From the network: the base image, unless --base names one that is here; g++ and what it needs, unless the base has it; with --grade
PyTorch. All else comes from this checkout. The image is for this machine's architecture.

What follows -- is for building and for trying. Root with limited rights, as in a container, needs `-- --fakeroot` with apptainer,
and `-- --isolation=chroot` with buildah.
END
}

parse_arguments() {
  KIND='' BACKEND=cpu BASE='' WHEELS=$ROOT/target/wheel WORK=$ROOT/target/image GRADE=0 ONLY_CONTEXT=0 OPTIONS=()
  while [ $# -gt 0 ]; do
    case $1 in
    apptainer | oci) KIND=$1 ;;
    --cuda) BACKEND=cuda ;;
    --grade) GRADE=1 ;;
    --context) ONLY_CONTEXT=1 ;;
    --base | --wheels | --work)
      [ $# -ge 2 ] || die "$1 needs a value" "scripts/image.sh --help"
      case $1 in
      --base) BASE=$2 ;;
      --wheels) WHEELS=$(realpath -m -- "$2") ;;
      --work) WORK=$(realpath -m -- "$2") ;;
      esac
      shift
      ;;
    --)
      OPTIONS=("${@:2}")
      return
      ;;
    --help | -h) usage && exit 0 ;;
    *) die "unknown option '$1'" "scripts/image.sh --help" ;;
    esac
    shift
  done
}

# first_of ENGINE...: the first that can build here.
first_of() {
  local name
  for name in "$@"; do
    if can_build "$name"; then echo "$name" && return; fi
  done
  return 1
}

# Docker's command is often installed without its daemon, or without BuildKit, which mounts the context.
can_build() {
  command -v "$1" >/dev/null || return 1
  [ "$1" != docker ] || { docker info && docker buildx version; } >/dev/null 2>&1
}

# Sets KIND, and ENGINE, the program that builds.
choose_engine() {
  local engines='apptainer podman buildah docker'
  case $KIND in
  apptainer) engines='apptainer' ;;
  oci) engines='podman buildah docker' ;;
  esac
  # shellcheck disable=SC2086 # words
  ENGINE=$(first_of $engines) ||
    die "cannot build an image: none of ${engines// /, } is on PATH and works" \
      "$(packages 'buildah' 'apptainer'), or 'module load apptainer' on a cluster; on Debian 12, apptainer is not among its packages"
  if [ "$ENGINE" = apptainer ]; then KIND=apptainer; else KIND=oci; fi
}

# What is built: CONTEXT, what the build reads; RECIPE and FILE in containers/; TAG, in the image's name.
choose_recipe() {
  CONTEXT=$WORK/context RECIPE=lockstep FILE=Containerfile TAG=$BACKEND
  if [ "$GRADE" = 1 ]; then
    [ "$BACKEND" = cpu ] || die "an image that grades is for the CPU" "leave --cuda out"
    CONTEXT=$WORK/grading RECIPE=grade FILE=Containerfile.grade TAG=grade
    : "${BASE:=python:3.12-slim}"
  fi
  : "${BASE:=debian:12-slim}"
}

main() {
  parse_arguments "$@"
  choose_recipe
  [ "$ONLY_CONTEXT" = 1 ] || choose_engine
  if [ "$GRADE" = 1 ]; then make_grading_context "$CONTEXT" "$WHEELS"; else make_context "$CONTEXT"; fi
  [ "$ONLY_CONTEXT" = 0 ] || exit 0
  IMAGE=$WORK/lockstep-$TAG.$(if [ "$KIND" = apptainer ]; then echo sif; else echo oci.tar; fi)
  say "building $IMAGE with $ENGINE$([ "$GRADE" = 1 ] || echo ": the first time compiles the workspace, which takes minutes")"
  mkdir -p "$WORK/cache"
  "build_$KIND"
  say "trying it: $(if [ "$GRADE" = 1 ]; then echo "a task is graded"; else echo "two ranks of lab 03"; fi)"
  "try_$KIND" >&2 || die "the image was built, but it does not work (see above)" "run it by hand: book/src/containers.md"
  say "$IMAGE is in place: $(megabytes "$IMAGE") MB"
}

main "$@"
