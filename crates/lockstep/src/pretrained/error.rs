//! Why weights could not be loaded: errors of the file itself, or of its fit to the model.

use std::fmt;
use std::io;
use std::path::PathBuf;

use lockstep_contract::pickle::PickleError;
use tch::{Kind, TchError};

use crate::snapshot::{BadSnapshot, listed};

/// How many characters of a name from the file a message shows.
const SHOWN: usize = 120;

/// A name from the file, made safe for a message: without control characters, and shortened.
pub(super) fn shown(name: &str) -> String {
    let escaped: String = name.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN).is_some() { format!("{escaped}…") } else { escaped }
}

/// Why weights could not be loaded. The model is then unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// The file cannot be read as weights.
    #[error("cannot read weights from {}: {why}", path.display())]
    File { path: PathBuf, why: BadFile },
    /// The weights belong to another model.
    #[error(
        "the weights in {} do not fit the model: {}; make the model in the file's sizes, and leave out by name what it is to keep as it \
         is, a new head for one",
        path.display(), differences(missing, unexpected, different)
    )]
    Unfit {
        path: PathBuf,
        /// Variables of the model that the file lacks.
        missing: Vec<String>,
        /// Tensors of the file that the model lacks.
        unexpected: Vec<String>,
        /// Tensors of another shape or an incompatible dtype.
        different: Vec<Difference>,
    },
    /// No name matches.
    #[error(
        "not one tensor in {} has the name of a variable of the model: the file has {}; the model has {}",
        path.display(), listed(file), listed(model)
    )]
    NothingMatched {
        path: PathBuf,
        file: Vec<String>,
        /// The model's names, except those left out.
        model: Vec<String>,
    },
    /// libtorch could not convert or copy a tensor.
    #[error("failed to copy the tensor {name} to the model")]
    Tensor { name: String, source: TchError },
}

/// Why a file cannot be read as weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadFile {
    /// The system cannot read it.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is something else, or an unsupported kind of weights file.
    #[error("{0}")]
    Other(String),
    /// A pickle in it uses a name that weights do not need.
    #[error(
        "refuses to run {global}, which the file asks for: a pickle may run anything, and only tensors in plain containers are \
         read here; if you trust who made the file, open it in Python and save its state dict alone: \
         torch.save(model.state_dict(), \"weights.pth\")"
    )]
    Refused {
        /// The name in the file, shortened.
        global: String,
    },
    /// It violates its format, or is truncated.
    #[error("it is damaged or incomplete: {0}; fetch or make it again")]
    Damaged(String),
}

impl From<BadSnapshot> for BadFile {
    /// Describes what is wrong with the bytes of a safetensors file.
    fn from(bad: BadSnapshot) -> Self {
        match bad {
            BadSnapshot::Unreadable(error) => BadFile::Unreadable(error),
            BadSnapshot::Torn { has, wants } => {
                BadFile::Damaged(format!("it has {has} bytes where its header says {wants}"))
            }
            BadSnapshot::NotOurs(why) => BadFile::Damaged(why),
            other => BadFile::Other(other.to_string()),
        }
    }
}

impl From<PickleError> for BadFile {
    fn from(bad: PickleError) -> Self {
        match bad {
            PickleError::Refused(global) => BadFile::Refused { global },
            PickleError::Damaged(why) => BadFile::Damaged(why),
        }
    }
}

impl BadFile {
    pub(super) fn damaged(why: impl Into<String>) -> Self {
        BadFile::Damaged(why.into())
    }
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

fn differences(missing: &[String], unexpected: &[String], different: &[Difference]) -> String {
    let different: Vec<String> = different.iter().map(ToString::to_string).collect();
    let parts = [("the file lacks ", missing), ("only the file has ", unexpected), ("", &different)];
    let text = parts.iter().filter(|(_, names)| !names.is_empty());
    text.map(|(label, names)| format!("{label}{}", listed(names))).collect::<Vec<_>>().join("; ")
}
