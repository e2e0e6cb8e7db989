//! The integration tests of this package in one program: each further one would link libtorch once more.

#![allow(clippy::unwrap_used)] // a test may

mod folder;
mod folder_broken;
mod folder_golden;
mod storm;
mod transforms_golden;
mod transforms_properties;
