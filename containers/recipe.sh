#!/usr/bin/env bash
# containers/recipe.sh STEP: what an image of the course consists of. lockstep.def and Containerfile, and for an image that grades grade.def and
# Containerfile.grade, only call it.
#
#   build    first stage, as root: compiles the workspace, and puts what the image keeps into /built
#   install  second stage, as root: makes the programs of /opt/lockstep commands of the image
#   grade    the only stage of an image that grades, as root: installs PyTorch and the command's wheel
#   labels   prints the labels, a KEY=VALUE on each line
#
# scripts/image.sh makes the folder that `build`, `grade` and `labels` read. Builders mount it at /mnt, which every system has.
#   source/   the checkout's tracked files, and .libtorch
#   rust/     the Rust toolchain
#   crates/   cargo's registry: the crates of Cargo.lock
#   facts     KEY=VALUE: backend, revision, and what labels say
# For an image that grades it has only recipe.sh, smoke.sh, facts and the wheel.
# Where they can, they mount a folder at /srv that keeps cargo's output from one build to the next.
set -euo pipefail

CONTEXT=${CONTEXT:-/mnt}
# Where the checkout is in the image. Programs find libtorch in ../../.libtorch/lib, as .cargo/config.toml says.
HOME_IN_IMAGE=${HOME_IN_IMAGE:-/opt/lockstep}
PROGRAMS=programs/bin
COMMANDS=${COMMANDS:-/usr/local/bin}

fail() {
  printf 'recipe: error: %s\n' "$1" >&2
  exit 1
}

# fact KEY: from the context.
fact() {
  sed -n "s/^$1=//p" "$CONTEXT/facts"
}

labels() {
  cat <<END
org.opencontainers.image.title=lockstep
org.opencontainers.image.description=Lockstep: $(fact description)
org.opencontainers.image.version=$(fact version)
org.opencontainers.image.revision=$(fact revision)
org.opencontainers.image.licenses=$(fact licenses)
lockstep.libtorch=$(fact libtorch)
lockstep.backend=$(fact backend)
lockstep.rust=$(fact rust)
lockstep.architecture=$(uname -m)
END
}

# A C++ compiler is all that the build needs of the system, besides Debian's base. Only this step may need the network.
need_compiler() {
  if command -v c++ >/dev/null && command -v cc >/dev/null; then return; fi
  command -v apt-get >/dev/null || fail "the base image has no C++ compiler, and no apt-get to install one: take a base that has g++"
  apt-get -q update
  DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends g++
}

build() {
  local target=/srv/target
  need_compiler
  # Keeps the files' times, by which cargo knows what has changed.
  mkdir -p "$HOME_IN_IMAGE"
  cp -a "$CONTEXT/source/." "$HOME_IN_IMAGE"
  compile "$target"
  keep "$target/debug" /built
}

# compile TARGET: all programs, without the network. cargo unpacks crates, so that it needs a registry to write to.
compile() {
  export CARGO_HOME=/tmp/cargo CARGO_TARGET_DIR=$1
  mkdir -p "$CARGO_HOME" "$1"
  cp -a "$CONTEXT/crates" "$CARGO_HOME/registry"
  (cd "$HOME_IN_IMAGE" && PATH=$CONTEXT/rust/bin:$PATH cargo build --locked --offline --bins --package lockstep-harness --package 'lab-*')
}

# keep FROM TO: what a run needs of the checkout, of cargo's output in FROM and of libtorch.
keep() {
  local program
  mkdir -p "$2/$PROGRAMS"
  tar -C "$HOME_IN_IMAGE" --exclude=./.libtorch -cf - . | tar -xf - -C "$2"
  for program in "$1"/lockstep "$1"/lab-*; do
    if [ -x "$program" ] && [ -f "$program" ]; then strip --strip-debug -o "$2/$PROGRAMS/${program##*/}" "$program"; fi
  done
  # The simulated device of lab 10.
  strip --strip-unneeded -o "$2/$PROGRAMS/libsimgpu.so" "$1/deps/libsimgpu.so"
  keep_libtorch "$HOME_IN_IMAGE/.libtorch" "$2/.libtorch"
  # Many users read the image; only root writes to it.
  chmod -R u=rwX,go=rX "$2"
}

# keep_libtorch FROM TO: for the CPU, the libraries of the view; for CUDA all libraries, since those of CUDA find each other by
# relative paths.
keep_libtorch() {
  mkdir -p "$2"
  cp -a "$1/installed" "$2"
  if [ "$(fact backend)" = cpu ]; then
    cp -rL "$1/lib" "$2/lib"
    return
  fi
  cp -a "$1/lib" "$1/torch-lib" "$2"
  tar -C "$1" --exclude='*.a' -cf - site/torch/lib site/nvidia | tar -xf - -C "$2"
}

install() {
  local program
  for program in "$HOME_IN_IMAGE/$PROGRAMS"/*; do
    ln -sfn "$program" "/usr/local/bin/${program##*/}"
  done
}

# The command from its wheel, and next to it a Python with PyTorch, which it finds there: the base's, if that has one, such as for ROCm; else that for
# the CPU from the index that uv knows for it (200 MB), or pip's, with CUDA's libraries (2.7 GB). Needs the network.
grade() {
  local python=$HOME_IN_IMAGE/python wheel
  command -v python3 >/dev/null || fail "the base image has no python3: take one that has, such as python:3.12-slim"
  wheel=$(find "$CONTEXT" -maxdepth 1 -name "lockstep_course-*_$(uname -m).whl" | head -n 1)
  [ -n "$wheel" ] || fail "there is no wheel for $(uname -m) in $CONTEXT"
  python3 -m venv --system-site-packages "$python" || fail "python3 of the base image cannot make a virtual environment (Debian's needs python3-venv)"
  local pip=("$python/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check)
  if ! "$python/bin/python" -c 'import torch' 2>/dev/null; then
    "${pip[@]}" uv
    "$python/bin/uv" pip install --quiet --no-cache --python "$python/bin/python" --torch-backend "$(fact backend)" "torch==$(fact libtorch)" || {
      printf 'recipe: uv could not install PyTorch for the CPU (see above): taking that of the index of pip\n' >&2
      "${pip[@]}" "torch==$(fact libtorch)" || fail "pip could not install PyTorch $(fact libtorch) (see its message above)"
    }
  fi
  "${pip[@]}" --no-index --no-deps "$wheel"
  cp "$CONTEXT/smoke.sh" "$HOME_IN_IMAGE/smoke.sh"
  ln -sfn "$python/bin/lockstep" "$COMMANDS/lockstep"
  chmod -R u=rwX,go=rX "$HOME_IN_IMAGE"
}

case ${1:-} in
build | install | grade | labels) "$1" ;;
*) fail "there is no step '${1:-}', but build, install, grade and labels" ;;
esac
