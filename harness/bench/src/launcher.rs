//! Launchers with torchrun's flags, and how many ranks and agents they start.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Command;

use clap::ValueEnum;
use lockstep_grading::Python;
use lockstep_process::{dying_with_parent, this_program};

use crate::connection::RANK;
use crate::exit::Refused;
use crate::report::count;

/// Without it, torchrun of PyTorch 2.11 gives up when a node joins a running job: the job's agents keep the address
/// of the ranks' store from their first round (dynamic_rendezvous.py, `next_rendezvous`), and the new agent waits a
/// minute for it among the round's keys.
pub(crate) const NOT_SHARED: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

/// A launcher with torchrun's flags.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    /// Its name in results.
    pub(crate) name: &'static str,
    /// How many agents may be missing.
    spare: usize,
    /// The nodes of a Slurm job on which `srun` starts an agent each.
    hosts: Vec<String>,
    /// What `--rdzv-conf` gives, if anything.
    conf: Option<String>,
    words: Vec<OsString>,
    /// Makes the command that starts a program.
    start: fn(&OsStr) -> Command,
}

/// How many ranks and agents a job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    /// Each has as many ranks as the others.
    pub(crate) agents: usize,
}

impl Launcher {
    /// `lockstep run`.
    pub(crate) fn own() -> Self {
        Launcher::new("lockstep", vec![this_program(), "run".into()], dying_with_parent)
    }

    pub(crate) fn torchrun(python: &Python) -> Self {
        let words = vec![python.program.clone().into(), "-m".into(), "torch.distributed.run".into()];
        Launcher::new("torchrun", words, dying_with_parent)
    }

    fn new(name: &'static str, words: Vec<OsString>, start: fn(&OsStr) -> Command) -> Self {
        Launcher { name, spare: 0, hosts: vec![], conf: None, words, start }
    }

    /// Lets jobs of several agents go on with one less. `conf` is the rendezvous's.
    pub(crate) fn elastic(self, conf: Option<String>) -> Self {
        Launcher { spare: 1, conf, ..self }
    }

    /// `lockstep run` on each of these nodes of a Slurm job, by `srun` from the job's script. They find each other on their own.
    pub(crate) fn by_srun(hosts: &[String]) -> io::Result<Self> {
        let words = [srun(hosts), vec![std::env::current_exe()?.into(), "run".into()]].concat();
        Ok(Launcher { hosts: hosts.into(), ..Launcher::new("lockstep", words, dying_with_parent) })
    }

    /// Returns true if all its agents are on this machine.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The processes that start a job's agents: the agents themselves, or one `srun`.
    pub(crate) fn processes(&self, shape: Shape) -> usize {
        if self.is_of_this_machine() { shape.agents } else { 1 }
    }

    /// The command of one agent of a job.
    pub(crate) fn command(&self, shape: Shape, restarts: usize, port: u16) -> Command {
        let mut command = (self.start)(&self.words[0]);
        command.args(&self.words[1..]).arg(format!("--nproc-per-node={}", shape.ranks / shape.agents));
        command.arg(format!("--max-restarts={restarts}"));
        if !self.is_of_this_machine() {
            command.arg("--no-python");
            return command;
        }
        command.arg("--local-addr=127.0.0.1");
        if shape.agents == 1 {
            command.arg("--standalone");
        } else {
            let endpoint = format!("--rdzv-endpoint=127.0.0.1:{port}");
            let id = format!("--rdzv-id=bench-{port}");
            let most = shape.agents;
            let nodes = if self.spare == 0 { most.to_string() } else { format!("{}:{most}", most - self.spare) };
            command.args([format!("--nnodes={nodes}"), "--rdzv-backend=c10d".into(), endpoint, id]);
            command.args(self.conf.iter().map(|conf| format!("--rdzv-conf={conf}")));
            if self.spare > 0 {
                command.env(NOT_SHARED, "1");
            }
        }
        command.arg("--no-python");
        command
    }
}

impl Shape {
    pub(crate) fn of(ranks: usize, agents: usize) -> Result<Self, Refused> {
        let uneven =
            || Refused(format!("{agents} agents cannot share {ranks} ranks evenly: choose multiples for --ranks"));
        ranks.is_multiple_of(agents).then_some(Shape { ranks, agents }).ok_or_else(uneven)
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", count(self.ranks, "rank"), count(self.agents, "agent"))
    }
}

/// Starts a task on each of these nodes, next to the tasks of other steps: most of them wait for their turn.
pub(crate) fn srun(hosts: &[String]) -> Vec<OsString> {
    let (count, list) = (hosts.len(), hosts.join(","));
    let words = [
        "srun".to_owned(),
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        "--ntasks-per-node=1".to_owned(),
        format!("--nodelist={list}"),
        "--overlap".to_owned(),
        // Otherwise all ranks of a node may share one core.
        "--cpu-bind=none".to_owned(),
    ];
    words.into_iter().map(OsString::from).collect()
}

/// The program of ranks that do nothing, [`crate::connection`].
pub(crate) fn idle_rank() -> Vec<OsString> {
    vec![this_program(), RANK.into()]
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A launcher that is a line of shell.
    pub(crate) fn fake(script: &str) -> Launcher {
        let words = ["sh", "-c", script, "fake"].map(OsString::from).into();
        Launcher::new("fake", words, |program| Command::new(program))
    }
}

/// What takes turns with Lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Python with PyTorch: torchrun, libtorch's store, the same collectives, DDP, torch.save, torchvision's loader
    Python,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::testing::fake;

    #[test]
    fn agents_get_the_flags_of_their_place() {
        let words_of = |launcher: Launcher, shape| {
            let command = launcher.command(shape, 3, 4711);
            let words: Vec<_> = command.get_args().skip(3).map(|word| word.to_str().unwrap().to_owned()).collect();
            words.join(" ")
        };
        let words = |shape| words_of(fake(""), shape);
        let alone = "--nproc-per-node=2 --max-restarts=3 --local-addr=127.0.0.1 --standalone --no-python";
        assert_eq!(words(Shape { ranks: 2, agents: 1 }), alone);
        assert_eq!(
            words(Shape { ranks: 8, agents: 4 }),
            "--nproc-per-node=2 --max-restarts=3 --local-addr=127.0.0.1 --nnodes=4 --rdzv-backend=c10d \
             --rdzv-endpoint=127.0.0.1:4711 --rdzv-id=bench-4711 --no-python"
        );
        let launcher = Launcher::by_srun(&["n1".into(), "n2".into()]).unwrap();
        let command = launcher.command(Shape { ranks: 8, agents: 2 }, 0, 0);
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let (srun, own) = words.split_at(words.iter().position(|word| *word == "run").unwrap());
        assert_eq!(own, ["run", "--nproc-per-node=4", "--max-restarts=0", "--no-python"]);
        assert!(srun.contains(&"--nodes=2") && srun.contains(&"--nodelist=n1,n2"), "{srun:?}");
        let elastic = words_of(fake("").elastic(Some("last_call_timeout=1".into())), Shape { ranks: 8, agents: 4 });
        assert!(elastic.contains("--nnodes=3:4 ") && elastic.contains("--rdzv-conf=last_call_timeout=1 "), "{elastic}");
    }
}
