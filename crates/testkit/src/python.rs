//! Python's PyTorch in tests, and jobs whose ranks run a lab's Python script, to compare with the jobs of the lab's program. The ranks
//! are forked from one Python process that has imported PyTorch.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use lockstep_process::KillOnDrop;
use lockstep_process::watchdog::{drain, receive};
use serde_json::{Value, json};

use crate::Job;

/// Fails without PyTorch and the packages in the arguments. It only reads versions, because importing them takes seconds.
const CHECK: &str = r#"
import sys
from importlib.metadata import version
[version(package) for package in sys.argv[1:]]
assert [int(part) for part in version("torch").split(".")[:2]] >= [2, 11]
"#;

/// The Python of `LOCKSTEP_PYTHON`, or `python3`, if it has PyTorch 2.11 and these packages. Otherwise prints that `what` is not
/// verified.
pub fn python_with(packages: &[&str], what: &str) -> Option<String> {
    let python = std::env::var("LOCKSTEP_PYTHON").unwrap_or_else(|_| "python3".into());
    let check = Command::new(&python).args(["-c", CHECK]).args(packages).output();
    if check.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let needed: String = packages.iter().map(|package| format!(" and {package}")).collect();
    println!("not verified here: {what} (set LOCKSTEP_PYTHON to a Python with PyTorch 2.11{needed})");
    None
}

/// Ends each Python process without destroying its groups or finalizing the interpreter. PyTorch 2.11 sometimes hangs or aborts
/// there: a Gloo thread that releases a tensor waits for the interpreter, which waits for the thread. Python imports a module of
/// this name when it starts.
const SITECUSTOMIZE: &str = r#"
import atexit, os, sys
import torch.distributed

def leave(code=0):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))

torch.distributed.destroy_process_group = lambda *_: None
sys.exit = leave
atexit.register(lambda: leave(int(hasattr(sys, "last_value"))))
"#;

impl Job {
    /// A job whose program is a Python with PyTorch 2.11, torchvision and safetensors, on the CPU: its first argument is a script.
    /// Its processes are forked from one that imports PyTorch once. Without such a Python, it prints that `what` is not verified.
    pub fn in_python(what: &str) -> Option<Self> {
        let python = python_with(&["torchvision", "safetensors"], what)?;
        let mut job = Job::new(python.as_ref());
        fs::write(job.path("sitecustomize.py"), SITECUSTOMIZE).unwrap();
        fs::write(job.path("python_ranks.py"), PROGRAM).unwrap();
        let mut ranks = job.command(&python);
        ranks.arg(job.path("python_ranks.py")).env("PYTHONPATH", job.path("")).env("CUDA_VISIBLE_DEVICES", "");
        // With it, a line and its newline are two writes, so the lines of ranks that share a pipe get mixed.
        ranks.env_remove("PYTHONUNBUFFERED");
        job.python = Some(PythonRanks::start(ranks));
        Some(job)
    }

    /// A command that starts the job's program on two ranks under Python's torchrun, with these further flags. Without such a Python
    /// it prints that `what` is not verified.
    pub fn under_torchrun(&self, what: &str, flags: &[&str]) -> Option<Command> {
        let mut torchrun = self.command(python_with(&[], what)?);
        torchrun.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]).args(flags);
        torchrun.arg("--no-python").arg(self.program());
        Some(torchrun)
    }
}

/// Compares the output of two programs: the lines of each text that contain one of `words`, in any order. Numbers may differ
/// by `tolerance`.
pub fn assert_prints_alike(own: &str, python: &str, words: &[&str], tolerance: f64) {
    let chosen = |printed: &str| {
        let with_words = printed.lines().filter(|line| words.iter().any(|word| line.contains(word)));
        let mut lines: Vec<String> = with_words.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let (own, python) = (chosen(own), chosen(python));
    assert!(!own.is_empty(), "no line has one of the words {words:?}");
    let alike = own.len() == python.len() && own.iter().zip(&python).all(|(own, line)| are_alike(own, line, tolerance));
    assert!(alike, "in Rust:\n{}\nin Python:\n{}", own.join("\n"), python.join("\n"));
}

fn are_alike(own: &str, python: &str, tolerance: f64) -> bool {
    let number = |word: &str| word.trim_end_matches([',', ')']).parse::<f64>().ok();
    let equal = |(own, python): (&str, &str)| match (number(own), number(python)) {
        (Some(own), Some(python)) => (own - python).abs() <= tolerance,
        _ => own == python,
    };
    own.split(' ').count() == python.split(' ').count() && own.split(' ').zip(python.split(' ')).all(equal)
}

/// The program of the Python process that is forked.
const PROGRAM: &str = include_str!("python_ranks.py");

/// A Python process that is forked for each rank. It and the ranks are killed if the test fails.
pub(crate) struct PythonRanks(Mutex<Server>);

struct Server {
    requests: ChildStdin,
    replies: Receiver<Vec<i32>>,
    _child: KillOnDrop,
}

/// The output of a process, which opens the pipe by its path.
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

    /// Waits until no process has the pipe open.
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

    #[test]
    fn numbers_may_differ_by_the_tolerance_and_words_may_not() {
        assert!(are_alike("Epoch: 0, Loss: 2.1583", "Epoch: 0, Loss: 2.1584", 1e-3));
        assert!(!are_alike("Epoch: 0, Loss: 2.1583", "Epoch: 0, Loss: 2.1683", 1e-3));
        assert!(!are_alike("Epoch: 0, Loss: 2.1583", "Epoch: 0, Lost: 2.1583", 1e-3));
        assert!(!are_alike("Epoch: 0, Loss: 2.1583", "Epoch: 0,", 1e-3));
        assert!(!are_alike("Loss: 2.1583", "Loss: nan", 1e-3));
    }

    #[test]
    fn lines_are_compared_in_any_order() {
        assert_prints_alike("b 1\na 2\nelse", "a 2\nb 1", &["a", "b"], 0.0);
    }

    #[test]
    #[should_panic(expected = "in Rust:\na 2\nb 1\nin Python:\na 2")]
    fn a_missing_line_is_a_failure() {
        assert_prints_alike("b 1\na 2", "a 2", &["a", "b"], 0.0);
    }

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

    /// One test, because starting Python takes seconds.
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
        lockstep_process::watchdog::until(|| job.path("sleeps").exists()).unwrap();
        drop(server);
        captured.into_iter().for_each(|output| drop(output.end()));
    }
}
