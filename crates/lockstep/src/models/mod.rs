//! The networks that the labs train, the selection of trained parameters, and their order in memory.
//!
//! | network | input | output |
//! |---|---|---|
//! | [`ToyModel`] | `Float [n, 10]` | `Float [n, 5]` |
//! | [`ConvNet`], [`Mlp`]; [`DigitNet`] is either, chosen by a flag | `Float [n, 1, 28, 28]` | `Float [n, 10]` |
//! | [`ResNet`], 18 or 34 layers deep | `Float [n, 3, H, W]` | `Float [n, classes]` |

mod digits;
mod freeze;
mod memory_format;
mod resnet;
mod toy;

pub use digits::{ConvNet, DigitModel, DigitNet, Mlp};
pub use freeze::{count_trainable, freeze_all_but};
pub use memory_format::channels_last;
pub use resnet::{Depth, Head, Norm, ResNet, ResNetOptions};
pub use toy::ToyModel;
