//! `lockstep bench loader`: photographs a second from JPEG files to the tensors of a batch, by number of workers.
//!
//! Both sides read the same files, and decode, augment (AutoAugment), resize to 244 x 244 and normalise in shuffled batches of 32, as the
//! damage classifier of lab 08 does. Workers are threads here and processes in Python.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use lockstep_contract::bench::{DrawAnswer, DrawOrder, Order, PicturesAnswer, PicturesOrder};
use lockstep_paths::temporary_folder;
use lockstep_process::Signals;
use tempfile::TempDir;

use super::frame::Frame;
use super::machine::labels;
use super::ranks::{Program, Ranks};
use super::results::Unit::{PerSecond, Seconds};
use super::rounds::{Case, Contestant, Plan, Quantity};
use crate::exit::Code;
use crate::report::{HostInfo, count};

/// How far the means of the first batch may be apart: JPEG decoders and resizing round differently.
const TOLERANCE: f64 = 2e-3;

/// Measure the loader of pictures: photographs a second, by number of workers
#[derive(Args)]
pub(crate) struct Options {
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
    frame: Frame,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (cores, patience) = (HostInfo::here().cores, self.frame.patience());
        let drawn = TempDir::new_in(temporary_folder()).context("cannot make a folder for photographs")?;
        self.frame.exec("loader", |signals| {
            let (programs, not_measured) = programs(&self.frame)?;
            let folder = self.folder(&Ranks::new(&programs[0], 1, patience, signals), &drawn)?;
            let of = match &self.folder {
                Some(folder) => format!("photographs of {}", folder.display()),
                None => format!("{} photographs", self.photographs),
            };
            let cache = drawn.path().join("decoded");
            let case = |workers: usize, cache: Option<&Path>| Case {
                name: format!(
                    "{}, {of}{}",
                    count(workers, "worker"),
                    if cache.is_some() { ", kept decoded" } else { "" }
                ),
                quantities: quantities(),
                labels: labels(workers, "worker", cores),
                sides: sides(&programs, &folder, workers, cache, patience, signals),
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

fn programs(frame: &Frame) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
    frame.sides("torchvision's DataLoader", vec![Program::own()?], |python| {
        Ok(vec![Program::twin("torchvision", &python.with_torchvision()?, &[])])
    })
}

fn quantities() -> Vec<Quantity> {
    vec![Quantity::new("photographs", PerSecond), Quantity::new("processor time of a photograph", Seconds)]
}

/// # Errors
/// The sides did not load the same pictures.
fn same_work(one: &PicturesAnswer, other: &PicturesAnswer) -> anyhow::Result<()> {
    let (ours, theirs) = ((one.photographs, one.mean), (other.photographs, other.mean));
    let same = ours.0 == theirs.0 && (ours.1 - theirs.1).abs() <= TOLERANCE;
    ensure!(
        same,
        "number and mean of the photographs are {ours:?}, and {theirs:?} where they were first: not the same work"
    );
    Ok(())
}

/// Each side has a process of its own for each case, so that the workers of another case have no part in its processor time.
fn sides<'a>(
    programs: &[Program],
    folder: &Path,
    workers: usize,
    cache: Option<&Path>,
    patience: Duration,
    signals: &'a Signals,
) -> Vec<Contestant<'a>> {
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
        Contestant { name: program.name, turn: Box::new(turn) }
    };
    programs.iter().map(side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
