//! Batches in a sampler's order, loaded ahead by worker threads.
//!
//! [`DataLoader`] holds what to load and how; [`Epoch`] is one pass, or the rest of one; [`Position`] is the point that a run
//! has reached. [`crate::sampler`] chooses the samples, [`crate::data`] reads them.

mod data_loader;
mod epoch;
mod plan;
mod position;
mod workers;

pub use data_loader::{DataLoader, ZeroBatchSize};
pub use epoch::Epoch;
pub use position::Position;
