//! PBS Pro and OpenPBS: directives with `select=`, and pbsdsh, which starts a program on each node.
//!
//! Recorded facts: PBS_NODEFILE names a host for each of `mpiprocs`; a program under pbsdsh does not get the variables that the
//! batch script exported; the script starts in the home folder, under a login shell; qdel sends SIGTERM. PBS has no signal before the
//! time limit, and qrerun is for operators: so each node keeps the time itself, and the script submits itself again.

use super::agent::{self, Place};
use super::job::{Group, Job};
use super::pieces::{clock, origin};
use super::profile::Profile;
use lockstep_launch::command::quoted;

/// The batch script.
pub(super) fn script(site: &str, profile: &Profile, job: &Job) -> String {
    let place = Place {
        // A job that was submitted again keeps its first id: by that it knows its snapshots.
        id: if job.margin.is_some() {
            "cd \"$PBS_O_WORKDIR\"\nid=${first_job:-$PBS_JOBID}\n".into()
        } else {
            "cd \"$PBS_O_WORKDIR\"\nid=$PBS_JOBID\n".into()
        },
        number: "(${PBS_JOBID%%[!0-9]*} + ${PBS_ARRAY_INDEX:-0})",
        task: "PBS_ARRAY_INDEX",
        hosts: "\"$PBS_NODEFILE\"".into(),
        prepare: if job.margin.is_some() { "cp \"$0\" \"$run/job.sh\"\n" } else { "" },
        again: "qsub -v \"first_job=$id\" \"$run/job.sh\"",
    };
    format!("#!/bin/bash\n{}{}{}", directives(profile, job), origin(site), agent::body(profile, job, &place))
}

fn directives(profile: &Profile, job: &Job) -> String {
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
    add(Some(if job.array.is_some() || job.margin.is_some() { "-r y" } else { "-r n" }.into()));
    all.iter().chain(&profile.directives).map(|line| format!("#PBS {line}\n")).collect()
}

/// One of `select`'s parts: equal nodes. `mpiprocs=1`, so that the host file and pbsdsh count each node once.
fn chunk(profile: &Profile, group: Group) -> String {
    let mut text = group.nodes.to_string();
    text.extend(profile.cpus_per_node.map(|cpus| format!(":ncpus={cpus}")));
    text.extend((group.gpus > 0).then(|| format!(":ngpus={}", group.gpus)));
    text.push_str(":mpiprocs=1");
    text.extend(profile.select.as_ref().map(|select| format!(":{select}")));
    text
}
