//! The reports of a training loop: each call prints a line or moves the bar, and writes an event for the harness.
//!
//! It also injects requested faults ([`crate::faults`]), since it knows the step.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use c10d::stragglers::Finding;
use lockstep_contract::fault::{Act, Armed, FaultError, Point};
use tch::Device;

use crate::curves::{Curves, CurvesError};
use crate::events::{Event, EventSink};
use crate::loader::{EpochSteps, Position};
use crate::memory::MemoryBytes;
use crate::metrics::Evaluation;
use crate::optim::last_lr;
use crate::progress::{self, Progress, Tag};
use crate::virtual_ranks::VirtualRanks;
use crate::{LaunchEnv, Rank, WorldSize, faults, snapshot};

/// A rank's reporter. Rank 0 draws the bar and prints results of all ranks; every rank prints its epochs and writes its events.
///
/// Clones report to the same places, from any thread.
#[derive(Clone)]
pub struct Reporter {
    shared: Arc<Shared>,
}

struct Shared {
    rank: Rank,
    world_size: WorldSize,
    /// True if this is the first rank of its node.
    first_of_node: bool,
    /// The job of this rank, if a launcher started it.
    job: Option<String>,
    tag: Tag,
    progress: Progress,
    events: EventSink,
    faults: Armed,
    /// Where snapshots are saved, for the faults that damage them.
    snapshots: Mutex<Option<PathBuf>>,
    /// Rank 0's, if they are asked for.
    curves: Mutex<Option<Curves>>,
}

impl Reporter {
    /// For a rank of a job; events go where `LOCKSTEP_EVENTS` says, and faults happen as `LOCKSTEP_FAULTS` says.
    ///
    /// Errors: `LOCKSTEP_FAULTS` does not name a valid plan: a test that trains without its faults would be meaningless.
    pub fn new(env: &LaunchEnv, device: Device) -> Result<Self, FaultError> {
        let events = EventSink::from_env(env.rank.get(), env.restart_count);
        Self::start(env, snapshot::job_of(env), device, events)
    }

    /// For a process without a launcher.
    pub fn alone(device: Device) -> Result<Self, FaultError> {
        Self::start(&LaunchEnv::alone(), None, device, EventSink::from_env(0, 0))
    }

    fn start(env: &LaunchEnv, job: Option<String>, device: Device, events: EventSink) -> Result<Self, FaultError> {
        let (rank, world_size, first_of_node) = (env.rank, env.world_size, env.local_rank.get() == 0);
        let faults = Armed::from_env(rank.get())?;
        let name = match device {
            Device::Cuda(index) => format!("cuda:{index}"),
            _ => "cpu".to_owned(),
        };
        events.emit(&Event::Start { world_size: world_size.get(), device: name, pid: std::process::id() });
        let (tag, progress, snapshots) =
            (Tag::new(rank, device), Progress::new(rank, events.is_on()), Mutex::default());
        let curves = Mutex::default();
        let shared = Shared { rank, world_size, first_of_node, job, tag, progress, events, faults, snapshots, curves };
        let reporter = Reporter { shared: Arc::new(shared) };
        reporter.listen_for_late_ranks();
        Ok(reporter)
    }

    /// From now on, rank 0 writes loss, learning rate and samples per second of each step, and each evaluation, to a CSV file: see
    /// [`curves`](crate::curves). All ranks may call this.
    ///
    /// Errors: on rank 0: the file cannot be written, or has something else.
    pub fn write_curves(&self, path: &Path) -> Result<(), CurvesError> {
        if self.rank().is_zero() {
            *self.shared.curves.lock().unwrap_or_else(PoisonError::into_inner) = Some(Curves::open(path)?);
        }
        Ok(())
    }

    /// Writes to the curves, if they are asked for. The first failure ends them, and training goes on.
    fn curve(&self, write: impl FnOnce(&mut Curves) -> io::Result<()>) {
        let mut curves = self.shared.curves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = curves.as_mut().map(write) {
            *curves = None;
            drop(curves);
            self.warn(format!("cannot write curves any more: {error}; training goes on without them"));
        }
    }

    /// From now on reports the ranks for which the others wait.
    fn listen_for_late_ranks(&self) {
        let shared = Arc::downgrade(&self.shared);
        c10d::stragglers::listen(move |line, finding| match shared.upgrade() {
            Some(shared) => Reporter { shared }.late(line, finding),
            None => progress::warn(line),
        });
    }

    fn late(&self, line: &str, finding: Option<&Finding>) {
        self.shared.progress.eprintln(format!("warning: {line}"));
        if let Some(Finding { ranks, cause, share, waited, .. }) = finding {
            let (ranks, waited, message) = (ranks.clone(), waited.clone(), line.to_owned());
            self.emit(&Event::Late { ranks, cause: cause.word().to_owned(), share: *share, waited, message });
        }
    }

    /// Starts an epoch: its number of steps and, for the harness, the samples that this rank will see.
    pub fn epoch(&self, epoch: u64, loader: &impl EpochSteps) {
        self.epoch_at(Position::start_of(epoch), loader);
    }

    /// Starts an epoch, or continues it at `from` after a resume: the reported samples are the remaining ones.
    pub fn epoch_at(&self, from: Position, loader: &impl EpochSteps) {
        let (epoch, batch_size, steps) = (from.epoch, loader.batch_size(), (from.step + loader.steps_at(from)) as u64);
        self.println(progress::epoch_line(self.shared.tag, epoch, batch_size, steps));
        self.curve(|curves| {
            curves.begin();
            Ok(())
        });
        self.shared.progress.epoch(epoch, from.step as u64, steps);
        self.emit(&Event::Epoch { epoch, steps, batch_size });
        if self.shared.events.is_on() {
            let indices = loader.indices_at(from).into_iter().map(|i| i as u64).collect();
            self.emit(&Event::Samples { epoch, indices });
        }
    }

    /// A step is done; `loss` is this rank's mean over `samples` samples, as many as every rank's.
    pub fn step(&self, epoch: u64, step: usize, loss: f64, samples: usize) {
        self.step_over(epoch, step, loss, samples, samples * self.world_size().get());
    }

    /// As [`step`](Self::step), where `loss` is the mean over all virtual ranks, and this rank's took `samples` samples.
    pub fn virtual_step(&self, ranks: VirtualRanks, epoch: u64, step: usize, loss: f64, samples: usize) {
        self.step_over(epoch, step, loss, samples, samples / ranks.own().len() * ranks.count().get());
    }

    fn step_over(&self, epoch: u64, step: usize, loss: f64, samples: usize, of_all: usize) {
        self.shared.progress.step(loss);
        let (lr, of_all) = (last_lr(), of_all as u64);
        self.emit(&Event::Step { epoch, step: step as u64, loss, samples: samples as u64, lr });
        self.curve(|curves| curves.step(epoch, step as u64, loss, lr, of_all));
        if self.has_faults()
            && let Err(error) = self.inject_faults(&Point::Step { epoch, step: step as u64 })
        {
            self.warn(format!("the fault was not injected: {error}"));
        }
    }

    /// The model was evaluated, over all ranks. Rank 0 prints it.
    pub fn eval(&self, epoch: u64, all: &Evaluation) {
        self.say_once(progress::eval_line(epoch, all.accuracy(), all.loss()));
        self.emit_eval(epoch, all);
    }

    /// Epoch `epoch` of `epochs` is trained, with these sums over all ranks' steps in it. Rank 0 prints them.
    pub fn trained(&self, epoch: u64, epochs: u64, all: &Evaluation) {
        self.say_once(progress::training_line(epoch, epochs, all));
    }

    /// As [`eval`](Self::eval), in the format of the tutorial's classifier.
    pub fn validated(&self, epoch: u64, epochs: u64, all: &Evaluation) {
        self.say_once(progress::validation_line(epoch, epochs, all));
        self.emit_eval(epoch, all);
    }

    /// The steps of `epoch` took this time; `all` has the sums over all ranks. Rank 0 prints them, with the images per second
    /// of all ranks together. No event contains that rate, since it differs from run to run.
    pub fn trained_in(&self, epoch: u64, all: &Evaluation, time: Duration) {
        self.say_once(progress::speed_line(epoch, all, time));
    }

    /// The memory of this rank by kind; every rank prints its own.
    pub fn memory(&self, bytes: &MemoryBytes) {
        self.say(format!("memory {bytes}"));
        self.note_memory(bytes);
    }

    /// As [`memory`](Self::memory), without the line: for the launcher's status and the harness.
    pub fn note_memory(&self, bytes: &MemoryBytes) {
        let MemoryBytes { parameters, gradients, optimizer, activations, buckets, sent } = *bytes;
        self.emit(&Event::Memory { parameters, gradients, optimizer, activations, buckets, sent });
    }

    fn emit_eval(&self, epoch: u64, all: &Evaluation) {
        let (accuracy, loss, samples) = (all.accuracy(), all.loss(), all.samples());
        self.emit(&Event::Eval { epoch, accuracy, loss, samples });
        self.curve(|curves| curves.eval(epoch, all));
    }

    /// Prints a line that applies to all ranks once, on rank 0.
    pub fn say_once(&self, line: impl AsRef<str>) {
        if self.rank().is_zero() {
            self.println(line);
        }
    }

    /// Prints a line of this rank, prefixed with its tag.
    pub fn say(&self, line: impl AsRef<str>) {
        self.println(format!("{} {}", self.shared.tag, line.as_ref()));
    }

    /// Prints a line unchanged, without disturbing the bar.
    pub fn println(&self, line: impl AsRef<str>) {
        self.shared.progress.println(line);
    }

    /// Prints a warning to stderr and records it as an event.
    pub fn warn(&self, message: String) {
        self.shared.progress.eprintln(format!("warning: {message}"));
        self.emit(&Event::Fault { message });
    }

    /// Prints a warning that applies to all ranks once, on rank 0.
    pub fn warn_once(&self, message: String) {
        if self.rank().is_zero() {
            self.warn(message);
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.shared.rank
    }

    pub(crate) fn world_size(&self) -> WorldSize {
        self.shared.world_size
    }

    pub(crate) fn is_first_of_node(&self) -> bool {
        self.shared.first_of_node
    }

    pub(crate) fn job(&self) -> Option<&str> {
        self.shared.job.as_deref()
    }

    pub(crate) fn emit(&self, event: &Event) {
        self.shared.events.emit(event);
    }

    /// From now on, faults that damage a snapshot look for it in `folder`.
    pub(crate) fn snapshots_are_in(&self, folder: &Path) {
        *self.shared.snapshots.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.to_owned());
    }

    pub(crate) fn has_faults(&self) -> bool {
        !self.shared.faults.is_empty()
    }

    /// Injects all faults that are due at `point`.
    pub(crate) fn inject_faults(&self, point: &Point) -> io::Result<()> {
        let folder = self.shared.snapshots.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut done = Ok(());
        let due = self.shared.faults.due(point).map_err(|error| io::Error::other(with_cause(&error)))?;
        for fault in due {
            for act in &fault.acts {
                if *act != Act::AwaitHarness {
                    self.emit(&Event::Fault { message: format!("injected: {} ({})", faults::name(act), fault.name) });
                }
                done = done.and(faults::inject(act, folder.as_deref(), &self.shared.faults.came(fault)));
            }
        }
        done
    }
}

fn with_cause(error: &FaultError) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
