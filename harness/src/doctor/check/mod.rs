//! The checks: each is a pure function of the facts. The book's page is made of [`CHECKS`].

mod examine;
mod fabric;
mod files;
mod found;
mod gpus;
mod limits;
mod names;
mod network;
mod nodes;
mod software;
#[cfg(test)]
pub(super) mod testing;
mod variables;

pub(crate) use examine::CHECKS;
pub(super) use examine::{Finding, examine};
pub(crate) use found::Check;
