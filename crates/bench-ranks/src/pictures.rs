//! Passes over photographs in JPEG files, as the damage classifier's loader makes them: decode, AutoAugment, resize, normalise.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use lockstep::data::Dataset;
use lockstep::loader::DataLoader;
use lockstep_vision::DecodedCache;
use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::photographs::{self, BATCH};

/// What the bench asks for first: photographs.
#[derive(Deserialize)]
pub(crate) struct Draw {
    folder: PathBuf,
    count: usize,
}

/// Where they are.
#[derive(Serialize)]
pub(crate) struct Drawn {
    folder: PathBuf,
}

/// A pass over the photographs of a folder.
#[derive(Deserialize)]
pub(crate) struct Order {
    /// It has a folder for each class.
    folder: PathBuf,
    /// Threads that load.
    workers: usize,
    /// The folder of decoded photographs, if they are kept.
    cache: Option<PathBuf>,
}

#[derive(Serialize)]
pub(crate) struct Answer {
    seconds: f64,
    photographs: usize,
    /// Of the first batch's absolute values, without AutoAugment: it is the same on all sides if they do the same work.
    mean: f64,
}

pub(crate) fn draw(order: &Draw) -> Result<Drawn> {
    Ok(Drawn { folder: photographs::draw(&order.folder, order.count)? })
}

/// The loaders that were asked for so far, by folder, workers, and whether decoded photographs are kept.
#[derive(Default)]
pub(crate) struct Loaders(BTreeMap<(PathBuf, usize, bool), Loader>);

struct Loader {
    loader: DataLoader,
    photographs: usize,
    mean: f64,
    epoch: u64,
}

impl Loaders {
    pub(crate) fn run(&mut self, order: &Order) -> Result<Answer> {
        let loader = match self.0.entry((order.folder.clone(), order.workers, order.cache.is_some())) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(Loader::open(order)?),
        };
        Ok(Answer { seconds: loader.pass()?, photographs: loader.photographs, mean: loader.mean })
    }
}

impl Loader {
    fn open(order: &Order) -> Result<Self> {
        let cache = order.cache.as_deref();
        if cache.is_some() {
            // Photographs that were drawn a moment ago are not kept.
            std::thread::sleep(DecodedCache::TICK);
        }
        let mean = mean(&photographs::set(&order.folder, cache, false)?)?;
        let set: Arc<dyn Dataset> = Arc::new(photographs::set(&order.folder, cache, true)?);
        Ok(Loader { photographs: set.len(), loader: photographs::loader(set, order.workers)?, mean, epoch: 0 })
    }

    /// The seconds of a pass.
    fn pass(&mut self) -> Result<f64> {
        let (begun, mut seen) = (Instant::now(), 0);
        for batch in self.loader.epoch(self.epoch) {
            seen += batch?.len();
        }
        self.epoch += 1;
        ensure!(seen == self.photographs, "{seen} pictures came of {}", self.photographs);
        Ok(begun.elapsed().as_secs_f64())
    }
}

fn mean(set: &dyn Dataset) -> Result<f64> {
    let batch = set.batch(0, &(0..BATCH.min(set.len())).collect::<Vec<_>>())?;
    Ok(batch.inputs.abs().mean(Kind::Double).double_value(&[]))
}
