//! Signals that ask the workers to save a snapshot.

use rustix::process::Signal;

use crate::run::nodes::Job;
use crate::run::site::Site;
use crate::running::Running;

/// A worker that handles SIGUSR1 and SIGUSR2, as our runtime does. The signals must spare its child.
const SAVES: &str = r#"
sleep 1000 & child=$!
trap 'kill -0 $child && echo saved by $RANK' USR1
trap 'kill -0 $child && echo saved by $RANK and ends; exit 75' USR2
echo up
while :; do wait $child; done
"#;

#[test]
fn sigusr1_reaches_workers_that_handle_it_and_spares_their_children_and_other_workers() {
    let site = Site::new();
    let worker = format!("if [ $RANK = 1 ]; then echo up; exec sleep 1000; fi; {SAVES}");
    let running = site.start(&["--standalone", "--nproc-per-node=2", "--prefix=never", "sh", "-c", &worker]);
    running.await_out("up", 2);
    running.signal(Signal::USR1);
    running.await_out("saved by 0", 1);
    running.signal(Signal::USR1);
    running.await_out("saved by 0", 2);
    running.signal(Signal::TERM);
    let words = "received SIGUSR1: passed it on to local rank 0; local rank 1 would be ended by it, having no handler";
    running.ended().code(1).says(&[words]);
    site.assert_no_process();
}

#[test]
fn workers_that_save_end_the_job_with_code_75_and_no_restart() {
    for (signal, flags) in [(Signal::USR2, vec![]), (Signal::TERM, vec!["--snapshot-on=SIGTERM"])] {
        let site = Site::new();
        let words = [&["--standalone", "--nproc-per-node=2", "--max-restarts=3"], &flags[..], &["sh", "-c", SAVES]];
        let running = site.start(&words.concat());
        running.await_out("up", 2);
        running.signal(signal);
        let texts = ["asking the workers to save a snapshot and to end", "start the job again to go on (exit code 75)"];
        let ended = running.ended().code(75).says(&texts);
        assert_eq!(ended.out.matches("and ends").count(), 2, "{}", ended.out);
        site.assert_no_process();
    }
}

#[test]
fn workers_that_cannot_save_are_stopped_by_sigterm() {
    for (signal, flags) in [(Signal::USR2, vec![]), (Signal::TERM, vec!["--snapshot-on=SIGTERM"])] {
        let site = Site::new();
        let cannot = "trap 'echo stopped by SIGTERM; exit 1' TERM; echo up; while :; do sleep 0.1; done";
        let running = site.start(&[&["--standalone"], &flags[..], &["sh", "-c", cannot]].concat());
        running.await_out("up", 1);
        running.signal(signal);
        let ended = running.ended().code(1).says(&["stopping the workers, not all of which can save a snapshot"]);
        assert!(ended.out.contains("stopped by SIGTERM"), "{}", ended.out);
        site.assert_no_process();
    }
}

#[test]
fn a_second_signal_does_not_wait_for_a_snapshot() {
    let site = Site::new();
    let never = "trap : USR2; echo up; while :; do sleep 0.1; done";
    let running = site.start(&["--standalone", "--snapshot-on=SIGTERM", "sh", "-c", never]);
    running.await_out("up", 1);
    running.signal(Signal::TERM);
    running.await_err("asking the workers");
    // What comes within two seconds is the first signal, sent again by a scheduler.
    site.until("the second signal is handled", || {
        running.signal(Signal::TERM);
        running.err.now().contains("received SIGTERM: stopping the workers")
    });
    running.ended().code(1).says(&["ended by SIGTERM"]);
    site.assert_no_process();
}

#[test]
fn the_end_of_the_jobs_time_is_seen_coming() {
    let site = Site::new();
    let words = ["--standalone", "--nproc-per-node=2", "--time-limit=100000", "--save-before-limit=99999.9"];
    let mut command = site.lockstep(&[&words[..], &["sh", "-c", SAVES]].concat());
    command.env("LOCKSTEP_EVENTS", site.path("events"));
    let ended = Running::start(command).ended().code(75);
    ended.says(&[" s (--time-limit): asking the workers to save a snapshot and to end"]);
    assert!(events(&site).contains(r#""event":"time_limit""#), "{}", events(&site));
    site.assert_no_process();
}

/// The lines of all agents.
fn events(site: &Site) -> String {
    let files = std::fs::read_dir(site.path("events")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn a_job_that_the_scheduler_starts_again_says_why() {
    let site = Site::new();
    let [port, address] = site.master();
    let start = |restarts: &str, words: &[&str]| {
        let mut command = site.lockstep(&[&[&*port, &*address], words].concat());
        command.env("LOCKSTEP_EVENTS", site.path("events")).env("SLURM_JOB_ID", "17");
        command.env("SLURM_RESTART_COUNT", restarts);
        Running::start(command)
    };
    let first = start("0", &["sh", "-c", SAVES]);
    first.await_out("up", 1);
    first.signal(Signal::USR2);
    first.ended().code(75).never_says(&["start 1"]);
    start("1", &["true"])
        .ended()
        .code(0)
        .says(&["start 2 of Slurm job 17: the former start saved a snapshot and ended on SIGUSR2"]);
    assert!(events(&site).contains(r#""event":"requeued","count":1,"#), "{}", events(&site));
}

#[test]
fn a_node_whose_workers_save_because_of_a_signal_to_another_ends_with_code_75_too() {
    let site = Site::new();
    let job = Job::new(&site);
    let worker = "if [ $GROUP_RANK = 0 ]; then trap 'touch asked; exit 75' USR2; fi; echo up; until [ -e asked ]; do sleep 0.1; done; exit 75";
    let words = ["--nnodes=2", "--max-restarts=3", "sh", "-c", worker];
    let nodes = [0, 1].map(|n| Running::start(job.fixed(n, &words)));
    nodes.iter().for_each(|node| node.await_out("up", 1));
    nodes[0].signal(Signal::USR2);
    let [_, second] = nodes.map(|node| node.ended().code(75).says(&["the workers saved a snapshot and ended"]));
    assert!(!second.err.contains("received") && !second.err.contains("restart"), "{}", second.err);
    site.assert_no_process();
}
