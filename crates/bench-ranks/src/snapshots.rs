//! A snapshot between two training steps: its cost to the step, the time until it is on disk, and the time to read it back.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use c10d::ProcessGroup;
use lockstep::loader::Position;
use lockstep::measure::Spread;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::snapshot::{OnSaveError, Run, Save, SnapshotOptions, Snapshots, list};
use lockstep::{LaunchEnv, Reporter};
use lockstep_rank_messages::bench::{SnapshotAnswer, SnapshotOrder};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

use crate::formula::formula;

/// The side of a layer's square matrix, which takes 4 MiB.
const SIDE: i64 = 1024;
const BATCH: i64 = 16;
/// Steps without a snapshot; their median counts.
const PLAIN: usize = 5;
/// If a background writer has not finished after this number of steps, it never will.
const MOST_STEPS: usize = 100_000;

/// A model to save, and its position in training.
pub(crate) struct Saver {
    layers: i64,
    vs: VarStore,
    optimizer: Sgd,
    inputs: Tensor,
    report: Reporter,
    epoch: u64,
}

impl Saver {
    fn new(env: &LaunchEnv, layers: i64) -> Result<Self> {
        let vs = VarStore::new(Device::Cpu);
        for layer in 0..layers {
            let start = formula(&[SIDE, SIDE], 1 + layer, (3.0 / SIDE as f64).sqrt());
            let _weights = vs.root().var_copy(&format!("layer{layer}"), &start);
        }
        let options = SgdOptions { lr: 0.0, momentum: 0.9, ..SgdOptions::default() };
        let optimizer = Sgd::new(named_parameters(&vs), options)?;
        let (inputs, report) = (formula(&[BATCH, SIDE], 0, 1.0), Reporter::new(env, Device::Cpu)?);
        let mut saver = Saver { layers, vs, optimizer, inputs, report, epoch: 0 };
        saver.step()?; // creates the momentum
        Ok(saver)
    }

    /// The seconds of a step.
    fn step(&mut self) -> Result<f64> {
        let begun = Instant::now();
        self.optimizer.zero_grad();
        let layers = named_parameters(&self.vs);
        let outputs = layers.iter().fold(self.inputs.shallow_clone(), |inputs, (_, layer)| inputs.matmul(layer));
        c10d::backward(&outputs.square().mean(Kind::Float))?;
        self.optimizer.step()?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn plain(&mut self) -> Result<f64> {
        let times = (0..PLAIN).map(|_| self.step()).collect::<Result<Vec<_>>>()?;
        Ok(Spread::of(&times).map_or(0.0, |spread| spread.median))
    }

    fn snapshots(&self, order: &SnapshotOrder) -> Snapshots {
        let options = SnapshotOptions {
            background: order.background,
            on_error: OnSaveError::Stop,
            keep: std::num::NonZeroUsize::MIN,
            ..SnapshotOptions::default()
        };
        let run = Run { seed: 0, samples: 1, data: 0, batch_size: 1 };
        Snapshots::new(&order.folder, run, options, &self.report)
    }

    fn measure(&mut self, group: &ProcessGroup, order: &SnapshotOrder) -> Result<SnapshotAnswer> {
        let plain = self.plain()?;
        let mut snapshots = self.snapshots(order);
        self.epoch += 1;
        let position = Position::start_of(self.epoch);
        let begun = Instant::now();
        snapshots.save(Save::new(position, &self.vs, &self.optimizer))?;
        let stall = begun.elapsed().as_secs_f64();
        let lost = if order.background { self.until_written(&order.folder, plain)? } else { 0.0 };
        snapshots.finish()?;
        let written = begun.elapsed().as_secs_f64();
        let bytes = newest(&order.folder)?.map_or(0, |(_, bytes)| bytes);
        // Then their sum shows whether loading restores them.
        tch::no_grad(|| self.vs.trainable_variables().iter_mut().for_each(|layer| drop(layer.zero_())));
        let begun = Instant::now();
        let found = self.snapshots(order).resume(&self.vs, &mut self.optimizer, group)?;
        let loaded = begun.elapsed().as_secs_f64();
        ensure!(found == position, "the snapshot of {position:?} was saved, and that of {found:?} was loaded");
        let sums =
            self.vs.trainable_variables().into_iter().map(|layer| layer.abs().sum(Kind::Double).double_value(&[]));
        Ok(SnapshotAnswer { plain, stall, lost, written, loaded, bytes, sum: sums.sum() })
    }

    /// Trains until the snapshot is written. Returns how much more time the steps take than plain ones.
    fn until_written(&mut self, folder: &Path, plain: f64) -> Result<f64> {
        let mut lost = 0.0;
        for _ in 0..MOST_STEPS {
            if newest(folder)?.is_some_and(|(epoch, _)| epoch == self.epoch) {
                return Ok(lost);
            }
            lost += self.step()? - plain;
        }
        anyhow::bail!("after {MOST_STEPS} steps the snapshot is not in {}", folder.display())
    }
}

/// The epoch and the size in bytes of the newest snapshot.
fn newest(folder: &Path) -> Result<Option<(u64, u64)>> {
    match list(folder)?.first() {
        Some(found) => Ok(Some((found.epoch, std::fs::metadata(&found.path)?.len()))),
        None => Ok(None),
    }
}

/// Creates the model for the first order, and for each order with another number of layers.
pub(crate) fn run(
    saver: &mut Option<Saver>,
    env: &LaunchEnv,
    group: &ProcessGroup,
    order: &SnapshotOrder,
) -> Result<SnapshotAnswer> {
    let saver = match saver {
        Some(saver) if saver.layers == i64::from(order.layers) => saver,
        none => none.insert(Saver::new(env, i64::from(order.layers))?),
    };
    saver.measure(group, order)
}
