//! A job in a private folder.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lockstep_contract::events::{self, Event};
use lockstep_contract::fault::{Act, FAULTS, Plan, Point, RankFault, SavePhase};
use lockstep_contract::{clear_launcher, recording};
use lockstep_process::watchdog::Running;
use tempfile::TempDir;

use crate::python::PythonRanks;
use crate::text;

/// A private folder for a job.
///
/// If the job's arguments include `--weights weights` and `--snapshots snapshots`, [`weights`](Self::weights) and
/// [`snapshots`](Self::snapshots) find them.
pub struct Job {
    program: PathBuf,
    folder: TempDir,
    attempts: u32,
    recorded: bool,
    /// The ranks of a Python job.
    pub(crate) python: Option<PythonRanks>,
}

/// The results of one attempt, by rank.
pub struct Attempt(pub Vec<Output>);

impl Job {
    /// A job whose ranks run this lab's program.
    pub fn new(program: &Path) -> Self {
        Job {
            program: program.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            attempts: 0,
            recorded: false,
            python: None,
        }
    }

    /// A job whose ranks inject these faults into themselves.
    pub fn with(program: &Path, faults: &[RankFault]) -> Self {
        let job = Self::new(program);
        fs::write(job.path("faults.json"), serde_json::to_vec(&Plan { faults: faults.to_vec() }).unwrap()).unwrap();
        job
    }

    /// The same job with its ranks' calls recorded in the folder `recording`.
    pub fn recorded(self) -> Self {
        Job { recorded: true, ..self }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The path of `name` in the job's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command that runs `program` in this folder, without a launcher's variables, with its output piped.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        clear_launcher(&mut command);
        if self.path("faults.json").exists() {
            command.env(FAULTS, self.path("faults.json"));
        }
        command.env("OMP_NUM_THREADS", "1").env("GLOO_SOCKET_IFNAME", "lo").env(events::FOLDER, self.path("events"));
        if self.recorded {
            command.env(recording::FOLDER, self.path("recording"));
        }
        command.current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program without a launcher until it ends; if it has several ranks, it starts them itself.
    pub fn alone(&self, args: &[&str]) -> Output {
        let mut command = self.command(&self.program);
        command.args(args);
        self.run_all(vec![command]).remove(0)
    }

    /// Runs commands of the job's program until they end; once one is killed, the others are killed, too.
    pub fn run_all(&self, commands: Vec<Command>) -> Vec<Output> {
        match &self.python {
            Some(python) => python.run_all(&commands),
            None => run_all(commands),
        }
    }

    /// Starts all ranks and waits until all have ended. Once one is killed, the others are killed, too: like a launcher,
    /// this does not wait until they notice.
    pub fn attempt(&mut self, world: usize, args: &[&str]) -> Attempt {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let store = tcpstore::Server::start(listener, tcpstore::ServerOptions::default()).unwrap();
        let port = store.local_addr().port();
        let command = |rank: usize| {
            let numbers = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", world)];
            let mut command = self.command(&self.program);
            command.args(args).envs(numbers.map(|(name, number)| (name, number.to_string())));
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.env("TORCHELASTIC_USE_AGENT_STORE", "True");
            command.env("TORCHELASTIC_RESTART_COUNT", self.attempts.to_string());
            // Each job has its own id, as with --standalone.
            command.env("TORCHELASTIC_RUN_ID", self.folder.path());
            command
        };
        let commands = (0..world).map(command).collect();
        self.attempts += 1;
        Attempt(self.run_all(commands))
    }

    /// An [`attempt`](Self::attempt) in which every rank succeeds.
    pub fn succeeds(&mut self, world: usize, args: &[&str]) -> Attempt {
        let ended = self.attempt(world, args);
        assert!(ended.succeeded(), "{}", ended.stderr());
        ended
    }

    /// Starts the job repeatedly until every rank succeeds; returns the number of attempts.
    pub fn finish(&mut self, world: usize, args: &[&str]) -> usize {
        for attempt in 1..10 {
            let ended = self.attempt(world, args);
            if ended.succeeded() {
                return attempt;
            }
            assert!(!ended.stderr().contains("not injected"), "{}", ended.stderr());
        }
        panic!("the job never succeeded");
    }

    /// The weights that the ranks saved. Panics unless all are equal.
    pub fn weights(&self, world: usize) -> Vec<u8> {
        let of = |rank| fs::read(self.path(&format!("weights/rank-{rank}.safetensors"))).unwrap();
        let weights = of(0);
        assert!((1..world).all(|rank| of(rank) == weights), "the ranks' weights differ");
        weights
    }

    /// A rank's results file, if the job's arguments include `--results results`.
    pub fn results(&self, rank: usize) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.path(&format!("results/rank-{rank}.json"))).unwrap()).unwrap()
    }

    /// The file names in the folder of snapshots, sorted.
    pub fn snapshots(&self) -> Vec<String> {
        crate::names(&self.path("snapshots"))
    }

    /// Each rank's events, with the number of their attempt.
    pub fn events(&self) -> BTreeMap<usize, Vec<(u32, Event)>> {
        let logs = events::read_folder(&self.path("events")).unwrap();
        let of = |log: events::EventLog| log.records.into_iter().map(|record| (record.restart, record.event)).collect();
        logs.into_iter().map(|(rank, log)| (rank, of(log))).collect()
    }

    pub fn injected(&self) -> usize {
        let names = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("faults.json.fired-")).count()
    }
}

impl Attempt {
    pub fn succeeded(&self) -> bool {
        self.0.iter().all(|output| output.status.success())
    }

    pub fn stderr(&self) -> String {
        self.0.iter().map(|output| text(&output.stderr)).collect()
    }

    pub fn stdout(&self) -> String {
        self.0.iter().map(|output| text(&output.stdout)).collect()
    }
}

/// The weights after a run without faults.
pub fn undisturbed(program: &Path, world: usize, args: &[&str]) -> Vec<u8> {
    let mut job = Job::new(program);
    job.succeeds(world, args);
    job.weights(world)
}

/// The fault of a rank that kills itself after a step.
pub fn kill(rank: usize, epoch: u64, step: u64) -> RankFault {
    let at = Point::Step { epoch, step };
    RankFault { name: format!("kill-{rank}-{epoch}-{step}"), rank, at, acts: vec![Act::Signal(9)] }
}

/// The fault of rank 0 while it saves the snapshot from which training would continue at `epoch` and `step`.
pub fn while_saving(epoch: u64, step: u64, phase: SavePhase, acts: &[Act]) -> RankFault {
    let name = format!("save-{epoch}-{step}-{phase:?}");
    RankFault { name, rank: 0, at: Point::Save { epoch, step, phase }, acts: acts.to_vec() }
}

/// Runs all commands until they end; once one is killed, the others are killed, too.
pub(crate) fn run_all(commands: Vec<Command>) -> Vec<Output> {
    let mut running: Vec<Running> = commands.into_iter().map(Running::start).collect();
    let mut ended = vec![false; running.len()];
    let all_have_ended = || {
        for rank in 0..ended.len() {
            let status = if ended[rank] { None } else { running[rank].exit() };
            ended[rank] |= status.is_some();
            if status.is_some_and(|status| status.signal().is_some()) {
                running.iter_mut().for_each(Running::kill);
            }
        }
        ended.iter().all(|ended| *ended)
    };
    lockstep_process::watchdog::until(all_have_ended).expect("a rank did not end");
    running.into_iter().map(Running::end).collect()
}
