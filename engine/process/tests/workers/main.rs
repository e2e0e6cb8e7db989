//! Real worker processes: how they start and end, and that no process outlives its agent.
//!
//! Each test runs an agent in a process of its own, since an agent adopts every orphan among its descendants. The agent is this executable,
//! called with the subcommand [`AGENT`]. It executes commands from its standard input, one a line:
//! - `start INDEX SCRIPT…`: starts a worker that runs `sh -c SCRIPT`; `exec INDEX PROGRAM ARGS…`: starts one that runs
//!   a program
//! - `next`: waits for a death and reports it; `end`, `kill`: signals all workers; `sweep`; `folder PATH`; `close`
//! - `block`: does nothing until the next line comes
//! - `commands COUNT`: starts COUNT commands that end at once, in another thread, while this one waits for deaths
//!
//! Every answer is one line on standard output; the workers' output goes to standard error.

#![allow(clippy::unwrap_used)] // a test may

mod agent;
mod orphans;
mod starts;

use std::ffi::OsString;
use std::io::{BufRead, stderr, stdin};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use lockstep_process::{Died, Process, Signal, Sink, Spec, Stdin, Workers};

pub(crate) const AGENT: &str = "agent";

const SWEEP: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    if let Some(code) = lockstep_process::internal_main() {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|name| name == AGENT) {
        return agent_main();
    }
    let tests = starts::TESTS.iter().chain(orphans::TESTS);
    let trial = |&(name, test): &(&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).collect()).exit_code()
}

fn agent_main() -> ExitCode {
    let mut workers = Some(Workers::new().unwrap());
    println!("ready");
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        if verb == "close" {
            workers.take().unwrap().close();
            println!("closed");
            break;
        }
        println!("{}", execute(workers.as_mut().unwrap(), verb, rest));
    }
    ExitCode::SUCCESS
}

fn execute(workers: &mut Workers, verb: &str, rest: &str) -> String {
    match verb {
        "start" => {
            let (index, script) = rest.split_once(' ').unwrap();
            format!("pid {}", workers.start(index.parse().unwrap(), spec(&["sh", "-c", script])).unwrap())
        }
        "exec" => {
            let words: Vec<&str> = rest.split(' ').collect();
            format!("pid {}", workers.start(words[0].parse().unwrap(), spec(&words[1..])).unwrap())
        }
        "next" => describe(&workers.next(None).unwrap().unwrap()),
        "end" => {
            workers.end(Signal::TERM);
            "asked".into()
        }
        "kill" => {
            workers.kill();
            "killed".into()
        }
        "sweep" => {
            let swept = workers.sweep(SWEEP);
            format!("swept {} left {}", swept.killed.len(), swept.left.len())
        }
        "folder" => {
            workers.register_cleanup(Path::new(rest));
            "registered".into()
        }
        "block" => "blocked".into(),
        "commands" => {
            let count: usize = rest.parse().unwrap();
            let start = |_: &usize| Process::start(&mut Command::new("true")).is_ok();
            let starter = thread::spawn(move || (0..count).filter(start).count());
            while !starter.is_finished() {
                assert!(workers.next(Some(Instant::now() + Duration::from_millis(1))).unwrap().is_none());
            }
            format!("started {}", starter.join().unwrap())
        }
        other => panic!("no command {other}"),
    }
}

fn spec(words: &[&str]) -> Spec {
    Spec {
        program: words[0].into(),
        args: words[1..].iter().map(OsString::from).collect(),
        env: vec![],
        folder: None,
        stdin: Stdin::Null,
        stdout: Sink::Fd(stderr().as_fd().try_clone_to_owned().unwrap()),
        stderr: Sink::Inherit,
    }
}

fn describe(died: &Died) -> String {
    format!("died {} {} {}", died.index, died.exit.torch_code(), died.exit)
}
