//! Pictures: sets of them, read from files or drawn, and what is done to a picture before a network sees it.
//!
//! - [`cifar`], [`folder`] and [`storm`] are sets; [`cifar_or_drawn`] and [`houses_or_drawn`] choose for the labs.
//! - [`Pictures`] is a labelled set of pictures; [`Transformed`] makes the [`Dataset`](lockstep::data::Dataset) of it that a loader takes.
//! - [`Transform`]s change a picture: [`Pipeline`] does several, [`AutoAugment`] one of a learned policy, drawn at random.
//! - [`Normalize`] makes numbers of its pixels.
//!
//! They equal torchvision's of the same name on PIL pictures (torchvision 0.26, Pillow 13), pixel for pixel; [`Resize`] within
//! one grey level. Random choices come from a [`KeyedRng`](lockstep::data::rng::KeyedRng) of (seed, epoch, index): the stream is ours, not Python's, and
//! a resumed run draws the same.

mod auto_augment;
pub mod cifar;
pub mod folder;
mod op;
mod pictures;
mod pixels;
mod source;
pub mod storm;
mod transform;
mod window;

pub use auto_augment::{AutoAugment, OpKind, SubPolicy};
pub use cifar::{Cifar10, Objects};
pub use folder::ImageFolder;
pub use image::RgbImage;
pub use op::Op;
pub use pictures::{OnBroken, Pictures, Transformed};
pub use pixels::Normalize;
pub use source::{HouseSplits, cifar_or_drawn, houses_or_drawn};
pub use storm::Storm;
pub use transform::{CenterCrop, Pipeline, RandomCrop, RandomHorizontalFlip, Resize, Transform};
