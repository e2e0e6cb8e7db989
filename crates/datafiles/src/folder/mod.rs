//! Folders of pictures, one for each class, as torchvision's `ImageFolder` takes them.

mod splits;
mod walk;

use std::fmt;
use std::path::PathBuf;

pub use splits::SplitFolders;
pub use walk::{Found, walk};

/// A picture.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its path.
    pub path: PathBuf,
    /// Its class's number.
    pub class: usize,
    /// The file's length when the folder was opened.
    pub bytes: u64,
}

/// A file or folder that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its path.
    pub path: PathBuf,
    /// The reason.
    pub why: Why,
}

/// Why a file or folder is not a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Why {
    /// Its name begins with a dot.
    Hidden,
    /// A file next to the class folders.
    OutsideOfClasses,
    /// Its name has the extension of a picture format that torchvision reads but this crate does not.
    OtherFormat,
    /// Its name does not have a picture's extension.
    NotAPicture,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Hidden => "with a hidden name",
            Why::OutsideOfClasses => "next to the class folders",
            Why::OtherFormat => "of a format that is not read here",
            Why::NotAPicture => "without a picture's name",
        })
    }
}
