//! Support for tests, without libtorch: jobs in private folders, whose ranks are started directly and restarted after a fault, as a
//! launcher would do; and comparisons with Python's PyTorch.
//!
//! System errors are panics, as usual in tests. Not here: launchers, and the promises of each lab.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // only for tests

mod job;
pub mod margin;
pub mod python;

use std::path::Path;

pub use job::{Attempt, Job, Running, kill, undisturbed, while_saving};
pub use lockstep_contract::clear_launcher;
pub use lockstep_process::KillOnDrop;

/// What a process printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number after `words` in each line that has one there; a comma or a blank ends it.
pub fn numbers(printed: &str, words: &str) -> Vec<f64> {
    let number = |line: &str| line.split_once(words)?.1.split([',', ' ']).next()?.parse().ok();
    printed.lines().filter_map(number).collect()
}

/// The names of the files and folders in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
