# shellcheck shell=bash
# The "CPU view" of a libtorch: $HOME_DIR/{include,lib,torch-lib}, which cargo builds against and binaries run with.
#
# It holds links to the headers and to the libraries that a CPU run needs, and no libtorch_cuda.so: with that file next
# to them, every program would load CUDA. torch-lib leads to the real folder, from which a CUDA run loads it on purpose.
# Links into $HOME_DIR are relative, so that the checkout can be moved. Needs say.sh, arch.sh and HOME_DIR.

# libtorch_version DIR: 2.11.0, 2.11.0+cpu …, from whichever file of the installation contains it.
libtorch_version() {
  local header
  if [ -f "$1/build-version" ]; then
    head -n 1 "$1/build-version"
  elif [ -f "$1/version.py" ]; then
    sed -n "s/^__version__ *= *['\"]\(.*\)['\"].*/\1/p" "$1/version.py"
  else
    for header in "$1/include/torch/headeronly/version.h" "$1/include/torch/version.h"; do
      awk '/define TORCH_VERSION_(MAJOR|MINOR|PATCH) / { v = v (v == "" ? "" : ".") $3 } END { print v }' "$header" 2>/dev/null
    done | grep -m 1 . || true
  fi
}

# libtorch_dir PATH: the folder with include and lib, for a libtorch, a torch wheel or the folder that holds one.
libtorch_dir() {
  local dir
  for dir in "$1" "$1/torch" "$1/libtorch"; do
    if [ -e "$dir/lib/libtorch_cpu.so" ] && [ -d "$dir/include" ]; then
      (cd "$dir" && pwd -P)
      return 0
    fi
  done
  return 1
}

# make_view TORCH_DIR: TORCH_DIR is relative to $HOME_DIR for the project's own, absolute for an existing one.
make_view() {
  local torch=$1 name found
  found=$(cd "$HOME_DIR" && machine_of "$torch/lib/libtorch_cpu.so")
  [ "$found" = "$MACHINE" ] ||
    die "libtorch_cpu.so in $torch/lib is for the architecture $found, and $MACHINE is needed" "scripts/setup.sh --cpu on a machine of that architecture, or name another libtorch"
  rm -rf "${HOME_DIR:?}"/{include,lib,torch-lib}
  mkdir "$HOME_DIR/lib"
  ln -sfn "$torch/include" "$HOME_DIR/include"
  ln -sfn "$torch/lib" "$HOME_DIR/torch-lib"
  # torch-sys links -ltorch; the real one would pull libtorch_cuda.so in.
  echo 'INPUT ( AS_NEEDED ( -ltorch_cpu ) )' >"$HOME_DIR/lib/libtorch.so"
  for name in libtorch_cpu.so libc10.so; do
    link_library "$torch" "$name" || die "$torch/lib has no $name" "scripts/setup.sh --cpu --force, or unset LIBTORCH"
  done
  link_needed "$torch"
}

# link_library TORCH_DIR NAME: links NAME from the libtorch or from the NVIDIA packages next to it.
link_library() {
  local found
  found=$(
    cd "$HOME_DIR"
    find -L "$1/lib" "$1"/lib/../../nvidia/*/lib -maxdepth 1 -name "$2" -print -quit 2>/dev/null
  ) || true # a libtorch without NVIDIA packages has no such folder
  case $found in
  '') return 1 ;;
  /*) ln -sf "$(cd "$(dirname "$found")" && pwd -P)/$2" "$HOME_DIR/lib/$2" ;;
  *) ln -sf "../${found/torch\/lib\/..\/..\//}" "$HOME_DIR/lib/$2" ;;
  esac
}

# Links every library that libtorch_cpu.so needs and its installation contains: libgomp, and libcudart and libcupti of a CUDA
# build. A linked library may need others, hence the rounds.
link_needed() {
  local name missing
  for _ in 1 2 3; do
    for name in $(needed_libraries | awk '{ print $1 }'); do
      [ -e "$HOME_DIR/lib/$name" ] || link_library "$1" "$name" || true
    done
    missing=$(needed_libraries | awk '/not found/ { print $1 }' | paste -sd ' ')
    [ -n "$missing" ] || return 0
  done
  die "libtorch_cpu.so in $1/lib needs $missing: it is not there, not in the Python packages next to it, and not in the system" \
    "scripts/setup.sh --cpu, which installs a complete one"
}

# needed_libraries: NAME => PATH, or NAME => not found. ldd starts this machine's loader, which reads no other architecture's files.
needed_libraries() {
  local listed
  if [ "$MACHINE" != "$(uname -m)" ]; then
    needed_elsewhere
    return
  fi
  listed=$(env -u LD_LIBRARY_PATH -u LD_PRELOAD ldd "$HOME_DIR/lib/libtorch_cpu.so" 2>&1) || true
  case $listed in
  *'=>'*) awk '/=>/ { print }' <<<"$listed" | sort -u ;;
  *) echo "libtorch_cpu.so(${listed//[[:space:]]/_}) => not found" ;;
  esac
}

# needed_elsewhere: the same for another architecture, from the files' own lists; its system's libraries are those of its cross compiler.
needed_elsewhere() {
  local name
  for name in $(readelf -d "$HOME_DIR"/lib/*.so* 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u); do
    if [ -e "$HOME_DIR/lib/$name" ]; then
      echo "$name => $HOME_DIR/lib/$name"
    elif [ "$("$MACHINE-linux-gnu-gcc" -print-file-name="$name")" != "$name" ]; then
      echo "$name => the system's"
    else
      echo "$name => not found"
    fi
  done
}

# view_is_sound: every link of the view points to an existing file.
view_is_sound() {
  local link
  for link in "$HOME_DIR"/include "$HOME_DIR"/torch-lib "$HOME_DIR"/lib/*; do
    [ -e "$link" ] || return 1
  done
  [ -e "$HOME_DIR/lib/libtorch_cpu.so" ] && [ -s "$HOME_DIR/lib/libtorch.so" ]
}
