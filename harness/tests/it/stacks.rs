//! `lockstep stacks`: the ranks of a running job, with any of the tools.

use std::process::Command;

use rustix::process::Signal;

use crate::run::site::Site;
use crate::running::{Ended, ended};

fn stacks(site: &Site, words: &[&str]) -> Ended {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
    command.arg("stacks").args(words);
    site.prepare(&mut command);
    ended(&mut command)
}

#[test]
fn prints_every_rank_of_a_job_and_leaves_it_running() {
    let site = Site::new();
    let script = site.file(
        "waits.py",
        "import time\ndef waits_for_ever():\n    print('up', flush=True)\n    time.sleep(1000)\nwaits_for_ever()\n",
    );
    let running = site.start(&["--standalone", "--nproc-per-node=2", &script]);
    running.await_out("up", 2);
    let shown = stacks(&site, &[&running.pid().to_string()]).code(0);
    for rank in [0, 1] {
        assert!(shown.out.contains(&format!("rank {rank} (pid ")), "{shown}");
    }
    if shown.out.contains("is installed") || shown.out.contains(" failed: ") {
        println!("not verified here: the stacks themselves ({})", shown.out.lines().nth(1).unwrap_or_default().trim());
    } else {
        assert!(
            ["by py-spy:", "by gdb:", "by eu-stack:"].iter().any(|tool| shown.out.matches(tool).count() == 2),
            "{shown}"
        );
    }
    running.signal(Signal::TERM);
    running.ended().code(1).says(&["received SIGTERM"]);
    site.assert_no_process();
}

#[test]
fn refuses_a_process_that_is_no_launcher() {
    let site = Site::new();
    stacks(&site, &["1"]).code(2).says(&["process 1 is no `lockstep run` with running ranks"]);
}
