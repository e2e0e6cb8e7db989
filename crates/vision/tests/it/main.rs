//! The integration tests of this package in one program: each further one would link libtorch once more.

#![allow(clippy::unwrap_used)] // a test may

mod decode;
mod folder;
mod houses;
mod learning;
mod transforms;
