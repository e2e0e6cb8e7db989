//! Which job a snapshot belongs to, so that a job that was interrupted goes on by itself and no other does.
//!
//! How often workers were restarted does not tell: each launcher counts its own workers' failures, a launcher in place of a lost one
//! counts from 0, and a new run in an old folder counts, too. So each snapshot names its job, and a job is known by
//!
//! 1. the run id that its launchers were given (`--rdzv-id`), which a requeued job keeps, or which `--standalone` draws;
//! 2. without one, any of its launchers: as long as one of them lives, the job does.

use std::ffi::OsString;
use std::fs;

use lockstep_process::AGENT;
use lockstep_process::proc::Stat;
use rustix::process::getppid;

use crate::LaunchEnv;

/// What torchrun calls a job that was given no id.
const UNNAMED: &str = "none";

/// The name of the job that this process is a worker of; `None` where no launcher started it.
pub(crate) fn job_of(env: &LaunchEnv) -> Option<String> {
    name(env.run_id.as_deref(), std::env::var_os(AGENT), parent)
}

fn name(run_id: Option<&str>, agent: Option<OsString>, parent: impl Fn() -> Option<String>) -> Option<String> {
    let run_id = run_id?;
    if run_id != UNNAMED {
        return Some(format!("run {run_id}"));
    }
    let agent = agent.and_then(|ids| ids.to_str()?.rsplit(':').next().map(str::to_owned)).filter(|id| !id.is_empty());
    agent.map(|id| format!("launcher {id}")).or_else(parent)
}

/// The process that started this one, among all of all machines until they start again: torchrun starts its workers itself.
fn parent() -> Option<String> {
    let pid = getppid()?.as_raw_pid();
    let start = Stat::of(pid)?.start;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("launcher {pid} started at {start} since boot {}", boot.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> Option<String> {
        None
    }

    #[test]
    fn knows_a_job_by_its_run_id_whoever_launches_it() {
        let named = |agent: &str| name(Some("job7"), Some(agent.into()), nobody);
        assert_eq!(named("a"), Some("run job7".into()));
        assert_eq!(named("b"), named("a"));
        assert_ne!(name(Some("job8"), Some("a".into()), nobody), named("a"));
    }

    #[test]
    fn knows_a_job_without_an_id_by_its_innermost_launcher() {
        let unnamed = |agent: &str| name(Some("none"), Some(agent.into()), || Some("parent".into()));
        assert_eq!(unnamed("outer:inner"), Some("launcher inner".into()));
        assert_eq!(unnamed(""), Some("parent".into()));
        assert_eq!(name(Some("none"), None, || Some("parent".into())), Some("parent".into()));
    }

    #[test]
    fn takes_a_process_without_a_launcher_for_a_job_of_its_own() {
        assert_eq!(name(None, Some("outer".into()), || Some("a shell".into())), None);
    }

    #[test]
    fn names_the_parent_by_what_no_other_process_has() {
        let named = parent().unwrap();
        assert_eq!(Some(&named), parent().as_ref());
        assert!(named.contains(&getppid().unwrap().as_raw_pid().to_string()), "{named}");
    }
}
