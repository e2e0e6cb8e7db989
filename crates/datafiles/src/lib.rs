//! The files of data sets: where they are, whether they are right, and the fault and the fix where they are not.
//!
//! Does not link libtorch, so that the command can check files, too. `lockstep` and `lockstep-vision` make data sets of them.

pub mod cifar;
mod error;
pub mod folder;
pub mod idx;
pub mod mnist;
pub mod whole;

pub use error::{DataError, kind_of};
pub use mnist::Split;
