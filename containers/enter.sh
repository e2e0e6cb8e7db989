#!/bin/sh
# The entry point: COMMAND in the image's environment, and `lockstep --help` without one.
# shellcheck source=containers/environment.sh
. /opt/lockstep/containers/environment.sh
[ $# -gt 0 ] || set -- lockstep --help
exec "$@"
