//! The command line.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::Parser;
use lockstep::device::DeviceChoice;
use lockstep::models::DigitModel;
use lockstep::snapshot::OnSaveError;

/// Train MNIST so that a kill costs no more than the steps since the last snapshot
#[derive(Parser)]
pub struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 3)]
    pub epochs: u64,
    /// The folder of snapshots; training resumes from the newest good one
    #[arg(long, default_value = "snapshots")]
    pub snapshots: PathBuf,
    /// Save a snapshot every this many epochs, and after the last one
    #[arg(long, default_value = "1")]
    pub save_every: NonZeroU64,
    /// Also save a snapshot every this many steps of an epoch
    #[arg(long)]
    pub save_every_steps: Option<NonZeroUsize>,
    /// How many snapshots to keep
    #[arg(long, default_value = "2")]
    pub keep: NonZeroUsize,
    /// What to do when a snapshot cannot be saved
    #[arg(long, value_enum, default_value_t)]
    pub on_save_error: OnSaveError,
    /// The network
    #[arg(long, value_enum, default_value_t)]
    pub model: DigitModel,
    /// Samples in a batch of one rank
    #[arg(long, default_value = "32")]
    pub batch_size: NonZeroUsize,
    /// Learning rate
    #[arg(long, default_value_t = 0.01)]
    pub lr: f64,
    /// Seed of drawn digits, order, initial weights and dropout
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// A folder with MNIST's four files; without one, digits are drawn
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Digits to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value = "4096")]
    pub samples: NonZeroUsize,
    /// A folder in which each rank saves its weights at the end
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    pub weights: Option<PathBuf>,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceChoice,
}
