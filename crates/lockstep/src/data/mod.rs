//! Data sets: the trait that the loader expects, and the sets that the labs use.
//!
//! | set | inputs of a batch of `n` | targets |
//! |---|---|---|
//! | [`Mnist`], read from IDX files or drawn by [`Digits`] | `Float [n, 1, H, W]` | `Int64 [n]` |
//! | [`Transformed`](vision::Transformed) pictures: an [`ImageFolder`] of photographs, or drawn by [`Storm`] | `Float [n, 3, H, W]` | `Int64 [n]` |
//! | [`Cifar10`], read from CIFAR-10's binary files or drawn by [`Objects`], through [`Transformed`](vision::Transformed) | `Float [n, 3, 32, 32]` | `Int64 [n]` |
//! | [`LinearRegression`] | `Float [n, features]` | `Float [n, 1]` |
//! | [`Toy`] | `Float [n, 20]` | `Float [n, 1]` |
//! | [`Subset`] of any set | as the whole set | as the whole set |
//!
//! The sets hold plain vectors, not tensors (a `Tensor` cannot be shared between threads), and build the tensors of a batch on
//! the CPU. The sampler decides order, shuffling and sharding; the loader has the threads and prefetches.

pub mod cifar;
mod dataset;
pub mod digits;
mod error;
pub mod folder;
pub mod idx;
pub mod mnist;
mod regression;
pub mod rng;
mod source;
pub mod storm;
mod subset;
mod toy;
pub mod vision;
mod whole;

pub use cifar::{Cifar10, Objects};
pub use dataset::{Batch, Dataset, IndexOutOfRange, check_indices};
pub use digits::Digits;
pub use error::DataError;
pub use folder::ImageFolder;
pub use mnist::{Mnist, Split};
pub use regression::LinearRegression;
pub use source::{HouseSplits, cifar_or_drawn, houses_or_drawn, mnist_or_drawn, real_data_dir};
pub use storm::Storm;
pub use subset::{Subset, SubsetError};
pub use toy::Toy;
