# shellcheck shell=bash
# The parts of image.sh: the context that containers/recipe.sh reads, and the builders. Needs say.sh, arch.sh, checks.sh, ROOT, and what image.sh
# has chosen: BACKEND, BASE, WORK, ENGINE, OPTIONS, IMAGE.

# make_context DIR: hard links where the disk allows them, so that it takes no space.
make_context() {
  # In the image it is .libtorch: that has one architecture.
  local libtorch
  libtorch=$(libtorch_of "$MACHINE")
  "$ROOT/scripts/setup.sh" --quiet
  check_libtorch "$libtorch"
  say "gathering what the build needs in $1"
  rm -rf "$1"
  mkdir -p "$1"/{source/.libtorch,rust,crates}
  git -C "$ROOT" ls-files -z --cached --others --exclude-standard | tar -C "$ROOT" --null --ignore-failed-read -T - -cf - | tar -xf - -C "$1/source"
  link_into "$1/source/.libtorch" "$libtorch"/{include,lib,torch-lib,site,installed}
  [ "$BACKEND" = cpu ] || link_into "$1/source/.libtorch" "$libtorch"/{nvidia,headers}
  gather_rust "$1"
  printf 'backend=%s\nrevision=%s\n' "$BACKEND" "$(git -C "$ROOT" describe --always --dirty --abbrev=12)" >"$1/facts"
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
  apptainer build --force --notest --bind "$WORK/context:/mnt:ro,$WORK/cache:/srv" "${from[@]}" "${OPTIONS[@]}" \
    "$IMAGE" "$ROOT/containers/lockstep.def" >&2 ||
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
  mapfile -t labels < <(CONTEXT=$WORK/context bash "$ROOT/containers/recipe.sh" labels | sed 's/^/--label=/')
  "$ENGINE" build --file "$ROOT/containers/Containerfile" --build-arg "base=$base" --tag "$(oci_name)" "${labels[@]}" "${cache[@]}" "${OPTIONS[@]}" "$WORK/context" >&2 ||
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
  echo "localhost/lockstep:$BACKEND"
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
  local container
  if [ "$ENGINE" != buildah ]; then
    "$ENGINE" run "${OPTIONS[@]}" --rm "$(oci_name)" bash /opt/lockstep/containers/smoke.sh
    return
  fi
  container=$(buildah from "$(oci_name)")
  buildah run "${OPTIONS[@]}" "$container" -- bash /opt/lockstep/containers/smoke.sh || { buildah rm "$container" && return 1; }
  buildah rm "$container" >/dev/null
}
