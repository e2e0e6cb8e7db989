# shellcheck shell=bash
# The parts of image.sh: the context that containers/recipe.sh reads, and the builders. Needs say.sh, arch.sh, checks.sh, ROOT, and what image.sh
# has chosen: BACKEND, BASE, WORK, CONTEXT, RECIPE, FILE, TAG, ENGINE, OPTIONS, IMAGE.

# make_context DIR: hard links where the disk allows them, so that it takes no space.
make_context() {
  # In the image it is .libtorch: that has one architecture.
  local libtorch
  libtorch=$(libtorch_of "$MACHINE")
  git -C "$ROOT" rev-parse --git-dir >/dev/null 2>&1 ||
    die "this folder is no git repository, which says what belongs into the image" "git clone the project; or --grade, which needs only the wheel"
  "$ROOT/scripts/setup.sh" --quiet
  check_libtorch "$libtorch"
  say "gathering what the build needs in $1"
  rm -rf "$1"
  mkdir -p "$1"/{source/.libtorch,rust,crates}
  git -C "$ROOT" ls-files -z --cached --others --exclude-standard | tar -C "$ROOT" --null --ignore-failed-read -T - -cf - | tar -xf - -C "$1/source"
  link_into "$1/source/.libtorch" "$libtorch"/{include,lib,torch-lib,site,installed}
  [ "$BACKEND" = cpu ] || link_into "$1/source/.libtorch" "$libtorch"/{nvidia,headers}
  gather_rust "$1"
  facts "its launcher, labs and libtorch" "$(sed -n 's/^version=//p' "$libtorch/installed")" >"$1/facts"
}

# facts CONTENT LIBTORCH: what the image's labels say.
facts() {
  local manifest=$ROOT/Cargo.toml
  cat <<END
backend=$BACKEND
revision=$(git -C "$ROOT" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
description=distributed deep-learning training in Rust, $1
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$manifest")
licenses=$(sed -n 's/^license = "\(.*\)"/\1/p' "$manifest")
libtorch=$2
rust=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$ROOT/rust-toolchain.toml")
END
}

# make_grading_context DIR WHEELS: the command's wheels in the folder WHEELS, of which the build takes that of its machine, and what installs it. The folder is all that a
# build needs: a release has it as an archive.
make_grading_context() {
  local version wheels
  version=$(facts '' '' | sed -n 's/^version=//p')
  wheels=("$2/lockstep_course-$version"-*.whl)
  [ -e "$2/lockstep_course-$version-py3-none-manylinux_2_28_$MACHINE.whl" ] ||
    die "there is no wheel of the command $version for $MACHINE in $2" "scripts/wheel.sh --arch $MACHINE"
  say "gathering what the build needs in $1"
  rm -rf "$1"
  mkdir -p "$1"
  cp "$ROOT"/containers/{README.md,Containerfile.grade,grade.def,recipe.sh,smoke.sh} "${wheels[@]}" "$1"
  facts "the command that grades tasks in Python, and PyTorch" "$(sed -n 's/^TORCH_VERSION=//p' "$ROOT/scripts/lib/install.sh")" >"$1/facts"
}

# An image cannot hold a libtorch that is elsewhere on this machine.
check_libtorch() {
  local record=$1/site/lockstep.txt
  grep -qx 'source=own' "$1/installed" ||
    die "this checkout uses a libtorch that is outside of it" "scripts/setup.sh --$BACKEND, which fetches one of its own"
  if [ "$BACKEND" = cuda ] && ! { grep -qx 'backend=cuda' "$record" && [ -e "$1/nvidia/nccl/include/nccl.h" ]; }; then
    die "an image for CUDA needs libtorch for CUDA, and NCCL's headers" "scripts/setup.sh --cuda (2.9 GB to fetch)"
  fi
}

# link_into DIR PATH...
link_into() {
  local dir=$1
  shift
  cp -al -t "$dir" -- "$@" 2>/dev/null || cp -a -t "$dir" -- "$@"
}

# The toolchain without its documentation, and cargo's registry without what it unpacks by itself.
gather_rust() {
  local sysroot registry=${CARGO_HOME:-${HOME:-~}/.cargo}/registry
  sysroot=$(cd "$ROOT" && rustc --print sysroot)
  (cd "$ROOT" && cargo fetch --locked --quiet --target "$(rustc -vV | sed -n 's/^host: //p')") ||
    die "cargo lacks crates of Cargo.lock, and could not fetch them (see its message above)" \
      "check the network, then run the same command again"
  link_into "$1/rust" "$sysroot"/{bin,lib}
  link_into "$1/crates" "$registry"/{index,cache}
}

build_apptainer() {
  local from=(--build-arg bootstrap=docker --build-arg "base=$BASE")
  if [ -e "$BASE" ]; then from=(--build-arg bootstrap=localimage --build-arg "base=$(realpath "$BASE")"); fi
  apptainer build --force --notest --bind "$CONTEXT:/mnt:ro,$WORK/cache:/srv" "${from[@]}" "${OPTIONS[@]}" \
    "$IMAGE" "$ROOT/containers/$RECIPE.def" >&2 ||
    die "apptainer could not build the image (see its message above)" \
      "if root has limited rights here, as in a container: the same command with -- --fakeroot"
}

try_apptainer() {
  apptainer test "${OPTIONS[@]}" "$IMAGE"
}

build_oci() {
  local base=$BASE labels=() cache=(--volume "$WORK/cache:/srv")
  case $BASE in */*) ;; *) base=docker.io/library/$BASE ;; esac
  [ "$ENGINE" != docker ] || cache=() # its builds mount no folder that they could write to
  if [ -d "$BASE" ]; then base=$(import_base); fi
  mapfile -t labels < <(CONTEXT=$CONTEXT bash "$ROOT/containers/recipe.sh" labels | sed 's/^/--label=/')
  "$ENGINE" build --file "$ROOT/containers/$FILE" --build-arg "base=$base" --tag "$(oci_name)" "${labels[@]}" "${cache[@]}" "${OPTIONS[@]}" "$CONTEXT" >&2 ||
    die "$ENGINE could not build the image (see its message above)" \
      "with buildah, if root has limited rights here: the same command with -- --isolation=chroot"
  rm -f "$IMAGE"
  case $ENGINE in
  buildah) buildah push --quiet "$(oci_name)" "oci-archive:$IMAGE:$(oci_name)" >&2 ;;
  podman) podman save --quiet --format oci-archive --output "$IMAGE" "$(oci_name)" >&2 ;;
  docker) docker save --output "$IMAGE" "$(oci_name)" >&2 ;;
  esac
}

# The name by which $ENGINE keeps the image.
oci_name() {
  echo "localhost/lockstep:$TAG"
}

# An image of the folder BASE; prints its name.
import_base() {
  local container
  if [ "$ENGINE" = buildah ]; then
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$BASE" / >&2
    buildah commit --quiet --rm "$container" localhost/lockstep-base >&2
  else
    tar -C "$BASE" -cf - . | "$ENGINE" import - localhost/lockstep-base >&2
  fi
  echo localhost/lockstep-base
}

try_oci() {
  local container smoke=(bash /opt/lockstep/containers/smoke.sh)
  [ "$TAG" != grade ] || smoke=(bash /opt/lockstep/smoke.sh grade)
  if [ "$ENGINE" != buildah ]; then
    "$ENGINE" run "${OPTIONS[@]}" --rm "$(oci_name)" "${smoke[@]}"
    return
  fi
  container=$(buildah from "$(oci_name)")
  buildah run "${OPTIONS[@]}" "$container" -- "${smoke[@]}" || { buildah rm "$container" && return 1; }
  buildah rm "$container" >/dev/null
}
