//! The command line: the tutorial's flags, in its spelling and the usual one, and the course's.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use lockstep::amp::Precision;
use lockstep::device::DeviceChoice;
use lockstep::exit::UsageError;
use lockstep::optim::schedule::Warmup;
use lockstep::snapshot::SaveArgs;
use lockstep::{LaunchEnv, checkpoint};

/// Train ResNet-18 on CIFAR-10
#[derive(Parser)]
pub(crate) struct Args {
    /// Accepted because torch.distributed.launch passes it; the lab uses LOCAL_RANK, which has the same value
    #[arg(long, alias = "local_rank")]
    pub(crate) local_rank: Option<usize>,
    /// Number of training epochs
    #[arg(long, visible_alias = "epochs", alias = "num_epochs", default_value_t = 5)]
    pub(crate) num_epochs: u64,
    /// Pictures in a batch of one rank (the tutorial's is 256, of 50,000)
    #[arg(long, alias = "batch_size", default_value = "32")]
    pub(crate) batch_size: NonZeroUsize,
    /// Learning rate (the tutorial's is 0.1)
    #[arg(long, visible_alias = "lr", alias = "learning_rate", default_value_t = 0.005)]
    pub(crate) learning_rate: f64,
    /// Scale the learning rate from this batch size over all ranks to the actual one, with a warm-up
    #[arg(long)]
    pub(crate) lr_for_batch: Option<NonZeroUsize>,
    /// Epochs of the warm-up
    #[arg(long, default_value_t = 1)]
    pub(crate) warmup_epochs: u64,
    /// Seed of drawn pictures, order, crops and flips, and initial weights
    #[arg(long, visible_alias = "seed", alias = "random_seed", default_value_t = 0)]
    pub(crate) random_seed: u64,
    /// Folder of the model and of the snapshots
    #[arg(long, visible_alias = "snapshots", alias = "model_dir", default_value = "saved_models")]
    pub(crate) model_dir: PathBuf,
    /// File of the model in it
    #[arg(long, alias = "model_filename", default_value = "resnet_distributed.safetensors", value_parser = model_name)]
    pub(crate) model_filename: PathBuf,
    /// Resume from the newest good snapshot in the folder, from whatever job; a restarted job resumes from its own without this flag
    #[arg(long)]
    pub(crate) resume: bool,
    #[command(flatten)]
    pub(crate) save: SaveArgs,
    /// A folder with CIFAR-10's binary files, or with cifar-10-batches-bin; without one, pictures are drawn
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Pictures to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value = "2048")]
    pub(crate) samples: NonZeroUsize,
    /// Threads of each rank that load ahead
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Channels of the network's first stage; torchvision's has 64
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) width: i64,
    /// Train so many virtual ranks, each with its own batch, on any number of ranks up to theirs: with the same bits on all
    #[arg(long, conflicts_with = "sync_batch_norm")]
    pub(crate) virtual_ranks: Option<NonZeroUsize>,
    /// Normalize over the batches of all ranks instead of each rank's own
    #[arg(long)]
    pub(crate) sync_batch_norm: bool,
    /// Keep the channels of weights and pictures last in memory, as GPUs' convolutions in half precision work on them
    #[arg(long)]
    pub(crate) channels_last: bool,
    /// The type of the forward pass where half of float32 is enough (automatic mixed precision); float16 scales the loss
    #[arg(long, value_enum, default_value_t)]
    pub(crate) precision: Precision,
    /// A folder in which each rank saves its weights at the end
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    pub(crate) weights: Option<PathBuf>,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
}

impl Args {
    /// The note about `--local-rank`, if it was given.
    pub(crate) fn about_local_rank(&self, env: &LaunchEnv) -> Result<Option<String>, UsageError> {
        let Some(given) = self.local_rank else { return Ok(None) };
        let real = env.local_rank;
        if given != real.get() {
            let message = format!(
                "--local-rank is {given}, and the environment says {real}: leave the flag out, and start several ranks by \
                 `lockstep run` or torchrun"
            );
            return Err(UsageError(message));
        }
        Ok(Some(
            "--local-rank is accepted and of no effect: LOCAL_RANK picks the device, RANK does everything else".into(),
        ))
    }

    /// The model's file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn model_file(&self) -> Result<PathBuf, UsageError> {
        let path = self.model_dir.join(&self.model_filename);
        checkpoint::check_path(&path)
            .map_err(|why| UsageError(format!("cannot save the model in {}: {why}", path.display())))?;
        Ok(path)
    }

    /// The learning rate by step: the given one or, with `--lr-for-batch`, the scaled one.
    pub(crate) fn schedule(&self, ranks: usize, steps: usize) -> Result<Warmup> {
        let Some(base) = self.lr_for_batch else { return Ok(Warmup::new(self.learning_rate, 1.0, 0)?) };
        let (batch, steps) = (self.batch_size.get(), self.warmup_epochs * steps as u64);
        Ok(Warmup::linear_scaling(self.learning_rate, base.get(), batch, ranks, steps)?)
    }

    /// Rejects shares whose last batch is a single picture: at the end of ResNet-18, that picture is one pixel, and one value has no
    /// variance.
    pub(crate) fn check_last_batch(&self, shares: [usize; 2], world_size: usize) -> Result<(), UsageError> {
        let ranks_that_share_statistics = if self.sync_batch_norm { world_size } else { 1 };
        let is_single = |share: &usize| *share > 0 && (share - 1).is_multiple_of(self.batch_size.get());
        let Some(share) = shares.iter().find(|share| is_single(share)).filter(|_| ranks_that_share_statistics == 1)
        else {
            return Ok(());
        };
        Err(UsageError(format!(
            "a rank's {share} pictures in batches of {} end with a batch of 1, of which batch norm can take no variance: choose another \
             --batch-size, or --sync-batch-norm with several ranks",
            self.batch_size
        )))
    }
}

/// A file's name without a folder.
fn model_name(name: &str) -> Result<PathBuf, String> {
    let path = checkpoint::parse_name(name)?;
    if name.contains('/') {
        return Err("give only the file's name here, and its folder with --model-dir".into());
    }
    Ok(path)
}
