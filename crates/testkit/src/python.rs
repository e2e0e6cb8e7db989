//! Python's PyTorch in tests, and jobs whose ranks run a lab's Python script, to compare with those of the lab's program.

use std::fs;
use std::process::Command;

use crate::Job;
use crate::python_ranks::{self, PythonRanks};

/// Fails without PyTorch and the packages in the arguments. It reads versions only: to import them takes seconds.
const CHECK: &str = r#"
import sys
from importlib.metadata import version
[version(package) for package in sys.argv[1:]]
assert [int(part) for part in version("torch").split(".")[:2]] >= [2, 11]
"#;

/// The Python of `LOCKSTEP_PYTHON`, otherwise `python3`, if it has PyTorch 2.11 and these packages. Without them it prints that `what`
/// is not verified.
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

/// Ends each process of Python without the end of its groups and the interpreter's finalization, in which PyTorch 2.11 now and then
/// hangs or aborts: a thread of Gloo that lets go of a tensor waits for the interpreter, which waits for the thread. Python imports
/// a module of this name when it starts.
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
    /// Its processes are forked from one that imports PyTorch once. Without such a Python it prints that `what` is not verified.
    pub fn in_python(what: &str) -> Option<Self> {
        let python = python_with(&["torchvision", "safetensors"], what)?;
        let mut job = Job::new(python.as_ref());
        fs::write(job.path("sitecustomize.py"), SITECUSTOMIZE).unwrap();
        fs::write(job.path("python_ranks.py"), python_ranks::PROGRAM).unwrap();
        let mut ranks = job.command(&python);
        ranks.arg(job.path("python_ranks.py")).env("PYTHONPATH", job.path("")).env("CUDA_VISIBLE_DEVICES", "");
        // With it, a line and its end are two writes, and lines of ranks with one pipe mix.
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

/// Compares what two programs printed: of each text the lines with one of `words` in them, in any order. Numbers may differ by
/// `tolerance`.
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
}
