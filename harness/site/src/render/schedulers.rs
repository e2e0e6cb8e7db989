//! The batch scripts, for each way to get nodes.
//!
//! - Slurm: sbatch's directives, and srun, which starts one launcher on each node with the batch script's environment. Seen with Slurm
//!   22.05: `scancel --signal` reaches the steps and not the batch script; steps of a heterogeneous job see the nodes of all its parts in
//!   SLURM_JOB_NODELIST, the batch script those of the first; srun takes no `--cpus-per-task` from sbatch.
//! - PBS Pro and OpenPBS: directives with `select=`, and pbsdsh, which starts a program on each node. PBS_NODEFILE names a host for
//!   each of `mpiprocs`; a program under pbsdsh does not get the variables that the batch script exported; the script starts in the home
//!   folder, under a login shell; qdel sends SIGTERM. PBS has no signal before the time limit, and qrerun is for operators: so each node
//!   keeps the time itself, and the script submits itself again.
//! - Machines without a scheduler: a file names them, and ssh or mpirun starts one launcher on each.

use lockstep_launch::command::quoted;

use super::agent::{self, BREAK, RendezvousWords, SchedulerParts, clock, launch, origin};
use super::job::{BatchJob, Group};
use super::profile::{Profile, Rendezvous};

pub(super) fn slurm(site: &str, profile: &Profile, job: &BatchJob) -> String {
    let mut text = format!("#!/bin/bash\n{}{}", slurm_directives(profile, job), origin(site));
    if profile.uses_srun() {
        text.push_str(&slurm_body(profile, job));
    } else {
        let place = SchedulerParts {
            id: "id=$SLURM_JOB_ID\n".into(),
            number: "SLURM_JOB_ID",
            task: "SLURM_ARRAY_TASK_ID",
            hosts: "<(scontrol show hostnames \"$SLURM_JOB_NODELIST\")".into(),
            prepare: "",
            again: "scontrol requeue \"$SLURM_JOB_ID\"".into(),
        };
        text.push_str(&agent::body(profile, job, &place));
    }
    text
}

fn slurm_directives(profile: &Profile, job: &BatchJob) -> String {
    let mut all = vec![format!("--job-name={}", job.name)];
    let mut add = |name: &str, value: Option<String>| all.extend(value.map(|value| format!("--{name}={value}")));
    let file = if job.array.is_some() { "%x-%A_%a.out" } else { "%x-%j.out" };
    let folder = profile.shared.as_ref().map(|folder| format!("{}/", folder.display())).unwrap_or_default();
    add("output", Some(quoted(&format!("{folder}{file}"))));
    let again = job.margin.is_some() || job.min_nodes.is_some();
    add("open-mode", again.then(|| "append".into()));
    add("time", job.time.map(clock));
    add("array", job.array.map(|tasks| format!("0-{}", tasks - 1)));
    add("signal", job.margin.filter(|_| profile.uses_srun()).map(|seconds| format!("B:USR1@{seconds}")));
    all.push(if again { "--requeue" } else { "--no-requeue" }.into());
    all.extend(job.min_nodes.map(|_| "--no-kill".into()));
    let mut parts = job.groups.iter().map(|group| resources(profile, job, *group));
    all.extend(parts.next().unwrap_or_default());
    let mut text: String = all.iter().map(|line| format!("#SBATCH {line}\n")).collect();
    for part in parts {
        text.push_str("#SBATCH hetjob\n");
        text.extend(part.iter().map(|line| format!("#SBATCH {line}\n")));
    }
    text
}

/// What one group of nodes asks for; a heterogeneous job says it for each.
fn resources(profile: &Profile, job: &BatchJob, group: Group) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |name: &str, value: Option<String>| all.extend(value.map(|value| format!("--{name}={value}")));
    add("partition", profile.queue.clone());
    add("account", profile.account.clone());
    add("constraint", profile.constraint.clone());
    add("nodes", Some(job.min_nodes.map_or(String::new(), |min| format!("{min}-")) + &group.nodes.to_string()));
    add("ntasks-per-node", Some("1".into()));
    add("cpus-per-task", profile.cpus_per_node.map(|cpus| cpus.to_string()));
    match (group.gpus, &*profile.gpu_resource) {
        (0, _) => {}
        (gpus, "") => add("gpus-per-node", Some(gpus.to_string())),
        (gpus, resource) => add("gres", Some(format!("{resource}:{gpus}"))),
    }
    all.extend(profile.directives.iter().cloned());
    all
}

fn slurm_body(profile: &Profile, job: &BatchJob) -> String {
    let mut text = agent::strict(&agent::modules(profile)) + &agent::environment(profile, job) + "\n";
    if job.build {
        return text + &launch(profile, job, job.groups[0], "1", &MEETING) + "\n";
    }
    if job.array.is_some() {
        text.push_str("task=$SLURM_ARRAY_TASK_ID\n");
    }
    if profile.rendezvous() == Rendezvous::Flags {
        text.push_str("# Nodes meet on the first of them, at a port that differs between jobs.\n");
        text.push_str("head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\n");
        text.push_str("port=$((20000 + SLURM_JOB_ID % 10000))\n\n");
    }
    text.push_str(&stage(profile, job));
    if job.margin.is_some() {
        text.push_str(&on_signal(profile, job));
    }
    text.push_str(&agent::in_or_out(profile, job, &MEETING, &agent::toggle_here(profile)));
    text.push_str("# One launcher on each node; it starts the workers there.\n");
    let background = if job.margin.is_some() { " &" } else { "" };
    text.push_str(&format!("{}{background}\n", steps(profile, job)));
    if job.margin.is_some() {
        text.push_str(END);
        text.push_str(agent::ENDS);
    }
    if !job.stage.is_empty() && job.margin.is_none() {
        text.push_str(&format!("\n{} rm -rf \"$disk\"\n", everywhere(job)));
    }
    text
}

const MEETING: RendezvousWords<'_> =
    RendezvousWords { nodes: String::new(), head: "head", port: "port", id: "SLURM_JOB_ID", hosts: None };

/// The step that runs the launchers: one command for each group of nodes.
fn steps(profile: &Profile, job: &BatchJob) -> String {
    let meeting = RendezvousWords { nodes: agent::nnodes(job, "$SLURM_JOB_NUM_NODES"), ..MEETING };
    // At the time limit one node ends before others have written their part of the snapshot. Others go on without a lost one.
    let on_bad_exit = if job.margin.is_some() || job.min_nodes.is_some() { 0 } else { 1 };
    let no_kill = if job.min_nodes.is_some() { "--no-kill " } else { "" };
    let part = |(index, group): (usize, &Group)| {
        let het = if job.groups.len() > 1 { format!("--het-group={index} ") } else { String::new() };
        let cpus = profile.cpus_per_node.map(|cpus| format!(" --cpus-per-task={cpus}")).unwrap_or_default();
        let launch = launch(profile, job, *group, &group.workers.to_string(), &meeting);
        format!("{no_kill}{het}--ntasks-per-node=1{cpus} --kill-on-bad-exit={on_bad_exit}{BREAK}{launch}")
    };
    let parts: Vec<String> = job.groups.iter().enumerate().map(part).collect();
    format!("srun {}", parts.join(&format!("{BREAK}: ")))
}

/// The srun that runs a short command once on each node.
fn everywhere(job: &BatchJob) -> String {
    let groups: Vec<String> = (0..job.groups.len()).map(|index| index.to_string()).collect();
    let het = if job.groups.len() > 1 { format!(" --het-group={}", groups.join(",")) } else { String::new() };
    format!("srun{het} --ntasks-per-node=1")
}

fn stage(profile: &Profile, job: &BatchJob) -> String {
    if job.stage.is_empty() {
        return String::new();
    }
    let mut text = String::from("# Copies the data to each node's own disk.\n") + &agent::disk(profile, "SLURM_JOB_ID");
    text.push_str(&format!("{} mkdir -p \"$disk\"\n", everywhere(job)));
    for path in &job.stage {
        text.push_str(&format!("{} {}\n", everywhere(job), agent::copy(path, "\"$disk\"")));
    }
    text.push('\n');
    text
}

/// The trap for the signal that comes before the time limit.
fn on_signal(profile: &Profile, job: &BatchJob) -> String {
    // The last task of an array has the array's own id, which would name all tasks.
    let id = if job.array.is_some() { "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" } else { "$SLURM_JOB_ID" };
    let signal = profile.end_signal();
    format!(
        "# Before the time limit, asks the launchers to end; with SIGUSR2, their workers first save a snapshot if they can.\nasked=\n\
         trap 'asked=1; scancel --signal={signal} \"{id}\"' USR1\n\n"
    )
}

/// Waits for the step, in the background so that the trap runs at once, and queues the job again if it was asked to end.
const END: &str = "\
step=$!
code=0
wait \"$step\" || code=$?
# The signal ends a wait, not the step.
while kill -0 \"$step\" 2>/dev/null; do
  code=0
  wait \"$step\" || code=$?
done
if [ -n \"$asked\" ] && [ \"$code\" -ne 0 ]; then
  scontrol requeue \"$SLURM_JOB_ID\"
fi
";

// ---- PBS

pub(super) fn pbs(site: &str, profile: &Profile, job: &BatchJob) -> String {
    let place = SchedulerParts {
        // A job that was submitted again keeps its first id: by that it knows its snapshots.
        id: if job.margin.is_some() {
            "command cd \"$PBS_O_WORKDIR\"\nid=${first_job:-$PBS_JOBID}\n".into()
        } else {
            "command cd \"$PBS_O_WORKDIR\"\nid=$PBS_JOBID\n".into()
        },
        number: "(${PBS_JOBID%%[!0-9]*} + ${PBS_ARRAY_INDEX:-0})",
        task: "PBS_ARRAY_INDEX",
        hosts: "\"$PBS_NODEFILE\"".into(),
        prepare: if job.margin.is_some() { "cp \"$0\" \"$run/job.sh\"\n" } else { "" },
        again: format!(
            "qsub -v \"first_job=$id{}\" \"$run/job.sh\"",
            profile.toggle().map_or_else(String::new, |toggle| format!(",{toggle}={}", agent::chosen(toggle)))
        ),
    };
    format!("#!/bin/bash\n{}{}{}", pbs_directives(profile, job), origin(site), agent::body(profile, job, &place))
}

fn pbs_directives(profile: &Profile, job: &BatchJob) -> String {
    let mut all = vec![format!("-N {}", job.name)];
    let mut add = |value: Option<String>| all.extend(value);
    add(profile.queue.as_ref().map(|queue| format!("-q {queue}")));
    add(profile.account.as_ref().map(|account| format!("-A {account}")));
    let chunks: Vec<String> = job.groups.iter().map(|group| chunk(profile, *group)).collect();
    add(Some(format!("-l select={}", chunks.join("+"))));
    add(Some("-l place=scatter".into()));
    add(job.time.map(|time| format!("-l walltime={}", clock(time))));
    add(Some("-j oe".into()));
    add(Some(format!("-o {}", quoted(&format!("{}/", profile.shared().display())))));
    add(job.array.map(|tasks| format!("-J 0-{}", tasks - 1)));
    let again = job.array.is_some() || job.margin.is_some() || job.min_nodes.is_some();
    add(Some(if again { "-r y" } else { "-r n" }.into()));
    add(job.min_nodes.map(|_| "-W tolerate_node_failures=all".into()));
    all.iter().chain(&profile.directives).map(|line| format!("#PBS {line}\n")).collect()
}

/// A part of `select`: equal nodes. `mpiprocs=1`, so that the host file and pbsdsh count each node once.
fn chunk(profile: &Profile, group: Group) -> String {
    let mut text = group.nodes.to_string();
    text.extend(profile.cpus_per_node.map(|cpus| format!(":ncpus={cpus}")));
    text.extend((group.gpus > 0).then(|| format!(":ngpus={}", group.gpus)));
    text.push_str(":mpiprocs=1");
    text.extend(profile.select.as_ref().map(|select| format!(":{select}")));
    text
}

// ---- ssh and mpirun

/// The script; it runs on a machine that reaches the others.
pub(super) fn hosts(site: &str, profile: &Profile, job: &BatchJob) -> String {
    let hostfile = profile.hostfile.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let place = SchedulerParts {
        id: "id=$(date +%Y%m%d-%H%M%S)-$$\n".into(),
        number: "$$",
        task: "",
        hosts: quoted(&hostfile),
        prepare: "",
        again: "echo 'the time is up: start this script again, and the training goes on from its last snapshot' >&2\n  code=124"
            .into(),
    };
    format!("#!/bin/bash\n{}{}", origin(site), agent::body(profile, job, &place))
}
