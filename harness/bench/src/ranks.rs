//! Ranks that link libtorch and live through all rounds of a bench: each side has a program that carries out orders, ours
//! (`crates/bench-ranks`) or the same in Python. Both run under our launcher, so that only the programs differ.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use lockstep_contract::recording;
use lockstep_grading::Python;
use lockstep_process::Signals;
use lockstep_rank_messages::bench::Order;
use serde::de::DeserializeOwned;

use crate::checkout::program_beside;
use crate::connection::Mark;
use crate::job::BenchJob;
use crate::launcher::{Launcher, Shape};
use crate::rounds::CommonOptions;

/// Our program, next to this one.
const PROGRAM: &str = "lockstep-bench-ranks";
/// The Python peer's files: the last one has `main`.
const PYTHON_PROGRAM: &str = concat!(
    include_str!("python/collectives.py"),
    include_str!("python/steps.py"),
    include_str!("python/parallel.py"),
    include_str!("python/pictures.py"),
    include_str!("python/snapshots.py"),
    include_str!("python/ranks.py")
);

/// A side's name, and what its ranks run.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) words: Vec<OsString>,
}

/// The backend of our ranks' collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Backend {
    /// What a training takes by default: shared memory if possible, otherwise Gloo
    Auto,
    /// Sockets
    Gloo,
    /// Shared memory
    Shm,
}

/// Where the tensors of all sides are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// In host memory
    Cpu,
    /// On a GPU for each rank, with NCCL
    Cuda,
}

/// The sides of a bench that are ours.
#[derive(Debug, Args)]
pub(super) struct Backends {
    /// The backends of our collectives on tensors in host memory: a list; each is a side, and the first is compared with the others
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values = ["auto", "gloo"])]
    backends: Vec<Backend>,
}

/// The device and backends of a bench whose tensors may be on GPUs.
#[derive(Debug, Args)]
pub(super) struct DeviceAndBackends {
    /// Where tensors are, Python's too
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
    #[command(flatten)]
    backends: Backends,
}

impl Backends {
    /// Ours, and those of `theirs` that are installed: see [`CommonOptions::sides`].
    pub(super) fn sides(
        &self,
        common: &CommonOptions,
        peer: &str,
        theirs: impl FnOnce(Python) -> anyhow::Result<Vec<Program>>,
    ) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
        Self::sides_of(&self.backends, common, peer, theirs)
    }

    fn sides_of(
        backends: &[Backend],
        common: &CommonOptions,
        peer: &str,
        theirs: impl FnOnce(Python) -> anyhow::Result<Vec<Program>>,
    ) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
        let own = backends.iter().map(|backend| Program::over(*backend)).collect::<anyhow::Result<Vec<_>>>()?;
        common.sides(peer, own, theirs)
    }
}

impl DeviceAndBackends {
    /// As [`Backends::sides`], on the device.
    pub(super) fn sides(
        &self,
        common: &CommonOptions,
        peer: &str,
        theirs: impl FnOnce(Python) -> anyhow::Result<Vec<Program>>,
    ) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
        if !self.on_gpus() {
            return self.backends.sides(common, peer, theirs);
        }
        // NCCL carries everything, so other backends would only repeat it.
        let (mut programs, not_measured) = Backends::sides_of(&[Backend::Auto], common, peer, theirs)?;
        programs.iter_mut().for_each(|program| program.words.extend(["--device".into(), "cuda".into()]));
        Ok((programs, not_measured))
    }

    pub(super) fn on_gpus(&self) -> bool {
        self.device == Device::Cuda
    }

    /// What a case's name says about the device, so that only the same work is compared.
    pub(super) fn suffix(&self) -> &'static str {
        if self.on_gpus() { ", on GPUs" } else { "" }
    }
}

impl Backend {
    /// The backend's name for our program, and the name of its side.
    fn names(self) -> [&'static str; 2] {
        match self {
            Backend::Auto => ["auto", "lockstep"],
            Backend::Gloo => ["gloo", "lockstep-gloo"],
            Backend::Shm => ["shm", "lockstep-shm"],
        }
    }
}

impl Program {
    /// Ours, over what a training takes by default.
    pub(super) fn own() -> anyhow::Result<Self> {
        Self::over(Backend::Auto)
    }

    /// Ours, with ranks on this many simulated hosts in turn.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    pub(super) fn on_hosts(backend: Backend, hosts: usize) -> anyhow::Result<Self> {
        let mut program = Self::over(backend)?;
        program.words.extend(["--hosts".into(), hosts.to_string().into()]);
        Ok(program)
    }

    fn over(backend: Backend) -> anyhow::Result<Self> {
        let [backend, name] = backend.names();
        let words = [program_beside(PROGRAM)?.into(), "--backend".into(), backend.into()];
        Ok(Program { name, words: words.into() })
    }

    /// This side, with its calls recorded in `folder`.
    pub(super) fn recorded(&self, name: &'static str, folder: &Path) -> Self {
        let mut variable = OsString::from(format!("{}=", recording::FOLDER));
        variable.push(folder);
        let words = ["env".into(), variable].into_iter().chain(self.words.iter().cloned()).collect();
        Program { name, words }
    }

    /// The program in Python, with flags that `python/ranks.py` lists.
    pub(super) fn in_python(name: &'static str, python: &Python, flags: &[&str]) -> Self {
        let words = [python.program.clone().into(), "-c".into(), PYTHON_PROGRAM.into()];
        Program { name, words: words.into_iter().chain(flags.iter().map(OsString::from)).collect() }
    }

    /// The program in Python with each of its optimizers: by default Python's loops over the parameters, ours has one kernel for all.
    pub(super) fn in_python_by_optimizer(python: Python) -> anyhow::Result<Vec<Self>> {
        Ok(vec![Self::in_python("python", &python, &[]), Self::in_python("python-fused", &python, &["--fused"])])
    }
}

/// The ranks of one side.
pub(super) struct Ranks<'a> {
    pub(super) name: &'static str,
    program: Program,
    launcher: Launcher,
    shape: Shape,
    patience: Duration,
    signals: &'a Signals,
    job: RefCell<Option<BenchJob<'a>>>,
}

impl<'a> Ranks<'a> {
    /// Ranks of this machine that start with the first order.
    pub(super) fn new(program: &Program, ranks: usize, patience: Duration, signals: &'a Signals) -> Rc<Self> {
        Self::under(&Launcher::own(), program, Shape { ranks, agents: 1 }, patience, signals)
    }

    /// Ranks under this launcher that start with the first order.
    pub(super) fn under(
        launcher: &Launcher,
        program: &Program,
        shape: Shape,
        patience: Duration,
        signals: &'a Signals,
    ) -> Rc<Self> {
        let (name, program, launcher) = (program.name, program.clone(), launcher.clone());
        Rc::new(Ranks { name, program, launcher, shape, patience, signals, job: RefCell::new(None) })
    }

    /// The ranks of each side, on this machine.
    pub(super) fn of_each(
        programs: &[Program],
        ranks: usize,
        patience: Duration,
        signals: &'a Signals,
    ) -> Vec<Rc<Self>> {
        programs.iter().map(|program| Ranks::new(program, ranks, patience, signals)).collect()
    }

    /// Sends an order and waits for rank 0's answer.
    pub(super) fn ask<A: DeserializeOwned>(&self, order: &Order) -> anyhow::Result<A> {
        let mut running = self.job.borrow_mut();
        let job = match &mut *running {
            Some(job) => job,
            none => none.insert(self.start()?),
        };
        let line = job.ask(&serde_json::to_string(order)?)?;
        serde_json::from_str(&line).with_context(|| format!("rank 0 answered {line:?}"))
    }

    /// Processor time of all ranks and their children so far, in seconds; 0 before the first order.
    pub(super) fn processor_time(&self) -> f64 {
        self.job.borrow().as_ref().map_or(0.0, BenchJob::processor_time)
    }

    fn start(&self) -> anyhow::Result<BenchJob<'a>> {
        let job = BenchJob::new(&self.launcher, &self.program.words, self.shape, 0, self.patience, self.signals)?;
        let mut job = job.started()?;
        job.until_up(Mark::START)?;
        Ok(job)
    }
}
