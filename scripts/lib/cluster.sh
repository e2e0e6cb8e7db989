# shellcheck shell=bash
# What the tests of clusters and batch scripts run on: Slurm, Open MPI, a firewall for faults, and shellcheck. Needs say.sh,
# and book.sh for APT_SECONDS.

# As Debian and Ubuntu call them, and the programs for which they are needed.
CLUSTER_PACKAGES=(iproute2 nftables slurm-wlm munge openmpi-bin shellcheck)
CLUSTER_PROGRAMS=(ip nft slurmctld slurmd srun munged mpirun shellcheck)

# missing_cluster_programs: a name on each line. slurmctld and others are in folders that a user's PATH leaves out.
missing_cluster_programs() {
  local name
  for name in "${CLUSTER_PROGRAMS[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$name" >/dev/null || echo "$name"
  done
}

# install_cluster_tools: with apt-get, where root can do it without a prompt. Everything else works without them.
install_cluster_tools() {
  local missing command="apt-get install -y --no-install-recommends ${CLUSTER_PACKAGES[*]}"
  missing=$(missing_cluster_programs | paste -sd ' ')
  if [ -z "$missing" ]; then
    say "Slurm and Open MPI are in place"
  elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Slurm and Open MPI with apt-get ($missing missing): $command"
    # shellcheck disable=SC2086 # words
    { timeout "$APT_SECONDS" apt-get -q update && DEBIAN_FRONTEND=noninteractive timeout "$APT_SECONDS" $command; } >&2 ||
      warn "apt-get could not install them (see its message above): clusters will not be verified"
  else
    warn "$missing missing: clusters will not be verified; to install them: sudo $command, or this system's packages of Slurm and Open MPI"
  fi
}
