//! Passes over photographs in JPEG files, as the damage classifier's loader does them: decode, AutoAugment, resize, normalise.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use lockstep::data::Dataset;
use lockstep::loader::DataLoader;
use lockstep_rank_messages::bench::{DrawAnswer, DrawOrder, PicturesAnswer, PicturesOrder};
use lockstep_vision::DecodedCache;
use tch::Kind;

use crate::photographs::{self, BATCH};

pub(crate) fn draw(order: &DrawOrder) -> Result<DrawAnswer> {
    Ok(DrawAnswer { folder: photographs::draw(&order.folder, order.count)? })
}

/// The loaders requested so far, by folder, workers, and whether decoded photographs are kept.
#[derive(Default)]
pub(crate) struct Loaders(BTreeMap<(PathBuf, usize, bool), Loader>);

struct Loader {
    loader: DataLoader,
    photographs: usize,
    mean: f64,
    epoch: u64,
}

impl Loaders {
    pub(crate) fn run(&mut self, order: &PicturesOrder) -> Result<PicturesAnswer> {
        let loader = match self.0.entry((order.folder.clone(), order.workers, order.cache.is_some())) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(Loader::open(order)?),
        };
        Ok(PicturesAnswer { seconds: loader.pass()?, photographs: loader.photographs, mean: loader.mean })
    }
}

impl Loader {
    fn open(order: &PicturesOrder) -> Result<Self> {
        let cache = order.cache.as_deref();
        if cache.is_some() {
            // The cache does not keep photographs that were written a moment ago.
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
