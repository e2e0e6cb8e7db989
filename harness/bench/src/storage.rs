//! `lockstep measure snapshot`: what a snapshot costs the step that it follows, how fast it is written, and how long loading takes.
//!
//! Model and optimizer have the same tensors on all sides. What is read was just written, so it comes from the page cache: loading is
//! the work on the bytes, not on the disk.
//!
//! `lockstep measure loader`: photographs a second from JPEG files to the tensors of a batch, by number of workers.
//!
//! Both sides read the same files, and decode, augment (AutoAugment), resize to 244 x 244 and normalise in shuffled batches of 32, as the
//! damage classifier of lab 08 does. Workers are threads here and processes in Python.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use lockstep_contract::foreign;
use lockstep_paths::temporary_folder;
use lockstep_process::Signals;
use lockstep_rank_messages::bench::{
    DrawAnswer, DrawOrder, Order, PicturesAnswer, PicturesOrder, SnapshotAnswer, SnapshotOrder,
};
use tempfile::TempDir;

use crate::exit::Code;
use crate::machine::labels;
use crate::ranks::{Program, Ranks};
use crate::report::{HostInfo, count};
use crate::results::Unit::{Bytes, BytesPerSecond, PerSecond, Seconds};
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// MiB of weights in a layer.
const LAYER: u32 = 4;
/// Rounding differs between sums.
const SUM_TOLERANCE: f64 = 1e-9;

/// Measure snapshots: the stall of a step, in the foreground and the background, bytes a second, and loading
#[derive(Args)]
pub(crate) struct SnapshotOptions {
    /// MiB of weights, a multiple of 4: the file has twice as much, since momentum is saved too
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = size)]
    weights: u32,
    /// The folder to write to; what is written is removed
    #[arg(long, value_name = "DIR", default_value = ".", value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
    #[command(flatten)]
    common: CommonOptions,
}

fn size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(size) if size > 0 && size <= 65_536 && size % LAYER == 0 => Ok(size),
        _ => Err(format!("it must be a multiple of {LAYER} between {LAYER} and 65536")),
    }
}

/// What is done between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Foreground,
    Background,
}

impl SnapshotOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let patience = self.common.patience();
        let folder = std::path::absolute(&self.folder)?;
        let kept = TempDir::with_prefix_in("bench-snapshot-", &folder);
        let kept = kept.with_context(|| format!("cannot write to {}", foreign::path(&folder)))?;
        self.common.exec("snapshot", |signals: &Signals| {
            let (programs, not_measured) = snapshot_programs(&self.common)?;
            let jobs = Ranks::of_each(&programs, 1, patience, signals);
            let layers = self.weights / LAYER;
            let case = |name: &str, jobs: &[Rc<Ranks<'static>>], mode| BenchCase {
                name: format!("{} MiB of weights, {name}", self.weights),
                quantities: snapshot_quantities(mode),
                labels: vec![],
                sides: snapshot_sides(jobs, &kept, layers, mode),
            };
            let foreground = case("training waits", &jobs, Mode::Foreground);
            // torch.save has no such thing.
            let background = case("written in the background", &jobs[..1], Mode::Background);
            Ok(Plan { cases: vec![foreground, background], not_measured })
        })
    }
}

fn snapshot_programs(common: &CommonOptions) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
    common.sides("torch.save", vec![Program::own()?], |python| {
        Ok(vec![Program::in_python("torch, synced", &python, &["--sync"]), Program::in_python("torch", &python, &[])])
    })
}

fn snapshot_quantities(mode: Mode) -> Vec<Quantity> {
    let stall = [Quantity::new("stall of a step", Seconds), Quantity::new("step without it", Seconds)];
    let rest = match mode {
        Mode::Foreground => vec![
            Quantity::new("written", BytesPerSecond),
            Quantity::new("size of the file", Bytes),
            Quantity::new("loaded in", Seconds),
        ],
        Mode::Background => {
            vec![Quantity::new("later steps lose", Seconds), Quantity::new("on disk after", Seconds)]
        }
    };
    stall.into_iter().chain(rest).collect()
}

fn snapshot_values(answer: &SnapshotAnswer, mode: Mode) -> Vec<f64> {
    let size = answer.bytes as f64;
    match mode {
        Mode::Foreground => vec![answer.stall, answer.plain, size / answer.written, size, answer.loaded],
        Mode::Background => vec![answer.stall, answer.plain, answer.lost, answer.written],
    }
}

fn snapshot_sides<'a>(jobs: &[Rc<Ranks<'a>>], folder: &TempDir, layers: u32, mode: Mode) -> Vec<CaseSide<'a>> {
    let first: Rc<OnceCell<f64>> = Rc::default();
    let side = |job: &Rc<Ranks<'a>>| {
        let (job, first, name) = (Rc::clone(job), Rc::clone(&first), job.name);
        let folder = folder.path().join(format!("{name}-{mode:?}"));
        let order = Order::Snapshot(SnapshotOrder { folder, layers, background: mode == Mode::Background });
        let turn = move || {
            let answer: SnapshotAnswer = job.ask(&order)?;
            let expected = *first.get_or_init(|| answer.sum);
            let same = (answer.sum / expected - 1.0).abs() <= SUM_TOLERANCE;
            ensure!(same, "the loaded weights' sum is {}, but {expected} on the first side", answer.sum);
            Ok(snapshot_values(&answer, mode))
        };
        CaseSide { name, turn: Box::new(turn) }
    };
    jobs.iter().map(side).collect()
}

/// How far the means of the first batch may be apart: JPEG decoders and resizing round differently.
const MEAN_TOLERANCE: f64 = 2e-3;

/// Measure the loader of pictures: photographs a second, by number of workers
#[derive(Args)]
pub(crate) struct LoaderOptions {
    /// Threads that load (processes in Python): a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u16).range(0..=256))]
    workers: Vec<u16>,
    /// Photographs of 640 x 480 that are drawn for the bench
    #[arg(long, value_name = "COUNT", default_value_t = 192, value_parser = clap::value_parser!(u32).range(3..=1_000_000))]
    photographs: u32,
    /// Photographs to use instead: a folder with a folder of .jpg files for each class
    #[arg(long, value_name = "DIR", conflicts_with = "photographs")]
    folder: Option<PathBuf>,
    /// Also with our side's cache of decoded photographs, as from the second epoch on
    #[arg(long)]
    cached: bool,
    #[command(flatten)]
    common: CommonOptions,
}

impl LoaderOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (cores, patience) = (HostInfo::here().cores, self.common.patience());
        let drawn = TempDir::new_in(temporary_folder()).context("cannot make a folder for photographs")?;
        self.common.exec("loader", |signals| {
            let (programs, not_measured) = loader_programs(&self.common)?;
            let folder = self.folder(&Ranks::new(&programs[0], 1, patience, signals), &drawn)?;
            let of = match &self.folder {
                Some(folder) => format!("photographs of {}", folder.display()),
                None => format!("{} photographs", self.photographs),
            };
            let cache = drawn.path().join("decoded");
            let case = |workers: usize, cache: Option<&Path>| BenchCase {
                name: format!(
                    "{}, {of}{}",
                    count(workers, "worker"),
                    if cache.is_some() { ", kept decoded" } else { "" }
                ),
                quantities: loader_quantities(),
                labels: labels(workers, "worker", cores),
                sides: loader_sides(&programs, &folder, workers, cache, patience, signals),
            };
            let mut cases = vec![];
            for workers in self.workers.iter().copied().map(usize::from) {
                cases.push(case(workers, None));
                cases.extend(self.cached.then(|| case(workers, Some(&cache))));
            }
            Ok(Plan { cases, not_measured })
        })
    }

    /// The photographs, drawn by our program if none are given.
    fn folder(&self, ours: &Ranks<'_>, drawn: &TempDir) -> anyhow::Result<PathBuf> {
        match &self.folder {
            Some(folder) => std::path::absolute(folder).context("cannot find the working folder"),
            None => {
                let order = DrawOrder { folder: drawn.path().into(), count: self.photographs as usize };
                Ok(ours.ask::<DrawAnswer>(&Order::Draw(order))?.folder)
            }
        }
    }
}

fn loader_programs(common: &CommonOptions) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
    common.sides("torchvision's DataLoader", vec![Program::own()?], |python| {
        Ok(vec![Program::in_python("torchvision", &python.with_torchvision()?, &[])])
    })
}

fn loader_quantities() -> Vec<Quantity> {
    vec![Quantity::new("photographs", PerSecond), Quantity::new("processor time of a photograph", Seconds)]
}

fn same_work(one: &PicturesAnswer, other: &PicturesAnswer) -> anyhow::Result<()> {
    let (ours, theirs) = ((one.photographs, one.mean), (other.photographs, other.mean));
    let same = ours.0 == theirs.0 && (ours.1 - theirs.1).abs() <= MEAN_TOLERANCE;
    ensure!(
        same,
        "number and mean of the photographs are {ours:?}, but {theirs:?} on the first side: not the same work"
    );
    Ok(())
}

/// Each side has its own process for each case, so that its processor time does not include another case's workers.
fn loader_sides<'a>(
    programs: &[Program],
    folder: &Path,
    workers: usize,
    cache: Option<&Path>,
    patience: Duration,
    signals: &'a Signals,
) -> Vec<CaseSide<'a>> {
    let first: Rc<OnceCell<PicturesAnswer>> = Rc::default();
    let side = |program: &Program| {
        let job = Ranks::new(program, 1, patience, signals);
        let order = PicturesOrder { folder: folder.into(), workers, cache: cache.map(Path::to_owned) };
        let (first, order) = (Rc::clone(&first), Order::Pictures(order));
        let mut ready = false;
        let turn = move || {
            if !std::mem::replace(&mut ready, true) {
                // Its workers start, and read the files for the first time.
                job.ask::<PicturesAnswer>(&order)?;
            }
            let before = job.processor_time();
            let pass: PicturesAnswer = job.ask(&order)?;
            same_work(&pass, first.get_or_init(|| pass))?;
            let each = pass.photographs as f64;
            Ok(vec![each / pass.seconds, (job.processor_time() - before) / each])
        };
        CaseSide { name: program.name, turn: Box::new(turn) }
    };
    programs.iter().map(side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantity_has_its_value() {
        let answer =
            SnapshotAnswer { plain: 0.1, stall: 0.5, lost: 0.2, written: 2.0, loaded: 0.3, bytes: 8_000_000, sum: 1.0 };
        for mode in [Mode::Foreground, Mode::Background] {
            let (names, values) = (snapshot_quantities(mode), snapshot_values(&answer, mode));
            let shown: Vec<_> = names.iter().zip(&values).map(|(name, value)| name.unit.show(*value)).collect();
            assert_eq!(names.len(), values.len());
            match mode {
                Mode::Foreground => assert_eq!(shown, ["500 ms", "100 ms", "4.00 MB/s", "7.63 MiB", "300 ms"]),
                Mode::Background => assert_eq!(shown, ["500 ms", "100 ms", "200 ms", "2.00 s"]),
            }
        }
    }

    #[test]
    fn takes_whole_layers() {
        assert_eq!((size("64"), size("4")), (Ok(64), Ok(4)));
        assert!(["0", "6", "-4", "", "65540"].iter().all(|text| size(text).is_err()));
    }

    #[test]
    fn sides_that_load_other_pictures_did_not_do_the_same_work() {
        let pass = |photographs, mean| PicturesAnswer { seconds: 1.0, photographs, mean };
        let compared = |one: (usize, f64), other: (usize, f64)| same_work(&pass(one.0, one.1), &pass(other.0, other.1));
        assert!(compared((8, 1.0), (8, 1.001)).is_ok());
        assert!(compared((8, 1.0), (8, 1.01)).unwrap_err().to_string().ends_with("not the same work"));
        assert!(compared((8, 1.0), (9, 1.0)).is_err());
        assert!(compared((8, f64::NAN), (8, 1.0)).is_err());
    }
}
