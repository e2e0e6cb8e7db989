//! CIFAR-10: small colour pictures of ten kinds of things, read from the published binary files or drawn.
//!
//! [`Cifar10`] is the data set from either source; [`Objects`] draws one when there are no files. Leaves out decoding and
//! augmenting into tensors ([`crate::Transformed`]), and Python's pickles, which are programs rather than data.

mod objects;
mod set;
#[cfg(test)]
mod tests;

pub use lockstep_datafiles::cifar::{CLASSES, RECORD, SIDE};
pub use objects::Objects;
pub use set::Cifar10;
