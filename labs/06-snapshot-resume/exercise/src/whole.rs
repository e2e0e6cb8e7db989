//! Task 4: a snapshot that a kill cannot tear.
//!
//! A process may be killed in the middle of a write, and a machine may lose its power. The snapshot from before must then still
//! be there, whole, or the new one, whole. What is half written must not be named as a snapshot is: `snapshot-….safetensors`.
//! When this function returns, the new snapshot survives a power cut, and so does its name.
//!
//! `crate::disk` has `File`, `rename` and what else is needed of `std::fs`, under the same names, and lets the grader see what is
//! done in which order.

use std::io::{Result, Write};
use std::path::Path;

use crate::disk::{File, rename};

/// Saves `bytes` in the file `path`, in which the snapshot from before may be.
pub fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    // `path.with_file_name("…")` is a file beside it; `path.parent()` is the folder, and a folder can be opened and synced, too.
    todo!("save the bytes, whole or not at all")
}
