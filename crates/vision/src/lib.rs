//! Pictures: labelled sets of them, and the transforms before a network sees them.
//!
//! - [`cifar`], [`folder`] and [`houses`] are sets, read from files or drawn; [`cifar_or_drawn`] and [`houses_or_drawn`] choose.
//! - [`Pictures`] is a labelled set of pictures; [`Transformed`] turns it into the [`Dataset`](lockstep::data::Dataset) that a loader
//!   takes.
//! - [`Transform`]s change a picture: [`Pipeline`] applies several, [`AutoAugment`] a randomly drawn pair of a learned policy.
//! - [`Normalize`] turns its pixels into numbers.
//!
//! They equal torchvision's of the same name on PIL pictures (torchvision 0.26, Pillow 13), pixel for pixel; [`Resize`] within
//! one grey level. Random choices come from a [`KeyedRng`](lockstep::data::rng::KeyedRng) of (seed, epoch, index): the stream differs
//! from Python's, and a resumed run draws the same values.

mod auto_augment;
pub mod cifar;
pub mod folder;
pub mod houses;
mod op;
mod pictures;
mod source;
mod transform;

pub use auto_augment::{AutoAugment, OpKind, SubPolicy};
pub use cifar::{Cifar10, Objects};
pub use folder::{DecodedCache, ImageFolder};
pub use houses::DrawnHouses;
pub use image::RgbImage;
pub use op::Op;
pub use pictures::{OnBroken, Pictures, Transformed};
pub use source::{HouseSplits, cifar_or_drawn, houses_or_drawn};
pub use transform::{CenterCrop, Normalize, Pipeline, RandomCrop, RandomHorizontalFlip, Resize, Transform};
