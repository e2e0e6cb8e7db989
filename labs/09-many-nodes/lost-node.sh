#!/bin/bash
# Shows on a real Slurm what a lost node costs: the job is requeued, resumes, and ends with the weights of an undisturbed run. With virtual
# ranks it goes on without the node instead.
#
#   labs/09-many-nodes/lost-node.sh lose [SNAPSHOTS]   one of three nodes loses power
#   labs/09-many-nodes/lost-node.sh go-on [SNAPSHOTS]  the same, and the other two go on: no requeue
#   labs/09-many-nodes/lost-node.sh cut [SNAPSHOTS]    the only node of a job is cut off, and its ranks train on
#
# SNAPSHOTS is the folder of snapshots: one that all nodes share, unless it is below /tmp. `lockstep` and lab 09 must be in PATH.
# Ends with 2 where there can be no Slurm.
set -euo pipefail

how=${1:?lose, go-on or cut} snapshots=${2:-snapshots}
name=lost-node-$$
folder=$PWD/target/try/$name
mkdir -p "$folder"
cluster() { lockstep cluster --name "$name" "$@"; }
trap 'cluster down >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT
cd "$folder"
up=$(cluster up --nodes 3) || { echo "no cluster here" >&2; exit 2; }
case $up in *"under Slurm"*) ;; *) echo "no Slurm here: $up" >&2; exit 2 ;; esac

elastic='' kept='' arguments=''
# shellcheck disable=SC2016  # the job's shells expand it
case $how in
  go-on)
    nodes=3 epochs=8 victim=n2 workers='$((SLURM_NODEID == 2 ? 2 : 1))'
    elastic=--nnodes=1:3 kept=--no-kill arguments='--virtual-ranks 4'
    ;;
  lose) nodes=3 epochs=8 victim=n2 workers='$((SLURM_NODEID == 2 ? 2 : 1))' ;;
  cut) nodes=1 epochs=20 victim=n1 workers=4 ;;
  *) echo "lose, go-on or cut, not $how" >&2; exit 2 ;;
esac
# A job script of $nodes nodes that saves into the folder $1.
script() {
  cat <<END
#!/bin/bash
#SBATCH --nodes=$nodes --ntasks-per-node=1 --requeue $kept --open-mode=append --output=job-%j.txt
echo "attempt \${SLURM_RESTART_COUNT:-0} on \$SLURM_JOB_NODELIST"
srun $kept sh -c 'exec lockstep run $elastic --nproc-per-node=$workers lab-09-many-nodes \\
  $arguments --samples 512 --epochs $epochs --batch-size 16 --save-every-steps 4 --device cpu --snapshots "$1"'
END
}
submit() {
  script "$1" >job.sh
  cluster exec ctl -- sbatch --parsable job.sh
}
# Waits until the command succeeds: at most five minutes.
await() {
  local what=$1 end=$((SECONDS + 300))
  shift
  until "$@"; do
    if [ $SECONDS -gt $end ]; then
      echo "waited for 300 s: $what" >&2
      tail -n 20 job-*.txt >&2
      exit 1
    fi
    sleep 0.1
  done
}
# Sends a signal to the ranks on the victim, as the kernel cuts their name.
ranks() { cluster exec $victim -- pkill "-$1" -x lab-09-many-nod; }
state() { cluster exec ctl -- scontrol show job "$1"; }
ended() { state "$1" | grep -Eq 'JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)'; }
weights() { grep -h 'Final weights' "$1" | sed 's/.*Final/Final/' || true; }

undisturbed=$(submit undisturbed)
await "the undisturbed job" ended "$undisturbed"
job=$(submit "$snapshots")
await "a snapshot of epoch 1" grep -qs 'snapshot-000001-' "job-$job.txt"
if [ "$how" != cut ]; then
  cluster fault lose $victim
else
  cluster fault cut $victim ctl
  # Its ranks wait until the later attempt has ended, so that what happens does not depend on who is faster.
  ranks STOP
fi
# Slurm would notice by itself in some time.
cluster exec ctl -- scontrol update nodename=$victim state=down reason="$how"
if [ "$how" = lose ]; then cluster fault boot $victim; fi
await "the job" ended "$job"
if [ "$how" = cut ]; then
  ranks CONT
  await "the end of the attempt that was cut off" grep -q 'has saved its snapshots' "job-$job.txt"
  cluster fault heal
  for one in "$snapshots"/*.safetensors; do
    grep -qa 'number\\":1' "$one" || { echo "$one is not of the later attempt" >&2; exit 1; }
  done
fi
if [ "$how" = go-on ] && grep -q '^attempt 1' "job-$job.txt"; then
  echo "the job was queued again" >&2
  exit 1
fi
lines='attempt|World|node|No snapshot|Resuming|srun: error: Node|lockstep: (node|rank)|warning: this|Final'
grep -E "^(\[default0\]:)?($lines|error: attempt)" "job-$job.txt"
echo
echo "undisturbed: $(weights "job-$undisturbed.txt")"
echo "$how: $(weights "job-$job.txt")"
[ -n "$(weights "job-$undisturbed.txt")" ] && [ "$(weights "job-$undisturbed.txt")" = "$(weights "job-$job.txt")" ]
