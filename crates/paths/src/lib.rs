#![doc = include_str!("../README.md")]
//!
//! It does not link libtorch, so labs and the `lockstep` command give the same answers.

pub mod output;
mod temporary;

pub use temporary::folder as temporary_folder;
