//! The agent under test: a small program that does what its standard input says, one command a line.
//!
//! - `start INDEX SCRIPT…`: a worker that runs `sh -c SCRIPT`; `exec INDEX PROGRAM ARGS…`: one that runs a program
//! - `next`: waits for a death and tells it; `end`, `kill`: all workers; `sweep`; `folder PATH`; `close`
//! - `block`: neither listens nor waits until the next line comes
//!
//! Every answer is one line on standard output; what the workers print goes to standard error.

use std::ffi::OsString;
use std::io::{BufRead, stderr, stdin};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use lockstep_process::{Died, Signal, Sink, Spec, Stdin, Workers};

/// The name of the subcommand.
pub(crate) const AGENT: &str = "agent";

const SWEEP: Duration = Duration::from_secs(600);

pub(crate) fn main(_args: &[OsString]) -> ExitCode {
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
        println!("{}", obey(workers.as_mut().unwrap(), verb, rest));
    }
    ExitCode::SUCCESS
}

fn obey(workers: &mut Workers, verb: &str, rest: &str) -> String {
    match verb {
        "start" => {
            let (index, script) = rest.split_once(' ').unwrap();
            format!("pid {}", workers.start(index.parse().unwrap(), spec(&["sh", "-c", script])).unwrap())
        }
        "exec" => {
            let words: Vec<&str> = rest.split(' ').collect();
            format!("pid {}", workers.start(words[0].parse().unwrap(), spec(&words[1..])).unwrap())
        }
        "next" => told(&workers.next(None).unwrap().unwrap()),
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

fn told(died: &Died) -> String {
    format!("died {} {} {}", died.index, died.exit.torch_code(), died.exit)
}
