//! Identifies the job that owns a snapshot, so that an interrupted job resumes from its own and no other does.
//!
//! The number of restarts does not identify a job: each launcher counts its own workers' failures, a launcher that replaces a
//! lost one counts from 0, and so does a new run in an old folder. So each snapshot names its job, by
//!
//! 1. the run id given to its launchers (`--rdzv-id`), which a requeued job keeps, or which `--standalone` draws;
//! 2. otherwise any of its launchers: the job lives as long as one of them does.

use std::ffi::OsString;
use std::fs;

use lockstep_process::AGENT;
use lockstep_process::proc::Stat;
use rustix::process::getppid;

use crate::LaunchEnv;

/// torchrun's name for a job without an id.
const UNNAMED: &str = "none";

/// The name of this process's job; `None` if no launcher started it.
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

/// The identity of the parent process, unique over all machines until they reboot: torchrun starts its workers directly.
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
    fn identifies_a_job_by_its_run_id_with_any_launcher() {
        let named = |agent: &str| name(Some("job7"), Some(agent.into()), nobody);
        assert_eq!(named("a"), Some("run job7".into()));
        assert_eq!(named("b"), named("a"));
        assert_ne!(name(Some("job8"), Some("a".into()), nobody), named("a"));
    }

    #[test]
    fn identifies_a_job_without_an_id_by_its_innermost_launcher() {
        let unnamed = |agent: &str| name(Some("none"), Some(agent.into()), || Some("parent".into()));
        assert_eq!(unnamed("outer:inner"), Some("launcher inner".into()));
        assert_eq!(unnamed(""), Some("parent".into()));
        assert_eq!(name(Some("none"), None, || Some("parent".into())), Some("parent".into()));
    }

    #[test]
    fn treats_a_process_without_a_launcher_as_a_separate_job() {
        assert_eq!(name(None, Some("outer".into()), || Some("a shell".into())), None);
    }

    #[test]
    fn names_the_parent_uniquely() {
        let named = parent().unwrap();
        assert_eq!(Some(&named), parent().as_ref());
        assert!(named.contains(&getppid().unwrap().as_raw_pid().to_string()), "{named}");
    }
}
