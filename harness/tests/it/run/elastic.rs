//! Nodes that come, leave, die and fall silent while the workers of others run.

use rustix::process::Signal;

use crate::run::nodes::{Job, SOON};
use crate::run::site::Site;
use crate::running::Running;

/// Prints its world size and runs until the test ends it.
const STAYS: &str = "echo world $WORLD_SIZE count $TORCHELASTIC_RESTART_COUNT; while [ ! -e go ]; do sleep 0.02; done";

/// The first agent runs alone until the second joins it.
fn one_joins(job: &Job<'_>, words: &[&str]) -> (Running, Running) {
    let first = Running::start(job.c10d(0, words));
    first.await_out("world 1", 1);
    let second = Running::start(job.c10d(1, words));
    first.await_out("world 2", 1);
    second.await_out("world 2", 1);
    (first, second)
}

#[test]
fn a_late_node_joins_and_it_does_not_count_as_a_restart() {
    let site = Site::new();
    let job = Job::new(&site);
    let words = ["--nnodes=1:3", "--max-restarts=0", "--nproc-per-node=2", "--prefix=never", "sh", "-c", STAYS];
    let first = Running::start(job.c10d(0, &words));
    first.await_out("world 2 count 0", 2);
    let second = Running::start(job.c10d(1, &words));
    second.await_out("world 4 count 0", 2);
    first.await_out("world 4 count 0", 2);
    let third = Running::start(job.c10d(2, &words));
    for node in [&first, &second, &third] {
        node.await_out("world 6 count 0", 2);
    }
    site.file("go", "");
    first.ended().code(0).says(&["joined", "not counted as a restart"]);
    second.ended().code(0);
    third.ended().code(0);
    site.assert_no_process();
}

#[test]
fn a_node_beyond_the_maximum_waits_and_takes_the_place_of_one_that_dies() {
    let site = Site::new();
    let job = Job::new(&site);
    let words = ["--nnodes=2", "sh", "-c", STAYS];
    let [first, second] = [0, 1].map(|n| Running::start(job.c10d(n, &words)));
    second.await_out("world 2", 1);
    first.await_out("world 2", 1);
    let spare = Running::start(job.c10d(2, &words));
    spare.await_err("this node is spare 1");
    second.signal(Signal::KILL);
    spare.await_out("world 2", 1);
    first.await_out("world 2", 2);
    site.file("go", "");
    first.ended().code(0).says(&["was lost: its connection to the store was closed", "not counted as a restart"]);
    spare.ended().code(0);
    second.ended().killed_by(Signal::KILL);
    site.await_no_process();
}

#[test]
fn an_agent_that_dies_while_the_others_gather_again_is_not_waited_for() {
    let site = Site::new();
    let job = Job { conf: "last_call_timeout=0.1,join_timeout=60", ..Job::new(&site) };
    // The second agent's workers ignore SIGTERM, so that it is still stopping them when it dies.
    let words = ["--nnodes=1:2", "--max-restarts=1", "--stop-timeout=1000", "sh", "-c", IGNORES_TERM];
    let (first, second) = one_joins(&job, &words);
    site.file("fail", "");
    second.await_err("stopping all workers");
    second.signal(Signal::KILL);
    first.await_out("world 1 count 1", 1);
    site.file("go", "");
    first.ended().code(0);
    second.ended().killed_by(Signal::KILL);
    site.await_no_process();
}

const IGNORES_TERM: &str = "trap '[ $RANK = 1 ] || exit 1' TERM; echo world $WORLD_SIZE count $TORCHELASTIC_RESTART_COUNT; \
    while [ ! -e go ]; do sleep 0.02; \
    if [ $RANK = 0 ] && [ $WORLD_SIZE = 2 ] && [ -e fail ]; then exit 3; fi; done";

#[test]
fn a_silent_agent_is_lost_after_its_lease_and_comes_back_when_it_continues() {
    let site = Site::new();
    let job = Job { conf: SOON, ..Job::new(&site) };
    let words = ["--nnodes=1:2", "sh", "-c", STAYS];
    let (first, second) = one_joins(&job, &words);
    second.signal(Signal::STOP);
    first.await_out("world 1 count 0", 2);
    second.signal(Signal::CONT);
    first.await_out("world 2 count 0", 2);
    second.await_out("world 2 count 0", 2);
    // Ended by a signal, since either may be lost again where its heartbeats come late.
    first.signal(Signal::TERM);
    first.ended().code(1).says(&["no heartbeat for"]);
    second.ended().code(1).says(&["the others removed this node"]);
    site.assert_no_process();
}

#[test]
fn an_agent_that_is_stopped_leaves_and_the_others_continue() {
    let site = Site::new();
    let job = Job::new(&site);
    let words = ["--nnodes=1:2", "sh", "-c", STAYS];
    let (first, second) = one_joins(&job, &words);
    second.signal(Signal::TERM);
    second.ended().code(1).says(&["received SIGTERM"]);
    first.await_out("world 1 count 0", 2);
    site.file("go", "");
    first.ended().code(0).says(&["left: it was asked to end"]);
    site.assert_no_process();
}

#[test]
fn the_end_of_the_stores_host_ends_all_nodes_and_they_report_it() {
    for (signal, fixed, text) in [
        (Signal::KILL, false, "does not answer; it was hosted by node"),
        (Signal::TERM, true, "this agent hosts the store"),
    ] {
        let site = Site::new();
        let job = Job::new(&site);
        let words = ["--nnodes=2", "--max-restarts=3", "sh", "-c", STAYS];
        let [first, second] =
            [0, 1].map(|n| Running::start(if fixed { job.fixed(n, &words) } else { job.c10d(n, &words) }));
        first.await_out("world 2", 1);
        second.await_out("world 2", 1);
        first.signal(signal);
        second.ended().code(1).says(&[text, "verdict: unknown who is at fault; the launcher on "]);
        drop(first);
        site.await_no_process();
    }
}
