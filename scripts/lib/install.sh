# shellcheck shell=bash
# Fetches torch's wheel into $HOME_DIR/site. Every step can be interrupted: wheels and parts of them stay in
# $HOME_DIR/wheels until they are installed, the installation grows in site.partial and takes its name when it is complete.
# Needs say.sh, checks.sh and what check_python found.

TORCH_VERSION=2.11.0
TORCH=("torch==$TORCH_VERSION")
# libtorch_cpu.so of the wheel is a CUDA build's: it needs libcudart.so.13 and libcupti.so.13 even where there is no GPU.
SLIM=("${TORCH[@]}" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# Headers of CUDA and NCCL.
NCCL=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-nccl-cu13==2.28.9)

# Sets FOREIGN_WHEELS, pip's options for wheels of another architecture than this machine's. The packages name different C libraries, and
# pip takes a list as it is: torch 2.28, cuda-runtime 2014 (that is 2.17), cupti 2.25.
choose_wheels() {
  local libc
  FOREIGN_WHEELS=()
  [ "$MACHINE" != "$(uname -m)" ] || return 0
  for libc in _2_28 _2_25 2014; do FOREIGN_WHEELS+=(--platform "manylinux${libc}_$MACHINE"); done
}

# install_site BACKEND SIZE: $HOME_DIR/site with the wheel of BACKEND (cpu, cuda) and SIZE (slim, full).
install_site() {
  local partial=$HOME_DIR/site.partial source=pip
  start_afresh "$partial"
  if [ "$1" = cpu ] && uv_has_cpu_wheel; then
    source=uv
    uv_install "$2" "$partial" || source=pip
  fi
  if [ "$source" = pip ]; then
    start_afresh "$partial"
    pip_install_torch "$1" "$2" "$partial"
  fi
  printf 'backend=%s\nsize=%s\nsource=%s\nversion=%s\n' "$1" "$2" "$source" "$(libtorch_version "$partial/torch")" >"$partial/lockstep.txt"
  take_place "$partial" "$HOME_DIR/site"
}

pip_install_torch() {
  if [ "$2" = slim ]; then
    say "installing PyTorch's wheel without the packages that a CPU run does not load (slim, about 545 MB)"
    pip_install "$3" --no-deps "${SLIM[@]}"
  else
    say "installing PyTorch's wheel with all its packages ($1, full, about 2.7 GB)"
    pip_install "$3" "${TORCH[@]}"
  fi
}

# install_nccl_headers: $HOME_DIR/nvidia/{cu13,nccl}/include.
install_nccl_headers() {
  local partial=$HOME_DIR/headers.partial
  [ "$FORCE" = 1 ] || [ ! -e "$HOME_DIR/nvidia/nccl/include/nccl.h" ] || return 0
  start_afresh "$partial"
  say "installing the headers of CUDA and NCCL (about 200 MB)"
  pip_install "$partial" --no-deps "${NCCL[@]}"
  take_place "$partial" "$HOME_DIR/headers"
  ln -sfn headers/nvidia "$HOME_DIR/nvidia"
}

start_afresh() {
  rm -rf "$1" "$HOME_DIR/tmp"
  mkdir -p "$1" "$HOME_DIR/tmp"
}

# take_place PARTIAL FINAL: the complete folder gets its name; the previous one is removed.
take_place() {
  rm -rf "$2.old"
  [ ! -e "$2" ] || mv "$2" "$2.old"
  mv "$1" "$2"
  rm -rf "$2.old"
}

# Unpacked wheels are not needed any more, nor are the files of an interrupted run.
remove_leftovers() {
  rm -rf "$HOME_DIR"/{tmp,wheels} "$HOME_DIR"/*.partial "$HOME_DIR"/*.old
}

# uv knows PyTorch's index of CPU-only wheels. A dry run shows within seconds whether it can be reached from here.
uv_has_cpu_wheel() {
  local answer
  command -v uv >/dev/null && [ "$MACHINE" = "$(uname -m)" ] || return 1
  if answer=$(UV_HTTP_TIMEOUT=5 UV_HTTP_RETRIES=0 timeout 15 uv pip install --dry-run --no-deps --python "$PYTHON" \
    --torch-backend cpu --target "$HOME_DIR/tmp/dry" "${TORCH[@]}" 2>&1) && grep -q "torch==$TORCH_VERSION+cpu" <<<"$answer"; then
    return 0
  fi
  say "uv cannot reach the index of CPU-only wheels; pip fetches the usual wheel"
  return 1
}

uv_install() {
  local deps=()
  [ "$1" = full ] || deps=(--no-deps)
  say "installing PyTorch's CPU-only wheel with uv ($1, about 200 MB)"
  UV_CACHE_DIR=$HOME_DIR/tmp/uv uv pip install "${deps[@]}" --python "$PYTHON" --torch-backend cpu --target "$2" "${TORCH[@]}" >&2 && return 0
  warn "uv failed; continuing with pip"
  return 1
}

# pip_install TARGET [--no-deps] REQUIREMENT...
pip_install() {
  local target=$1 rc=0
  local -x TMPDIR=$HOME_DIR/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
  shift
  prepare_pip
  choose_wheels
  fetch_resuming "$@" || rc=$?
  case $rc in
  0) ;;
  "$CANNOT") fetch_with_pip "$@" ;;
  *) exit 1 ;;
  esac
  mapfile -t WHEELS <"$HOME_DIR/tmp/wheels.txt"
  say "unpacking"
  with_ticker "unpacked" "$HOME_DIR/tmp" \
    "${PIP[@]}" install --quiet --no-index --no-deps --no-compile "${FOREIGN_WHEELS[@]}" --only-binary :all: --target "$target" "${WHEELS[@]}" >&2 ||
    die "pip could not install the wheels (see its message above)" "look at the disk (df -h '$HOME_DIR'), then run the same command again"
}

# Sets PIP to the project's own pip if Python can create one, so that nothing of the user's is touched or in the way.
prepare_pip() {
  local env=$HOME_DIR/tmp/pyenv
  PIP=("$PYTHON" -m pip)
  if [ "$PYTHON_HAS" = venv ] && "$PYTHON" -m venv "$env" >/dev/null 2>&1; then
    PIP=("$env/bin/python" -m pip)
    "${PIP[@]}" install --quiet --upgrade "pip>=$PIP_WITH_REPORT" 2>/dev/null || true
  elif ! "${PIP[@]}" --version >/dev/null 2>&1; then
    die "$PYTHON could not make a virtual environment in $env, and has no pip" "$(packages "python3-venv" "python3-pip")"
  fi
}

# Returns $CANNOT if pip has to fetch by itself: its version is too old to report without fetching, or the files are not
# accessible by a plain request.
CANNOT=3
PIP_WITH_REPORT=25.2
fetch_resuming() {
  local report=$HOME_DIR/tmp/report.json quiet=()
  [ "${LOCKSTEP_FETCH:-}" != pip ] || return "$CANNOT"
  version_at_least "$("${PIP[@]}" --version | awk '{ print $2 }')" "$PIP_WITH_REPORT" || return "$CANNOT"
  "${PIP[@]}" install --quiet --dry-run --ignore-installed --only-binary :all: "${FOREIGN_WHEELS[@]}" --report "$report" "$@" >&2 ||
    die "pip found no such packages (see its message above)" "check the network and the index: $PYTHON -m pip config list"
  if [ "${QUIET:-0}" = 1 ]; then quiet=(--quiet); fi
  "${PIP[0]}" "$LIB/fetch_wheels.py" "$report" "$HOME_DIR/wheels" "$HOME_DIR/tmp/wheels.txt" "${quiet[@]}"
}

# Resumes file by file; the folder's name keeps another Python's wheels apart.
fetch_with_pip() {
  local folder
  folder=$HOME_DIR/wheels/pip-$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$(cksum <<<"$*" | cut -d ' ' -f 1)
  mkdir -p "$folder"
  say "pip fetches the files; an interrupted run continues with the file at which it stopped"
  with_ticker "fetched or kept" "$HOME_DIR" "${PIP[@]}" download --only-binary :all: "${FOREIGN_WHEELS[@]}" --no-cache-dir --dest "$folder" "$@" >&2 ||
    die "pip could not fetch the wheels (see its message above)" "check the network and the disk, then run the same command again"
  printf '%s\n' "$folder"/*.whl >"$HOME_DIR/tmp/wheels.txt"
}
