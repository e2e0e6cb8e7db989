//! Data sets: the trait that the loader expects, and the sets that the labs use.
//!
//! | set | inputs of a batch of `n` | targets |
//! |---|---|---|
//! | [`Mnist`], read from IDX files or drawn by [`Digits`] | `Float [n, 1, H, W]` | `Int64 [n]` |
//! | [`LinearRegression`] | `Float [n, features]` | `Float [n, 1]` |
//! | [`Toy`] | `Float [n, 20]` | `Float [n, 1]` |
//! | [`Windows`], of a text's tokens | `Int64 [n, window]` | `Int64 [n, window]` |
//! | [`Subset`] of any set | as the whole set | as the whole set |
//!
//! The sets hold plain vectors, not tensors (a `Tensor` cannot be shared between threads), and build the tensors of a batch on
//! the CPU. The sampler decides order, shuffling and sharding; the loader has the threads and prefetches.
//! Sets of colour pictures are in `lockstep-vision`.

mod dataset;
pub mod digits;
pub mod mnist;
mod synthetic;
mod text;

pub use crate::rng;
pub use c10d::Floats;
pub use dataset::{Batch, Dataset, IndexOutOfRange, Subset, SubsetError, check_indices};
pub use digits::{Digits, mnist_or_drawn, real_data_dir};
pub use lockstep_datasets::text::{Texts, prose};
pub use lockstep_datasets::{DataError, idx, kind_of};
pub use lockstep_paths::write_atomically;
pub use mnist::{Mnist, Split};
pub use synthetic::{LinearRegression, Toy};
pub use text::{TextError, Tokenizer, Windows};
