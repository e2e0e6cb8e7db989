//! The names of MNIST's four files, and what their contents must be.

use std::path::{Path, PathBuf};

use crate::DataError;

/// Training or test samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// The samples to train on: the files whose names begin with `train`.
    Train,
    /// The held-out samples: the files whose names begin with `t10k`.
    Test,
}

impl Split {
    /// The first part of its files' names.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "t10k",
        }
    }
}

/// The first of a file's usual names that exists in `dir`: of a split's `images`, with 3 dimensions, or `labels`, with 1.
///
/// # Errors
/// None of them exists; the message says where they are instead.
pub fn find(dir: &Path, split: Split, what: &str, dimensions: u8) -> Result<PathBuf, DataError> {
    let prefix = split.prefix();
    let names: Vec<String> = ["", ".gz"]
        .into_iter()
        .flat_map(|end| ["-", "."].map(|dot| format!("{prefix}-{what}{dot}idx{dimensions}-ubyte{end}")))
        .collect();
    if let Some(name) = names.iter().find(|name| dir.join(name).exists()) {
        return Ok(dir.join(name));
    }
    let inner = ["mnist", "MNIST/raw", "raw"].map(|inner| dir.join(inner));
    let hint: String = match inner.iter().find(|inner| names.iter().any(|name| inner.join(name).exists())) {
        _ if !dir.is_dir() => "that folder does not exist, check the path".into(),
        Some(inner) => format!("it lies in {}, give that folder", inner.display()),
        None => "give the folder that holds the four files of MNIST".into(),
    };
    let found = format!("none of {}", names.join(", "));
    Err(DataError::new(format!("find the {prefix} {what} in")).at(dir).found(found).hint(hint))
}

/// Checks concatenated images of `rows` x `columns` bytes, and one label for each.
///
/// # Errors
/// The counts differ, the bytes are not complete images, or a label is above 9.
pub fn check(images: &[u8], labels: &[u8], rows: usize, columns: usize) -> Result<(), DataError> {
    let pixels = rows.checked_mul(columns).filter(|&pixels| pixels > 0 && images.len().is_multiple_of(pixels));
    let Some(pixels) = pixels else {
        let operation = format!("read images of {rows} x {columns} pixels from {} bytes", images.len());
        return Err(DataError::new(operation).hint("the bytes must be whole images of 1 pixel or more"));
    };
    if images.len() / pixels != labels.len() {
        let operation = format!("pair {} images with {} labels", images.len() / pixels, labels.len());
        return Err(DataError::new(operation).hint("the files are of different sets, get both again"));
    }
    match labels.iter().position(|&label| label > 9) {
        Some(index) => Err(DataError::new(format!("read label {index}"))
            .expected("a digit from 0 to 9")
            .found(labels[index].to_string())
            .hint("the file is not MNIST's labels")),
        None => Ok(()),
    }
}
