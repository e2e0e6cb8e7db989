//! Machines without a scheduler: a file names them, and ssh or mpirun starts one launcher on each.

use super::agent::{self, Place};
use super::job::Job;
use super::pieces::origin;
use super::profile::Profile;

use lockstep_launch::command::quoted;

/// The script; it runs on a machine that reaches the others.
pub(super) fn script(site: &str, profile: &Profile, job: &Job) -> String {
    let hostfile = profile.hostfile.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let place = Place {
        id: "id=$(date +%Y%m%d-%H%M%S)-$$\n".into(),
        number: "$$",
        task: "",
        hosts: quoted(&hostfile),
        prepare: "",
        again: "echo 'the time is up: start this script again, and the training goes on from its last snapshot' >&2\n  code=124",
    };
    format!("#!/bin/bash\n{}{}", origin(site), agent::body(profile, job, &place))
}
