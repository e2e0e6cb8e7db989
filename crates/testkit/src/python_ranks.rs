//! Processes of a Python script, forked from one Python that has imported PyTorch.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use lockstep_process::KillOnDrop;
use lockstep_watchdog::{drain, receive};
use serde_json::{Value, json};

/// The program of the Python that is forked.
pub(crate) const PROGRAM: &str = include_str!("python_ranks.py");

/// A Python that is forked for each rank. It and the ranks are killed if the test fails.
pub(crate) struct PythonRanks(Mutex<Server>);

struct Server {
    requests: ChildStdin,
    replies: Receiver<Vec<i32>>,
    _child: KillOnDrop,
}

/// What a process writes. It opens the pipe by its path.
struct Captured {
    writer: PipeWriter,
    bytes: Receiver<Vec<u8>>,
}

impl PythonRanks {
    /// Starts [`PROGRAM`] with this command.
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = KillOnDrop(command.spawn().unwrap());
        let (requests, stdout) = (child.0.stdin.take().unwrap(), child.0.stdout.take().unwrap());
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                // The receiver is gone if the test has failed.
                let _ = sender.send(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        PythonRanks(Mutex::new(Server { requests, replies, _child: child }))
    }

    /// Runs the scripts of all commands until they end; once one is killed, the others are killed, too.
    pub(crate) fn run_all(&self, commands: &[Command]) -> Vec<Output> {
        let captured: Vec<[Captured; 2]> = commands.iter().map(|_| [Captured::new(), Captured::new()]).collect();
        let processes: Vec<Value> = commands.iter().zip(&captured).map(|(command, to)| request(command, to)).collect();
        let statuses = self.0.lock().unwrap().run(&processes);
        let outputs = captured.into_iter().zip(statuses).map(|([stdout, stderr], status)| Output {
            status: ExitStatus::from_raw(status),
            stdout: stdout.end(),
            stderr: stderr.end(),
        });
        outputs.collect()
    }
}

impl Server {
    fn run(&mut self, processes: &[Value]) -> Vec<i32> {
        writeln!(self.requests, "{}", json!(processes)).unwrap();
        let statuses = receive(&self.replies).expect("a rank did not end");
        statuses.expect("the Python that is forked for the ranks has ended; see its message above")
    }
}

impl Captured {
    fn new() -> Self {
        let (reader, writer) = pipe().unwrap();
        Captured { bytes: drain(reader), writer }
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.writer.as_raw_fd())
    }

    /// Waits until no process has it.
    fn end(self) -> Vec<u8> {
        drop(self.writer);
        receive(&self.bytes).expect("a process did not end").unwrap_or_default()
    }
}

fn request(command: &Command, [stdout, stderr]: &[Captured; 2]) -> Value {
    let text = |text: &OsStr| text.to_str().unwrap().to_owned();
    let args: Vec<String> = command.get_args().map(text).collect();
    let env: BTreeMap<String, Option<String>> =
        command.get_envs().map(|(name, value)| (text(name), value.map(text))).collect();
    json!({ "args": args, "env": env, "stdout": stdout.path(), "stderr": stderr.path() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    const SCRIPT: &str = r#"
import os, signal, sys, time
how, rank = sys.argv[1], os.environ["RANK"]
print(how, rank, "GLOO_SOCKET_IFNAME" in os.environ, repr(sys.stdin.read()), flush=True)
match how, rank:
    case "fails", "1":
        raise ValueError("not a number")
    case "exits", _:
        sys.exit(3 + int(rank))
    case "is killed", "1":
        os.kill(os.getpid(), signal.SIGKILL)
    case "is killed" | "sleeps", _:
        open(how, "w").close()
        time.sleep(3600)
"#;

    /// One test, because to start Python takes seconds.
    #[test]
    fn each_rank_has_its_environment_output_and_end_and_none_outlives_the_python() {
        let Some(mut job) = Job::in_python("ranks that are forked from a Python") else { return };
        std::fs::write(job.path("script.py"), SCRIPT).unwrap();
        let command = |job: &Job, how: &str, rank: &str| {
            let mut command = job.command(job.program());
            command.arg(job.path("script.py")).arg(how).env("RANK", rank).env_remove("GLOO_SOCKET_IFNAME");
            command
        };
        for (how, codes, signal) in [
            ("ends", [Some(0); 2], None),
            ("fails", [Some(0), Some(1)], None),
            ("exits", [Some(3), Some(4)], None),
            ("is killed", [None; 2], Some(9)),
        ] {
            let outputs = job.run_all(["0", "1"].map(|rank| command(&job, how, rank)).into());
            let codes_and_signals = outputs.iter().map(|output| (output.status.code(), output.status.signal()));
            assert!(codes_and_signals.eq(codes.map(|code| (code, signal))), "{how}: {outputs:?}");
            let printed = String::from_utf8_lossy(&outputs[1].stdout);
            assert_eq!(printed, format!("{how} 1 False ''\n"));
            let trace = String::from_utf8_lossy(&outputs[1].stderr);
            assert_eq!(trace.contains("ValueError: not a number"), how == "fails", "{trace}");
        }

        let captured = [Captured::new(), Captured::new()];
        let mut server = job.python.take().unwrap().0.into_inner().unwrap();
        writeln!(server.requests, "{}", json!([request(&command(&job, "sleeps", "0"), &captured)])).unwrap();
        lockstep_watchdog::until(|| job.path("sleeps").exists()).unwrap();
        drop(server);
        captured.into_iter().for_each(|output| drop(output.end()));
    }
}
