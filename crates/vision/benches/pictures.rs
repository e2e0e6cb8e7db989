//! Measures an epoch of photographs from JPEG files to normalised tensors (decode, AutoAugment, resize to 244) with 1 and 2
//! threads.
//!
//! The baselines do the same work in the caller's thread: through the data set, and as one would write it with the `image`
//! crate alone (its decoder, its triangle filter, no AutoAugment). `lockstep measure loader` compares with torchvision.

#[path = "support/photographs.rs"]
mod photographs;
#[allow(unreachable_pub)] // other benches use it, too
#[path = "../../../engine/c10d/benches/support/rounds.rs"]
mod rounds;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, Throughput};
use image::imageops::{self, FilterType};
use lockstep::data::Dataset;
use lockstep_vision::{ImageFolder, Normalize, Pictures};
use photographs::{BATCH, SIDE};

const PHOTOGRAPHS: usize = 64;
const PEERS: [&str; 2] = ["asking in the caller's thread", "the image crate alone, without AutoAugment"];

fn main() -> anyhow::Result<()> {
    tch::set_num_threads(1);
    let mut criterion = Criterion::default().configure_from_args();
    let folder = tempfile::tempdir()?;
    let folder = photographs::draw(folder.path(), PHOTOGRAPHS).map(|train| (folder, train))?;
    let pictures = ImageFolder::open(&folder.1)?;
    let set: Arc<dyn Dataset> = Arc::new(photographs::set(&folder.1, None, true)?);
    let mut group = criterion.benchmark_group("pictures");
    rounds::configure(&mut group);
    group.throughput(Throughput::Elements(PHOTOGRAPHS as u64));
    for workers in [1, 2] {
        rounds::print_machine(workers, "thread");
        let loader = photographs::loader(Arc::clone(&set), workers)?;
        rounds::bench(&mut group, &format!("workers {workers}"), &PEERS, |side, iterations| {
            let begun = Instant::now();
            for epoch in 0..iterations {
                match side {
                    0 => loader.epoch(epoch).for_each(|batch| drop(black_box(batch.expect("drawn photographs load")))),
                    1 => directly(&*set, epoch),
                    _ => plainly(&pictures),
                }
            }
            begun.elapsed()
        });
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}

fn directly(set: &dyn Dataset, epoch: u64) {
    let indices: Vec<usize> = (0..set.len()).collect();
    for indices in indices.chunks(BATCH) {
        drop(black_box(set.batch(epoch, indices).expect("indices are the set's own")));
    }
}

fn plainly(pictures: &ImageFolder) {
    let mut planes = vec![0.0; (3 * SIDE * SIDE) as usize];
    for index in 0..pictures.len() {
        Normalize::IMAGENET.write(&plain(pictures.path(index)), &mut planes);
        black_box(&planes);
    }
}

fn plain(path: &Path) -> image::RgbImage {
    let picture = image::open(path).expect("drawn photographs are JPEG").to_rgb8();
    imageops::resize(&picture, SIDE, SIDE, FilterType::Triangle)
}
