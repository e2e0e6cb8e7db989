//! The command lines of a run: an agent for each node, with the launcher's flags, and the program that it starts. And the folder of the
//! run: the paths of its parts, and the files that must not be left in the end.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lockstep_process::{Log, this_program, words_dying_with_parent};

use crate::scenario::{Disks, RunSpec};

/// The lab that is run unless a scenario names another program.
pub(crate) const LAB: &str = "lab-06-snapshot-resume";

/// What starts the workers.
#[derive(Clone, Debug)]
pub(crate) enum Launcher {
    /// `lockstep run`, of this executable.
    Own,
    /// Another program with torchrun's flags.
    Other(PathBuf),
    /// No launcher: the program starts its ranks itself.
    Direct,
}

/// Where the agents of several nodes meet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rendezvous {
    /// The address of the store's host, with its port.
    pub(crate) endpoint: String,
    /// The job's id.
    pub(crate) id: String,
    /// The address of each node.
    pub(crate) addresses: Vec<String>,
}

/// The words in front of a command that run it in a network namespace or on a file system.
pub(crate) type Prefix = Vec<OsString>;

/// Everything that makes up an agent's command line.
pub(crate) struct AgentCommand<'a> {
    pub(crate) launcher: &'a Launcher,
    pub(crate) spec: &'a RunSpec,
    /// Where the nodes meet; `None` for a job of one node.
    pub(crate) rendezvous: Option<&'a Rendezvous>,
    pub(crate) node: usize,
    /// How many nodes the job may have.
    pub(crate) nodes: usize,
    /// The number of the machine, which identifies its disk.
    pub(crate) machine: usize,
    pub(crate) folder: &'a RunFolder,
    /// The program of the workers.
    pub(crate) program: &'a Path,
}

impl AgentCommand<'_> {
    /// The words of the command, the program first. The program dies with this process.
    pub(crate) fn words(&self, prefix: &Prefix) -> Vec<OsString> {
        let (program, subcommand) = match self.launcher {
            Launcher::Own => (this(prefix), Some("run".into())),
            Launcher::Other(path) => (path.into(), None),
            Launcher::Direct => (self.program.into(), None),
        };
        let under = !matches!(self.launcher, Launcher::Direct);
        let workers = under.then(|| self.with_loaders()).into_iter().flatten();
        let flags = self.flags().into_iter().map(OsString::from);
        let arguments = self.arguments().into_iter().map(OsString::from);
        let words = prefix.iter().cloned().chain(dying_with_this(prefix, &program));
        words.chain(subcommand).chain(flags).chain(workers).chain(arguments).collect()
    }

    /// The workers' program, in place of the shell that has started processes next to it.
    fn with_loaders(&self) -> Vec<OsString> {
        const START: &str = "for _ in $(seq \"$1\"); do sleep 1000 & done; shift; exec \"$@\"";
        match self.spec.loader_processes {
            0 => vec![self.program.into()],
            count => {
                vec!["sh".into(), "-c".into(), START.into(), "sh".into(), count.to_string().into(), self.program.into()]
            }
        }
    }

    fn flags(&self) -> Vec<String> {
        if matches!(self.launcher, Launcher::Direct) {
            return Vec::new();
        }
        let spec = self.spec;
        let conf = spec.rdzv_conf.as_ref().map_or(String::new(), |conf| format!(",{conf}"));
        let mut flags = match self.rendezvous {
            None => vec!["--standalone".to_owned()],
            Some(rendezvous) => vec![
                format!("--nnodes={}{}", spec.min_nodes.map_or(String::new(), |min| format!("{min}:")), self.nodes),
                "--rdzv-backend=c10d".into(),
                format!("--rdzv-endpoint={}", rendezvous.endpoint),
                format!("--rdzv-id={}", rendezvous.id),
                format!("--rdzv-conf=is_host={}{conf}", self.node == 0),
                format!("--local-addr={}", rendezvous.addresses[self.node]),
            ],
        };
        flags.push(format!("--nproc-per-node={}", spec.workers_of(self.node)));
        flags.push(format!("--max-restarts={}", spec.max_restarts));
        flags.extend(spec.stop_timeout_seconds.map(|seconds| format!("--shutdown-timeout={seconds}")));
        flags.extend(spec.snapshot_on.as_ref().map(|signals| format!("--snapshot-on={signals}")));
        flags.push(format!("--log-dir={}", self.folder.logs().display()));
        flags.push("--no-python".into());
        flags
    }

    /// The arguments of the program: the ones that labs with snapshots share, or the scenario's with placeholders
    /// replaced by the run's folders.
    fn arguments(&self) -> Vec<String> {
        let spec = self.spec;
        let own = spec.args.iter().map(|arg| self.filled(arg));
        if spec.program.is_some() {
            return own.collect();
        }
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        let pairs = [
            ("--snapshots", path(self.snapshots())),
            ("--weights", path(self.folder.weights())),
            ("--save-every-steps", spec.save_every_steps.to_string()),
            ("--keep", spec.keep.to_string()),
            ("--epochs", spec.epochs.to_string()),
            ("--batch-size", spec.batch_size.to_string()),
            ("--samples", spec.samples.to_string()),
            ("--seed", spec.seed.to_string()),
        ];
        let virtual_ranks = spec.virtual_ranks.map(|count| ("--virtual-ranks", count.to_string()));
        let pairs = pairs.into_iter().chain(virtual_ranks);
        pairs.flat_map(|(name, value)| [name.to_owned(), value]).chain(own).collect()
    }

    fn snapshots(&self) -> PathBuf {
        match self.spec.disks {
            Disks::Shared => self.folder.snapshots(),
            Disks::OfNodes => self.folder.snapshots_of(self.machine),
        }
    }

    fn filled(&self, arg: &str) -> String {
        let places = [
            ("{snapshots}", self.snapshots()),
            ("{weights}", self.folder.weights()),
            ("{results}", self.folder.results()),
            ("{folder}", self.folder.path().into()),
        ];
        places.iter().fold(arg.to_owned(), |text, (name, path)| text.replace(name, &path.to_string_lossy()))
    }
}

/// The command that starts `program` after `prefix`, so that it dies with this process's main thread.
pub(crate) fn dying_with_this(prefix: &Prefix, program: &OsStr) -> Vec<OsString> {
    std::iter::once(this(prefix)).chain(words_dying_with_parent(program)).collect()
}

/// The path of this executable for a command: after a prefix, in other namespaces, only the file itself may be reachable.
fn this(prefix: &Prefix) -> OsString {
    if prefix.is_empty() {
        this_program()
    } else {
        std::env::current_exe().map_or_else(|_| this_program(), OsString::from)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RunFolder(PathBuf);

impl RunFolder {
    /// Makes the folder, with the folders that must exist before the start.
    pub(crate) fn make(path: PathBuf) -> io::Result<Self> {
        let folder = RunFolder(path);
        for part in [folder.events(), folder.weights(), folder.snapshots(), folder.tmp()] {
            fs::create_dir_all(part)?;
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Events of ranks and agents.
    pub(crate) fn events(&self) -> PathBuf {
        self.0.join("events")
    }

    /// The ranks' final weights.
    pub(crate) fn weights(&self) -> PathBuf {
        self.0.join("weights")
    }

    /// Models in that folder other than the ranks' final weights, such as the best one.
    pub(crate) fn models(&self) -> Vec<PathBuf> {
        let is_model =
            |name: &String| name.ends_with(".safetensors") && !name.starts_with("rank-") && !is_temporary(name);
        names(&self.weights()).into_iter().filter(is_model).map(|name| self.weights().join(name)).collect()
    }

    /// Results of the ranks of labs without weights.
    pub(crate) fn results(&self) -> PathBuf {
        self.0.join("results")
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.0.join("snapshots")
    }

    /// Snapshots of a machine with a disk of its own.
    pub(crate) fn snapshots_of(&self, machine: usize) -> PathBuf {
        self.snapshots().join(format!("machine-{machine}"))
    }

    /// The run's TMPDIR, the only place for its temporary files.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }

    /// The launcher's logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// The faults that the ranks inject themselves.
    pub(crate) fn faults(&self) -> PathBuf {
        self.0.join("faults.json")
    }

    /// What the agents of a node print, one after the other.
    pub(crate) fn output(&self, node: usize) -> Log {
        Log::new(self.0.join(format!("node-{node}.txt")))
    }

    /// Temporary files that are left, on the disks of these machines if each has its own. A half-written snapshot of a
    /// killed job is removed by the job's next start, so it counts only if the job has `finished`.
    pub(crate) fn leftovers(&self, finished: bool, machines: &[usize]) -> Vec<String> {
        let disks = machines.iter().map(|machine| self.snapshots_of(*machine));
        let folders = disks.chain([self.snapshots(), self.weights()]);
        let halves = folders.flat_map(|folder| {
            let left = names(&folder).into_iter().filter(|name| finished && is_temporary(name));
            left.map(move |name| folder.join(name))
        });
        let tmp = names(&self.tmp()).into_iter().map(|name| self.tmp().join(name));
        let shown = |path: PathBuf| path.strip_prefix(&self.0).unwrap_or(&path).display().to_string();
        tmp.chain(halves).map(shown).collect()
    }
}

/// Returns true for the names that unfinished files have in this project: hidden, or with such an ending.
fn is_temporary(name: &str) -> bool {
    name.starts_with('.') || [".tmp", ".partial", ".part"].iter().any(|end| name.contains(end))
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(spec: &RunSpec, rendezvous: Option<&Rendezvous>, launcher: &Launcher) -> String {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(dir.path().join("r")).unwrap();
        let node = spec.nodes - 1;
        let agent = AgentCommand {
            launcher,
            spec,
            rendezvous,
            node,
            nodes: spec.nodes,
            machine: node,
            folder: &folder,
            program: Path::new("/p/lab"),
        };
        let words = agent.words(&Prefix::new());
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let this = format!("/proc/{}/exe", std::process::id());
        assert!(words[0] == this && words[1] == "dies-with-parent", "{words:?}");
        // The process crate tests that form of the command.
        let begin = words.iter().position(|word| *word == "/p/lab" || word.starts_with("/x/")).unwrap_or(0);
        let begin = words.iter().skip(1).position(|word| *word == this).map_or(begin, |at| at + 1);
        let words: Vec<_> = words[begin..].iter().map(|word| word.replace(&this, "lockstep")).collect();
        words.join(" ").replace(&*folder.path().to_string_lossy(), "R")
    }

    #[test]
    fn writes_the_command_line_of_one_node() {
        let line = words(&RunSpec::default(), None, &Launcher::Own);
        let expected = "lockstep run --standalone --nproc-per-node=2 --max-restarts=3 \
                        --log-dir=R/logs --no-python /p/lab --snapshots R/snapshots --weights R/weights \
                        --save-every-steps 4 --keep 2 --epochs 3 --batch-size 16 --samples 256 --seed 0";
        assert_eq!(line, expected);
    }

    #[test]
    fn writes_the_rendezvous_of_several_nodes() {
        let conf = Some("keep_alive_interval=1".into());
        let spec = RunSpec { ranks: 4, nodes: 2, rdzv_conf: conf, ..RunSpec::default() };
        let addresses = vec!["127.0.0.1".into(), "127.0.0.2".into()];
        let rendezvous = Rendezvous { endpoint: "127.0.0.1:9".into(), id: "job".into(), addresses };
        let line = words(&spec, Some(&rendezvous), &Launcher::Other("/x/torchrun".into()));
        let expected = "/x/torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:9 --rdzv-id=job \
                        --rdzv-conf=is_host=false,keep_alive_interval=1 --local-addr=127.0.0.2 --nproc-per-node=2";
        assert!(line.contains(expected), "{line}");
    }

    #[test]
    fn gives_an_elastic_job_its_least_number_of_nodes_and_its_virtual_ranks() {
        let spec = RunSpec { nodes: 3, ranks: 3, min_nodes: Some(1), virtual_ranks: Some(6), ..RunSpec::default() };
        let rendezvous = Rendezvous { endpoint: "e:9".into(), id: "job".into(), addresses: vec!["a".into(); 3] };
        let line = words(&spec, Some(&rendezvous), &Launcher::Own);
        assert!(line.contains(" --nnodes=1:3 ") && line.ends_with(" --seed 0 --virtual-ranks 6"), "{line}");
    }

    #[test]
    fn gives_unequal_nodes_their_own_numbers_of_workers() {
        let spec = RunSpec { ranks: 4, nodes: 2, workers: vec![1, 3], ..RunSpec::default() };
        assert!(words(&spec, None, &Launcher::Own).contains(" --nproc-per-node=3 "));
    }

    #[test]
    fn gives_each_node_its_own_disk_if_disks_are_of_nodes() {
        let spec = RunSpec { nodes: 2, disks: Disks::OfNodes, stop_timeout_seconds: Some(0.5), ..RunSpec::default() };
        let line = words(&spec, None, &Launcher::Own);
        assert!(line.contains("--snapshots R/snapshots/machine-1 --weights R/weights"), "{line}");
        assert!(line.contains("--max-restarts=3 --shutdown-timeout=0.5 "), "{line}");
    }

    #[test]
    fn gives_another_program_only_its_own_arguments() {
        let args = vec!["--to={weights}/x".into(), "{folder}".into()];
        let spec = RunSpec { program: Some("train.py".into()), args, ..RunSpec::default() };
        assert!(words(&spec, None, &Launcher::Own).ends_with("--no-python /p/lab --to=R/weights/x R"));
        assert_eq!(words(&spec, None, &Launcher::Direct), "/p/lab --to=R/weights/x R");
    }

    #[test]
    fn names_the_file_itself_after_a_prefix() {
        assert!(this(&Prefix::new()).to_string_lossy().starts_with("/proc/"));
        assert_eq!(this(&vec!["unshare".into()]), std::env::current_exe().unwrap());
    }

    #[test]
    fn finds_models_other_than_the_final_weights() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(dir.path().join("run")).unwrap();
        for name in ["rank-0.safetensors", "best.safetensors", ".best.tmp.safetensors", "notes.txt"] {
            fs::write(folder.weights().join(name), "").unwrap();
        }
        assert_eq!(folder.models(), [folder.weights().join("best.safetensors")]);
        assert_eq!(folder.leftovers(true, &[]), ["weights/.best.tmp.safetensors"]);
    }

    #[test]
    fn lists_the_temporary_files_that_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(dir.path().join("run")).unwrap();
        assert_eq!(folder.leftovers(true, &[0]), Vec::<String>::new());
        fs::write(folder.tmp().join("x"), "").unwrap();
        fs::write(folder.snapshots().join("snapshot-8.safetensors"), "").unwrap();
        fs::write(folder.snapshots().join(".snapshot-12.tmp"), "").unwrap();
        fs::create_dir(folder.snapshots_of(3)).unwrap();
        fs::write(folder.snapshots_of(3).join(".x.partial"), "").unwrap();
        assert_eq!(folder.leftovers(true, &[]), ["tmp/x", "snapshots/.snapshot-12.tmp"]);
        let own = "snapshots/machine-3/.x.partial";
        assert_eq!(folder.leftovers(true, &[3]), ["tmp/x", own, "snapshots/.snapshot-12.tmp"]);
        assert_eq!(folder.leftovers(false, &[3]), ["tmp/x"]);
    }
}
