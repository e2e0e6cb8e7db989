//! Answers to `batch_script`: wrong ones, and unusual right ones.

use lockstep_answers::given;

/// The given script: a launcher on the head node only.
#[given]
pub fn head_only() {}

/// Starts a launcher for each slot.
pub fn each_slot() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=2
head=$(head -n 1 "$PBS_NODEFILE")
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
pbsdsh -- lockstep run --nnodes="$nodes" --nproc-per-node=2 --rdzv-id="$PBS_JOBID" --rdzv-backend=c10d --rdzv-endpoint="$head:29500" train
"#
}

/// Exports where to meet, and has each node's shell expand it.
pub fn exported() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=1
export endpoint=$(head -n 1 "$PBS_NODEFILE"):29500
export nodes=$(wc -l <"$PBS_NODEFILE")
pbsdsh -- bash -c 'lockstep run --nnodes=$nodes --nproc-per-node=2 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d --rdzv-endpoint=$endpoint train'
"#
}

/// Names no address.
pub fn no_address() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=1
nodes=$(wc -l <"$PBS_NODEFILE")
pbsdsh -- lockstep run --nnodes=$nodes --nproc-per-node=2 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d train
"#
}

/// Lets each node meet with itself.
pub fn own_endpoint() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=1
nodes=$(wc -l <"$PBS_NODEFILE")
pbsdsh -- bash -c "lockstep run --nnodes=$nodes --nproc-per-node=2 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d --rdzv-endpoint=\$(hostname):29500 train"
"#
}

/// Counts the lines of the host file as nodes.
pub fn slots_counted() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=2
head=$(head -n 1 "$PBS_NODEFILE")
nodes=$(wc -l <"$PBS_NODEFILE")
for host in $(sort -u "$PBS_NODEFILE"); do
  ssh "$host" "lockstep run --nnodes=$nodes --nproc-per-node=2 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d --rdzv-endpoint=$head:29500 train" &
done
wait
"#
}

/// Has each node draw an id.
pub fn random_id() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=1
head=$(head -n 1 "$PBS_NODEFILE")
nodes=$(wc -l <"$PBS_NODEFILE")
for host in $(cat "$PBS_NODEFILE"); do
  ssh "$host" "lockstep run --nnodes=$nodes --nproc-per-node=2 --rdzv-id=$RANDOM$RANDOM$RANDOM --rdzv-backend=c10d --rdzv-endpoint=$head:29500 train" &
done
wait
"#
}

/// The given script with pbsdsh in front of the launcher, and the directives as deep as in the given file: qsub reads them.
pub fn indented() -> &'static str {
    r#"#!/bin/bash
    #PBS -N train
    #PBS -l select=2:ncpus=4:mpiprocs=2
    head=$(head -n 1 "$PBS_NODEFILE")
    nodes=$(sort "$PBS_NODEFILE" | uniq | wc -l)
    pbsdsh lockstep run --nnodes="$nodes" --nproc-per-node=2 --rdzv-id="$PBS_JOBID" --rdzv-backend=c10d --rdzv-endpoint="$head:29500" train
    "#
}

/// Starts the next launcher when the one before has ended.
pub fn one_by_one() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=2
head=$(head -n 1 "$PBS_NODEFILE")
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
for host in $(sort -u "$PBS_NODEFILE"); do
  ssh "$host" lockstep run --nnodes="$nodes" --nproc-per-node=2 --rdzv-id="$PBS_JOBID" --rdzv-backend=c10d --rdzv-endpoint="$head:29500" train
done
"#
}

/// Does not wait for its launchers.
pub fn no_wait() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=2
head=$(head -n 1 "$PBS_NODEFILE")
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
for host in $(sort -u "$PBS_NODEFILE"); do
  ssh "$host" lockstep run --nnodes="$nodes" --nproc-per-node=2 --rdzv-id="$PBS_JOBID" --rdzv-backend=c10d --rdzv-endpoint="$head:29500" train &
done
"#
}

/// Right: gives the first launcher a second before the others come, and waits for it by itself.
pub fn head_first() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=2
mapfile -t hosts < <(awk '!seen[$1]++' "$PBS_NODEFILE")
run="lockstep run --nnodes=${#hosts[@]} --nproc-per-node=2 --rdzv-id=$PBS_JOBID --rdzv-backend=c10d --rdzv-endpoint=${hosts[0]}:29500 train"
ssh "${hosts[0]}" "$run" &
first=$!
sleep 1.2
for host in "${hosts[@]:1}"; do ssh "$host" "$run" & done
wait $first
wait
"#
}

/// Right: a loop with ssh, and torchrun's old command line with numbers of nodes.
pub fn ssh_loop() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=2
mapfile -t hosts < <(awk '!seen[$1]++' "$PBS_NODEFILE")
for rank in "${!hosts[@]}"; do
  ssh -n "${hosts[rank]}" torchrun --nnodes "${#hosts[@]}" --node_rank "$rank" --nproc_per_node 2 --master_addr "${hosts[0]}" train &
done
wait
"#
}

/// Right: the launcher reads the host file, which all nodes see.
pub fn host_file() -> &'static str {
    r#"#!/bin/bash
#PBS -l select=2:ncpus=4:mpiprocs=2
mpiexec --ppn 1 lockstep run --hostfile "$PBS_NODEFILE" --nproc-per-node=2 train
"#
}
