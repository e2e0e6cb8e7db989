//! `lockstep tour`: trains twice before the reader's eyes, then proves from the files that the claims are true.
//!
//! What is proved is `proofs`' to say, how it is shown `report`'s, how a lab is run `run`'s.

mod report;
mod screen;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tempfile::TempDir;

use crate::exit::{Code, Interrupted, Refused};
use crate::process::Signals;
use crate::proofs::{Finding, each_sample_once, grouped, learns, same_training, same_weights};
use crate::run::{Evidence, Folder, Lab, Plan, Sizes};
use report::{Report, Run};
use screen::Screen;

/// The lab that the tour runs.
const LAB: &str = "lab-02-spawn-ddp";
/// Samples in a batch of one rank of the first run.
const BATCH: usize = 32;

/// Trains MNIST with several ranks and again with one, shows losses and accuracy, and proves that both are right
#[derive(Args)]
pub(crate) struct Options {
    /// Ranks of the first run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    nprocs: u16,
    /// Times to go through the training digits
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    epochs: u64,
    /// Digits to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(8..=1_000_000))]
    samples: u64,
    /// Seed of drawn digits, order and initial weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A folder with MNIST's four files; without one, digits are drawn
    #[arg(long, value_name = "DIR", conflicts_with = "samples")]
    data: Option<PathBuf>,
    /// Keep event files and weights in this folder, which must be new or empty
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Seconds that one run may take
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print the report as JSON on stdout, and all else on stderr
    #[arg(long)]
    json: bool,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let lab = Lab::beside_this_program(LAB)?;
        let (data, sizes) = self.data_set()?;
        let stage = Stage {
            lab,
            data,
            place: Place::open(self.keep.as_deref())?,
            screen: Screen::new(self.json),
            signals: Signals::listen().context("cannot listen for signals")?,
            timeout: Duration::from_secs(self.timeout),
        };
        stage.introduce(sizes);
        let ranks = usize::from(self.nprocs);
        let plan = |ranks, batch| Plan { ranks, batch, epochs: self.epochs, seed: self.seed, sizes };
        let a = stage.run("A", plan(ranks, BATCH))?;
        let b = stage.run("B", plan(1, ranks * BATCH))?;
        let report = Report::new(prove(&a, &b), [a, b], stage.place.kept());
        report.show(&stage.screen)?;
        stage.clear()?;
        Ok(report.code())
    }

    /// Where the digits are, if they are not to be drawn, and how many there are.
    fn data_set(&self) -> anyhow::Result<(Option<PathBuf>, Sizes)> {
        let Some(folder) = &self.data else { return Ok((None, Sizes::drawn(self.samples))) };
        let sizes = Sizes::of_folder(folder).map_err(|error| Refused(format!("cannot use --data: {error:#}")))?;
        Ok((Some(folder.canonicalize().context("cannot resolve --data")?), sizes))
    }
}

/// What both runs share.
struct Stage {
    lab: Lab,
    data: Option<PathBuf>,
    place: Place,
    screen: Screen,
    signals: Signals,
    timeout: Duration,
}

impl Stage {
    fn introduce(&self, Sizes { train, test }: Sizes) {
        let (train, test) = (grouped(train), grouped(test));
        let drawn = if self.data.is_some() { "" } else { "drawn " };
        self.screen
            .line(format!("Lockstep tour: two runs from one seed on {train} {drawn}digits, {test} more held out"));
    }

    fn run(&self, name: &'static str, plan: Plan) -> anyhow::Result<Run> {
        self.screen.line(format!("\nRun {name}: {plan}"));
        let folder = self.place.folder(name);
        let output = self.screen.for_child()?;
        let took = self.lab.run(&plan, self.data.as_deref(), &folder, output, self.timeout, &self.signals);
        let seconds = took.with_context(|| format!("run {name} ({plan}) failed"))?.as_secs_f64();
        Ok(Run { name, evidence: Evidence::read(plan, &folder), seconds })
    }

    /// Removes what nobody asked to keep. A signal that came after the runs is heeded here.
    fn clear(self) -> anyhow::Result<()> {
        self.place.close(&self.screen);
        self.signals.arrived().map_or(Ok(()), |signal| Err(Interrupted { signal }.into()))
    }
}

fn prove(a: &Run, b: &Run) -> Vec<Finding> {
    let (many, one) = (&a.evidence, &b.evidence);
    vec![same_weights(many), same_training(many, one), each_sample_once(&[(a.name, many), (b.name, one)]), learns(many)]
}

/// Where the runs leave their files.
enum Place {
    /// A private folder that goes when the tour ends.
    Private(TempDir),
    /// One that the user named.
    Kept(PathBuf),
}

impl Place {
    fn open(keep: Option<&Path>) -> anyhow::Result<Self> {
        let Some(folder) = keep else {
            let folder = tempfile::Builder::new().prefix("lockstep-tour-").tempdir();
            return Ok(Place::Private(folder.context("cannot make a temporary folder (TMPDIR names another place)")?));
        };
        let refused = |reason: String| Refused(format!("cannot keep files in {}: {reason}", folder.display()));
        std::fs::create_dir_all(folder).map_err(|error| refused(error.to_string()))?;
        let mut entries = std::fs::read_dir(folder).map_err(|error| refused(error.to_string()))?;
        // Events of another run would be taken for this one's.
        if entries.next().is_some() {
            return Err(refused("it is not empty, name a new folder".into()).into());
        }
        Ok(Place::Kept(folder.canonicalize().context("cannot resolve --keep")?))
    }

    fn folder(&self, name: &str) -> Folder {
        let root = match self {
            Place::Private(folder) => folder.path(),
            Place::Kept(folder) => folder,
        };
        Folder::new(root.join(format!("run-{name}")))
    }

    fn kept(&self) -> Option<PathBuf> {
        match self {
            Place::Private(_) => None,
            Place::Kept(folder) => Some(folder.clone()),
        }
    }

    /// Removes the private folder; it is no reason to fail if that cannot be done.
    fn close(self, screen: &Screen) {
        let Place::Private(folder) = self else { return };
        let path = folder.path().to_owned();
        if let Err(error) = folder.close() {
            screen.line(format!("warning: cannot remove {}: {error}", path.display()));
        }
    }
}
