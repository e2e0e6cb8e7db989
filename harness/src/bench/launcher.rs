//! Launchers with torchrun's flags, and how many ranks and agents they start.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use lockstep_process::dying_with_parent;

use super::peer::Python;
use super::rank::RANK;
use crate::report::count;

/// A launcher with torchrun's flags.
#[derive(Clone, Debug)]
pub(super) struct Launcher {
    /// Its name in results.
    pub(super) name: &'static str,
    words: Vec<OsString>,
    /// Makes the command that starts a program.
    start: fn(&OsStr) -> Command,
}

/// How many ranks and agents a job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) ranks: usize,
    /// Each has as many ranks as the others.
    pub(super) agents: usize,
}

impl Launcher {
    /// `lockstep run`.
    pub(super) fn own() -> Self {
        Launcher { name: "lockstep", words: vec![this_program(), "run".into()], start: dying_with_parent }
    }

    /// torchrun.
    pub(super) fn torchrun(python: &Python) -> Self {
        let words = vec![python.program.clone().into(), "-m".into(), "torch.distributed.run".into()];
        Launcher { name: "torchrun", words, start: dying_with_parent }
    }

    /// The command of one agent of a job.
    pub(super) fn command(&self, shape: Shape, restarts: usize, port: u16) -> Command {
        let mut command = (self.start)(&self.words[0]);
        command.args(&self.words[1..]).arg(format!("--nproc-per-node={}", shape.ranks / shape.agents));
        command.args([format!("--max-restarts={restarts}"), "--local-addr=127.0.0.1".into()]);
        if shape.agents == 1 {
            command.arg("--standalone");
        } else {
            let endpoint = format!("--rdzv-endpoint=127.0.0.1:{port}");
            let id = format!("--rdzv-id=bench-{port}");
            command.args([format!("--nnodes={}", shape.agents), "--rdzv-backend=c10d".into(), endpoint, id]);
        }
        command.arg("--no-python");
        command
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", count(self.ranks, "rank"), count(self.agents, "agent"))
    }
}

/// The program of ranks that do nothing, [`super::rank`].
pub(super) fn idle_rank() -> Vec<OsString> {
    vec![this_program(), RANK.into()]
}

/// The kernel's link to this executable: a rebuild in the middle of a bench neither ends it nor changes what it measures.
pub(super) fn this_program() -> OsString {
    format!("/proc/{}/exe", std::process::id()).into()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A launcher that is a line of shell.
    pub(in crate::bench) fn fake(script: &str) -> Launcher {
        let words = ["sh", "-c", script, "fake"].map(OsString::from).into();
        Launcher { name: "fake", words, start: |program| Command::new(program) }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::fake;
    use super::*;

    #[test]
    fn agents_get_the_flags_of_their_place() {
        let words = |shape| {
            let command = fake("").command(shape, 3, 4711);
            let words: Vec<_> = command.get_args().skip(3).map(|word| word.to_str().unwrap().to_owned()).collect();
            words.join(" ")
        };
        let alone = "--nproc-per-node=2 --max-restarts=3 --local-addr=127.0.0.1 --standalone --no-python";
        assert_eq!(words(Shape { ranks: 2, agents: 1 }), alone);
        assert_eq!(
            words(Shape { ranks: 8, agents: 4 }),
            "--nproc-per-node=2 --max-restarts=3 --local-addr=127.0.0.1 --nnodes=4 --rdzv-backend=c10d \
             --rdzv-endpoint=127.0.0.1:4711 --rdzv-id=bench-4711 --no-python"
        );
    }
}
