//! `lockstep bench snapshot`: what a snapshot costs the step that it follows, how fast it is written, and how long loading takes.
//!
//! Model and optimizer have the same tensors on all sides. What is read was just written, so it comes from the page cache: loading is
//! the work on the bytes, not on the disk.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, ensure};
use clap::Args;
use lockstep_contract::bench::{Order, SnapshotAnswer, SnapshotOrder};
use lockstep_contract::foreign;
use lockstep_process::Signals;
use tempfile::TempDir;

use super::frame::Frame;
use super::ranks::{Program, Ranks};
use super::results::Unit::{Bytes, BytesPerSecond, Seconds};
use super::rounds::{Case, Contestant, Plan, Quantity};
use crate::exit::Code;

/// MiB of weights in a layer.
const LAYER: u32 = 4;
/// Rounding differs between sums.
const TOLERANCE: f64 = 1e-9;

/// Measure snapshots: the stall of a step, in the foreground and the background, bytes a second, and loading
#[derive(Args)]
pub(crate) struct Options {
    /// MiB of weights, a multiple of 4: the file has twice as much, since momentum is saved too
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = size)]
    weights: u32,
    /// The folder to write to; what is written is removed
    #[arg(long, value_name = "DIR", default_value = ".", value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
    #[command(flatten)]
    frame: Frame,
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

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let patience = self.frame.patience();
        let folder = std::path::absolute(&self.folder)?;
        let kept = TempDir::with_prefix_in("bench-snapshot-", &folder);
        let kept = kept.with_context(|| format!("cannot write to {}", foreign::path(&folder)))?;
        self.frame.exec("snapshot", |signals: &Signals| {
            let (programs, not_measured) = programs(&self.frame)?;
            let jobs = Ranks::of_each(&programs, 1, patience, signals);
            let layers = self.weights / LAYER;
            let case = |name: &str, jobs: &[Rc<Ranks<'static>>], mode| Case {
                name: format!("{} MiB of weights, {name}", self.weights),
                quantities: quantities(mode),
                labels: vec![],
                sides: sides(jobs, &kept, layers, mode),
            };
            let foreground = case("training waits", &jobs, Mode::Foreground);
            // torch.save has no such thing.
            let background = case("written in the background", &jobs[..1], Mode::Background);
            Ok(Plan { cases: vec![foreground, background], not_measured })
        })
    }
}

fn programs(frame: &Frame) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
    frame.sides("torch.save", vec![Program::own()?], |python| {
        Ok(vec![Program::twin("torch, synced", &python, &["--sync"]), Program::twin("torch", &python, &[])])
    })
}

fn quantities(mode: Mode) -> Vec<Quantity> {
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

fn values(answer: &SnapshotAnswer, mode: Mode) -> Vec<f64> {
    let size = answer.bytes as f64;
    match mode {
        Mode::Foreground => vec![answer.stall, answer.plain, size / answer.written, size, answer.loaded],
        Mode::Background => vec![answer.stall, answer.plain, answer.lost, answer.written],
    }
}

fn sides<'a>(jobs: &[Rc<Ranks<'a>>], folder: &TempDir, layers: u32, mode: Mode) -> Vec<Contestant<'a>> {
    let first: Rc<OnceCell<f64>> = Rc::default();
    let side = |job: &Rc<Ranks<'a>>| {
        let (job, first, name) = (Rc::clone(job), Rc::clone(&first), job.name);
        let folder = folder.path().join(format!("{name}-{mode:?}"));
        let order = Order::Snapshot(SnapshotOrder { folder, layers, background: mode == Mode::Background });
        let turn = move || {
            let answer: SnapshotAnswer = job.ask(&order)?;
            let expected = *first.get_or_init(|| answer.sum);
            let same = (answer.sum / expected - 1.0).abs() <= TOLERANCE;
            ensure!(same, "the loaded weights' sum is {}, and {expected} where it was first", answer.sum);
            Ok(values(&answer, mode))
        };
        Contestant { name, turn: Box::new(turn) }
    };
    jobs.iter().map(side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantity_has_its_value() {
        let answer =
            SnapshotAnswer { plain: 0.1, stall: 0.5, lost: 0.2, written: 2.0, loaded: 0.3, bytes: 8_000_000, sum: 1.0 };
        for mode in [Mode::Foreground, Mode::Background] {
            let (names, values) = (quantities(mode), values(&answer, mode));
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
}
