# shellcheck shell=sh
# The environment of the image; Apptainer reads it with sh at each start, enter.sh for others.

# The image is read-only, and a job's folder is the caller's. These are for cargo, when a checkout is bound into the container.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/lockstep/target}"
