//! Verdicts on launchers that fail before they start a worker.

use std::net::TcpListener;

use lockstep_contract::events::{AgentEvent, read_agents};

use crate::run::nodes::Job;
use crate::run::site::Site;
use crate::running::{Ended, Running};

/// The report's first line is a verdict on the launcher that says all of this, and the event file has it.
#[track_caller]
fn assert_launcher(site: &Site, ended: &Ended, says: &[&str]) {
    let first = ended.failure().lines().next().unwrap();
    assert!(first.starts_with("verdict: the launcher on "), "{ended}");
    for text in says {
        assert!(first.contains(text), "`{text}` is not in the verdict:\n{ended}");
    }
    let agents = read_agents(&site.path("events")).unwrap();
    let records = agents.values().flat_map(|log| &log.records);
    let verdicts = records.filter(|record| matches!(&record.event, AgentEvent::Verdict(it) if it.to_string() == first));
    assert_eq!(verdicts.count(), 1, "{agents:?}");
}

fn run(site: &Site, mut command: std::process::Command) -> Ended {
    command.env(lockstep_contract::events::FOLDER, site.path("events"));
    Running::start(command).ended().code(1)
}

#[test]
fn nodes_that_did_not_meet_are_the_launchers_failure() {
    let site = Site::new();
    let job = Job { conf: "join_timeout=3", ..Job::new(&site) };
    let ended = run(&site, job.c10d(0, &["--nnodes=2", "true"]));
    assert_launcher(&site, &ended, &["is the loopback address", "(evidence: 1 of 2 nodes came to the rendezvous at "]);
}

#[test]
fn a_port_in_use_is_the_launchers_failure_and_its_owner_is_named() {
    let site = Site::new();
    let taken = TcpListener::bind((&*site.address(0), 0)).unwrap();
    let endpoint = taken.local_addr().unwrap().to_string();
    let ended = run(&site, Job { endpoint, ..Job::new(&site) }.fixed(0, &["true"]));
    assert_launcher(&site, &ended, &[&format!("pid {}", std::process::id()), "advice: take another port"]);
}

#[test]
fn a_folder_for_logs_that_cannot_be_made_is_the_launchers_failure() {
    let site = Site::new();
    let file = site.file("file", "");
    let ended = run(&site, site.lockstep(&["--standalone", &format!("--log-dir={file}"), "true"]));
    assert_launcher(&site, &ended, &[&file, "evidence: its own message"]);
}
