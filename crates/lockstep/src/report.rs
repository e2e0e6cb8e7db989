//! What a training loop reports: lines and a bar for people, events for the harness, from one call each.

use tch::Device;

use crate::events::{Event, EventSink};
use crate::loader::DataLoader;
use crate::metrics::Evaluation;
use crate::progress::{self, Progress, Tag};
use crate::sampler::Sampler;
use crate::{LaunchEnv, Rank, WorldSize};

/// A rank's reporter. Rank 0 draws the bar and prints what is true of all; every rank prints its epochs and writes its events.
pub struct Reporter {
    rank: Rank,
    tag: Tag,
    progress: Progress,
    events: EventSink,
}

impl Reporter {
    /// For a rank of a job; events go where `LOCKSTEP_EVENTS` says.
    pub fn new(env: &LaunchEnv, device: Device) -> Self {
        let events = EventSink::from_env(env.rank.get(), env.restart_count);
        Self::start(env.rank, env.world_size, device, events)
    }

    /// For a process that is alone.
    pub fn alone(device: Device) -> Self {
        Self::start(Rank::ZERO, WorldSize::ONE, device, EventSink::from_env(0, 0))
    }

    fn start(rank: Rank, world_size: WorldSize, device: Device, events: EventSink) -> Self {
        let name = match device {
            Device::Cuda(index) => format!("cuda:{index}"),
            _ => "cpu".to_owned(),
        };
        events.emit(&Event::Start { world_size: world_size.get(), device: name, pid: std::process::id() });
        Reporter { rank, tag: Tag::new(rank, device), progress: Progress::new(rank), events }
    }

    /// An epoch begins: how many steps, and, for the harness, which samples this rank will see.
    pub fn epoch(&self, epoch: u64, loader: &DataLoader, batch_size: usize, sampler: &impl Sampler) {
        let steps = loader.steps() as u64;
        self.println(progress::epoch_line(self.tag, epoch, batch_size, steps));
        self.progress.epoch(epoch, steps);
        self.events.emit(&Event::Epoch { epoch, steps, batch_size });
        if self.events.is_on() {
            let indices = sampler.indices(epoch).into_iter().map(|i| i as u64).collect();
            self.events.emit(&Event::Samples { epoch, indices });
        }
    }

    /// A step is done; `loss` is this rank's mean over `samples` samples.
    pub fn step(&self, epoch: u64, step: usize, loss: f64, samples: usize) {
        self.progress.step(loss);
        self.events.emit(&Event::Step { epoch, step: step as u64, loss, samples: samples as u64 });
    }

    /// The model was evaluated, over all ranks. Rank 0 prints it.
    pub fn eval(&self, epoch: u64, all: &Evaluation) {
        if self.rank.is_zero() {
            self.println(progress::eval_line(epoch, all.accuracy(), all.loss()));
        }
        let (accuracy, loss, samples) = (all.accuracy(), all.loss(), all.samples());
        self.events.emit(&Event::Eval { epoch, accuracy, loss, samples });
    }

    /// Prints a line of this rank, tagged with it.
    pub fn say(&self, line: impl AsRef<str>) {
        self.println(format!("{} {}", self.tag, line.as_ref()));
    }

    /// Prints a line as it is, without tearing the bar.
    pub fn println(&self, line: impl AsRef<str>) {
        self.progress.println(line);
    }
}
