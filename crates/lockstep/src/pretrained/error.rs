//! Why weights could not be loaded.

use std::fmt;
use std::path::PathBuf;

use tch::Kind;

/// Why weights could not be loaded. The model has not changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// The file cannot be read as weights.
    #[error("cannot read weights from {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// A tensor that both sides have, with another shape or an incompatible dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// Dtype and shape in the file.
    pub file: (Kind, Vec<i64>),
    /// Dtype and shape in the model.
    pub model: (Kind, Vec<i64>),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { name, file, model } = self;
        write!(f, "{name} is {:?} {:?} in the file and {:?} {:?} in the model", file.0, file.1, model.0, model.1)
    }
}
