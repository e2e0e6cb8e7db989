//! Task 4: the batch script. Spot the bug.
//!
//! PBS runs a batch script on the first of the job's nodes, and nowhere else. This one waits there for the others until the
//! rendezvous times out. Write a script that starts one launcher on each node: `pbsdsh PROGRAM` starts a program once for each line of
//! `$PBS_NODEFILE` (`mpiprocs` lines a node), `pbsdsh -n INDEX PROGRAM` for one of the lines; `mpiexec` and `ssh` are installed, too.
//! Variables that the script exports are not set on other nodes.

/// The batch script, for any number of nodes: one `lockstep run` (or `torchrun`) with two workers on each node. All launchers get the
/// same number of nodes, the same id, and the first node of `$PBS_NODEFILE` as the address to meet at.
pub fn batch_script() -> &'static str {
    // <answer>
    //~ r#"#!/bin/bash
    //~ #PBS -N train
    //~ #PBS -l select=2:ncpus=4:mpiprocs=2
    //~ #PBS -l place=scatter
    //~ cd "$PBS_O_WORKDIR"
    //~ head=$(head -n 1 "$PBS_NODEFILE")
    //~ nodes=$(sort "$PBS_NODEFILE" | uniq | wc -l)
    //~ lockstep run --nnodes="$nodes" --nproc-per-node=2 --rdzv-id="$PBS_JOBID" --rdzv-backend=c10d --rdzv-endpoint="$head:29500" train
    //~ "#
    r#"#!/bin/bash
#PBS -N train
#PBS -l select=2:ncpus=4:mpiprocs=1
#PBS -l place=scatter
cd "$PBS_O_WORKDIR"
head=$(head -n 1 "$PBS_NODEFILE")
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
port=$((20000 + ${PBS_JOBID%%[!0-9]*} % 10000))
pbsdsh -- "$(command -v lockstep)" run --nnodes="$nodes" --nproc-per-node=2 \
  --rdzv-id="$PBS_JOBID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port" train
"#
    // </answer>
}
