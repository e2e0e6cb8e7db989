//! From a file's tensors to a model's variables, all or none.

use std::fmt;
use std::path::{Path, PathBuf};

use tch::Kind;
use tch::nn::VarStore;

use super::error::{Difference, PretrainedError};

/// What to load, and how exactly it must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whether every variable of the model must be in the file and the other way round, as in PyTorch's `load_state_dict`; yes.
    /// Other shapes are refused in any case.
    pub strict: bool,
    /// Names, on either side, that are left out: whole ones, or beginnings that end in a dot (`fc.`, also written `fc.*`); none.
    pub skip: Vec<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { strict: true, skip: Vec::new() }
    }
}

/// What [`load`] did, name by name; every list is sorted. Its [`Display`](fmt::Display) tells it in a line or a few.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The file.
    pub path: PathBuf,
    /// Variables that now have the file's values.
    pub matched: Vec<String>,
    /// Names that [`LoadOptions::skip`] left out.
    pub skipped: Vec<String>,
    /// Variables of the model that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks; `num_batches_tracked` of batch normalization is not counted.
    pub unexpected: Vec<String>,
    /// Tensors whose dtype was converted: name, the file's dtype, the model's.
    pub converted: Vec<(String, Kind, Kind)>,
    /// What else there is to know: where in the file the weights were, which prefix was taken off their names.
    pub notes: Vec<String>,
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loaded {} variables from {}", self.matched.len(), self.path.display())
    }
}

/// Sets the variables of `vs` to the tensors of the same names in the file at `path`.
///
/// # Errors
/// [`PretrainedError`] says what is wrong with the file, or what of it does not fit; `vs` is then as it was.
pub fn load(vs: &VarStore, path: &Path, options: &LoadOptions) -> Result<Loaded, PretrainedError> {
    let _ =
        (vs, options, Difference { name: String::new(), file: (Kind::Float, vec![]), model: (Kind::Float, vec![]) });
    Err(PretrainedError::File { path: path.to_owned(), why: "not yet".into() })
}
