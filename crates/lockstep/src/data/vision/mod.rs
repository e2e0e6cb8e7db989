//! Pictures: labelled sets of them, and the transforms before a network sees them.
//!
//! - [`Pictures`] is a labelled set of pictures; [`Transformed`] turns it into the [`Dataset`](super::Dataset) that a loader
//!   takes.
//! - [`Transform`]s change a picture: [`Pipeline`] applies several, [`AutoAugment`] a randomly drawn pair of a learned policy.
//! - [`Normalize`] turns its pixels into numbers.
//!
//! They equal torchvision's of the same name on PIL pictures (torchvision 0.26, Pillow 13), pixel for pixel; [`Resize`] within
//! one grey level. Random choices come from a [`KeyedRng`](super::rng::KeyedRng) of (seed, epoch, index): the stream differs
//! from Python's, and a resumed run draws the same values.

mod auto_augment;
mod op;
mod pictures;
mod pixels;
mod transform;
mod window;

pub use auto_augment::{AutoAugment, OpKind, SubPolicy};
pub use image::RgbImage;
pub use op::Op;
pub use pictures::{OnBroken, Pictures, Transformed};
pub use pixels::Normalize;
pub use transform::{CenterCrop, Pipeline, RandomCrop, RandomHorizontalFlip, Resize, Transform};
