# shellcheck shell=bash
# Python's side of the comparisons: $PEER, a virtual environment with PyTorch, torchvision, numpy and safetensors, for the
# CPU. Needs say.sh, checks.sh, install.sh and what check_python found.

PEER_TORCHVISION=0.26.0
# What the comparisons import, and the dependencies of that. Without --no-deps PyTorch would request 2 GB of CUDA's libraries.
PEER_PACKAGES=("torchvision==$PEER_TORCHVISION" numpy pillow safetensors filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec)
# In MB: with --cpu (slim) installed, which is shared by hard links, and without.
PEER_DISK_SHARED=750
PEER_DISK=2650

peer_is_in_place() {
  [ "$(recorded "$PEER/installed" torch)" = "$TORCH_VERSION" ] && [ "$(recorded "$PEER/installed" torchvision)" = "$PEER_TORCHVISION" ] &&
    "$PEER/bin/python" -c '' 2>/dev/null
}

# install_peer: like all of set-up it can be interrupted, and continues at the next run.
install_peer() {
  local partial=$HOME_DIR/python.partial packages
  if [ "$FORCE" = 0 ] && peer_is_in_place; then
    peer_is_compiled || import_in_peer "$PEER"
    return
  fi
  [ -n "${PYTHON:-}" ] || check_python "$WANT_PYTHON"
  check_disk "$HOME_DIR" "$(if peer_can_share; then echo "$PEER_DISK_SHARED"; else echo "$PEER_DISK"; fi)" "the Python for comparisons"
  stop_on_problems
  say "making the Python for comparisons, $PEER"
  start_afresh "$partial"
  "$PYTHON" -m venv --without-pip "$partial" >&2 || die "$PYTHON cannot make a virtual environment" "$(packages "python3-venv" "python3")"
  packages=$("$partial/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  install_peer_packages "$packages"
  stand_in_for_cuda "$packages"
  import_in_peer "$partial"
  printf 'torch=%s\ntorchvision=%s\n' "$TORCH_VERSION" "$PEER_TORCHVISION" >"$partial/installed"
  take_place "$partial" "$PEER"
}

# import_in_peer DIR: also leaves these modules compiled, even where PYTHONDONTWRITEBYTECODE is set: otherwise every process of a
# test would compile PyTorch again, for seconds.
import_in_peer() {
  PYTHONDONTWRITEBYTECODE='' "$1/bin/python" -c 'import numpy, safetensors.torch, torch, torch._dynamo, torchvision
import torch.distributed.fsdp, torch.distributed.optim, torch.distributed.pipelining, torch.distributed.run
import torch.distributed.tensor.parallel
assert torch.distributed.is_gloo_available() and torch.ones(2).sum() == 2' >&2 ||
    die "the Python for comparisons cannot import PyTorch (see its message above)" \
      "let LOCKSTEP_PYTHON name a Python with torch $TORCH_VERSION, torchvision $PEER_TORCHVISION, numpy and safetensors"
}

peer_is_compiled() {
  compgen -G "$PEER/lib/python*/site-packages/torch/distributed/pipelining/__pycache__/*" >/dev/null
}

# Whether the wheel in site is PyPI's torch, for which torchvision is made, and for this Python.
peer_can_share() {
  [ "$(recorded "$HOME_DIR/site/lockstep.txt" source)" = pip ] &&
    compgen -G "$HOME_DIR/site/torch/_C.$("$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)')-*.so" >/dev/null
}

install_peer_packages() {
  if peer_can_share; then
    cp -al "$HOME_DIR/site/." "$1" 2>/dev/null || cp -a "$HOME_DIR/site/." "$1"
    rm -rf "${1:?}/bin" # the wheel's commands; pip puts those of the other packages there
    pip_install "$1" --no-deps "${PEER_PACKAGES[@]}"
  else
    pip_install "$1" --no-deps "${SLIM[@]}" "${PEER_PACKAGES[@]}"
  fi
}

# stand_in_for_cuda SITE_PACKAGES: PyPI's wheel is a CUDA build and needs libraries that no CPU run calls. Empty ones with their
# names satisfy the loader; functions are resolved when they are called, which never happens, and no GPU is visible.
stand_in_for_cuda() {
  local name lib=$1/torch/lib empty=1
  for name in $(needed_by "$lib"/*.so); do
    if [ -e "$lib/$name" ] || compgen -G "$1/nvidia/*/lib/$name" >/dev/null; then continue; fi
    cc -shared -x c /dev/null -o "$lib/$name" "-Wl,-soname,$name" ||
      die "'cc' cannot make the library $name" "$(packages "gcc libc6-dev" "gcc glibc-devel")"
    empty=0
  done
  [ "$empty" = 1 ] || echo 'import os, sys; sys.setdlopenflags(os.RTLD_LAZY); os.environ["CUDA_VISIBLE_DEVICES"] = ""' >"$1/lockstep.pth"
}

# needed_by LIBRARY...: names of CUDA's libraries that these need; libcuda itself comes with the driver.
needed_by() {
  readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nccl\|nvshmem\|nvrtc\|nvJitLink\).*\)\]/\1/p' | sort -u | grep -v '^libcuda\.so'
}
