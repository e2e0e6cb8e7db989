//! The command line. A run without options takes seconds on a CPU; `--full` takes the tutorial's values.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::Parser;
use clap::builder::ArgPredicate;
use lockstep::data::DataError;
use lockstep::device::DeviceChoice;
use lockstep::snapshot::SaveArgs;
use lockstep::{Reporter, checkpoint};
use lockstep_vision::{DecodedCache, OnBroken};

/// Train a classifier of storm damage on a folder of photographs for each class
#[derive(Parser)]
pub(crate) struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 5)]
    pub(crate) epochs: u64,
    /// The tutorial's sizes, for GPUs: batches of 16, a rate of 1e-4, photographs of 244 x 244, 64 channels; --pretrained implies it
    #[arg(long)]
    pub(crate) full: bool,
    /// Photographs in a batch of one rank
    #[arg(long, default_value = "8", default_value_ifs = full("16"))]
    pub(crate) batch_size: NonZeroUsize,
    /// Initial learning rate
    #[arg(long, default_value = "1e-3", default_value_ifs = full("1e-4"))]
    pub(crate) lr: f64,
    /// A folder with Train/, Validation/ and optionally Test/, each with a folder per class; without one, houses are drawn
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Houses to draw for training; a quarter as many are drawn for validation
    #[arg(long, default_value = "1536")]
    pub(crate) samples: NonZeroUsize,
    /// What to do about a photograph that cannot be read; in training, `skip` uses the next photograph instead
    #[arg(long, value_enum, default_value_t)]
    pub(crate) on_broken_image: OnBroken,
    /// Keep decoded photographs in this folder, for later epochs and runs and for the other ranks of this host; in /dev/shm they
    /// take memory
    #[arg(long, requires = "data", value_parser = lockstep::output::parse_folder)]
    pub(crate) cache: Option<PathBuf>,
    /// Mebibytes that the folder of decoded photographs may take
    #[arg(long, default_value_t = 4096, requires = "cache")]
    pub(crate) cache_limit: u64,
    /// Width and height that photographs are resized to
    #[arg(long, default_value = "64", default_value_ifs = full("244"))]
    pub(crate) image_size: NonZeroU32,
    /// Threads of each rank that read photographs ahead
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Initial weights of everything but the head: a .safetensors file, or a .pth file as torchvision publishes them
    #[arg(long)]
    pub(crate) pretrained: Option<PathBuf>,
    /// Train only the head
    #[arg(long)]
    pub(crate) freeze: bool,
    /// Channels of the network's first stage; pretrained weights have 64
    #[arg(long, default_value = "16", default_value_ifs = full("64"), value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) width: i64,
    /// Normalize over the batches of all ranks instead of each rank's own
    #[arg(long)]
    pub(crate) sync_batch_norm: bool,
    /// Keep the channels of weights and pictures last in memory, as GPUs' convolutions in half precision work on them
    #[arg(long)]
    pub(crate) channels_last: bool,
    /// The folder of snapshots; training resumes from the newest good one
    #[arg(long, default_value = "snapshots")]
    pub(crate) snapshots: PathBuf,
    #[command(flatten)]
    pub(crate) save: SaveArgs,
    /// The best model's file; best_model.safetensors in the folder of snapshots by default
    #[arg(long, value_parser = checkpoint::parse_path)]
    pub(crate) best: Option<PathBuf>,
    /// A folder in which each rank saves its last weights
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    pub(crate) weights: Option<PathBuf>,
    /// Seed of drawn houses, order, augmentation and initial weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
}

/// The default at the tutorial's sizes, which are also those of pretrained weights.
fn full(value: &'static str) -> [(&'static str, ArgPredicate, &'static str); 2] {
    [("full", ArgPredicate::Equals("true".into()), value), ("pretrained", ArgPredicate::IsPresent, value)]
}

impl Args {
    /// The cache of decoded photographs, if one is wanted.
    pub(crate) fn cache(&self, report: &Reporter) -> Result<Option<DecodedCache>, DataError> {
        let report = report.clone();
        let open = |folder: &PathBuf| {
            DecodedCache::open(folder, self.cache_limit.saturating_mul(1 << 20), move |message| report.warn(message))
        };
        self.cache.as_ref().map(open).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(words: &[&str]) -> (usize, f64, u32, i64) {
        let args = Args::parse_from([&["lab"], words].concat());
        (args.batch_size.get(), args.lr, args.image_size.get(), args.width)
    }

    #[test]
    fn takes_the_tutorials_sizes_on_request_and_for_pretrained_weights() {
        assert_eq!(sizes(&[]), (8, 1e-3, 64, 16));
        assert_eq!(sizes(&["--full"]), (16, 1e-4, 244, 64));
        assert_eq!(sizes(&["--pretrained", "resnet34.pth"]), (16, 1e-4, 244, 64));
        assert_eq!(sizes(&["--full", "--lr", "0.5", "--width", "8"]), (16, 0.5, 244, 8));
    }
}
