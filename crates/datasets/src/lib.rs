//! Data sets without tensors. Their files: finds and checks them, and explains what is wrong and how to fix it. And what is done to each
//! sample, pixel or token: orders, random numbers, drawn digits, tokens, rows of a batch.
//!
//! Does not link libtorch, so that the command can check files, too, and is compiled with optimization, which `lockstep` is not.
//! `lockstep` and `lockstep-vision` build data sets from it.

pub mod cifar;
pub mod digits;
pub mod folder;
pub mod idx;
pub mod mnist;
pub mod order;
pub mod rng;
pub mod rows;
pub mod text;
pub mod tokenizer;

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::path::Path;

use lockstep_contract::foreign;

pub use mnist::Split;

/// A file or folder that is not as expected. Its message reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub struct DataError {
    /// The operation, such as `read` or `find the training pictures in`. Boxed, like the path, so that a `Result` stays small.
    pub operation: Box<str>,
    /// The file or folder; `None` for bytes that do not come from a file.
    pub path: Option<Box<Path>>,
    /// What should be there; empty if the operation says it.
    pub expected: String,
    /// What is there instead; empty if unknown.
    pub found: String,
    /// What to do.
    pub hint: String,
    /// The error of the system or of a decoder.
    pub source: Option<io::Error>,
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if let Some(path) = &self.path {
            write!(f, " {}", foreign::path(path))?;
        }
        let parts = [("expected ", &self.expected), ("found ", &self.found)];
        let parts = parts.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name}{value}"));
        let parts = [parts.collect::<Vec<_>>().join(", "), self.hint.clone()];
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        write!(f, ": {}", parts.join("; "))
    }
}

impl DataError {
    /// An error of this operation without any details yet.
    pub fn new(operation: impl Into<String>) -> Self {
        let (expected, found, hint) = (String::new(), String::new(), String::new());
        DataError { operation: operation.into().into_boxed_str(), path: None, expected, found, hint, source: None }
    }

    /// The file or folder cannot be opened, listed or read.
    pub fn unreadable(path: &Path, source: io::Error) -> Self {
        Self::new("read").at(path).hint("check the path, and that this user may read it").because(source)
    }

    /// The file cannot be written.
    pub fn unwritable(path: &Path, source: io::Error) -> Self {
        let hint = "check that the folder exists, may be written and has room";
        Self::new("write").at(path).hint(hint).because(source)
    }

    pub fn at(mut self, path: &Path) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Says what should be there.
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = expected.into();
        self
    }

    /// Says what is there instead.
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.found = found.into();
        self
    }

    /// Says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Names the cause.
    pub fn because(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }
}

/// Describes something that is not a regular file.
pub fn kind_of(about: &Metadata) -> &'static str {
    if about.is_dir() { "a folder" } else { "a pipe, socket or device" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_was_expected_what_was_found_and_what_to_do() {
        let error = DataError::new("read").at(Path::new("/a")).expected("an IDX file").found("a folder");
        assert_eq!(error.to_string(), "read /a: expected an IDX file, found a folder");
        assert_eq!(error.hint("name a file").to_string(), "read /a: expected an IDX file, found a folder; name a file");
        let error = DataError::new("find classes in").at(Path::new("/a")).found("nothing").hint("look elsewhere");
        assert_eq!(error.to_string(), "find classes in /a: found nothing; look elsewhere");
        let error = DataError::unwritable(Path::new("/a"), io::ErrorKind::NotFound.into());
        assert_eq!(error.to_string(), "write /a: check that the folder exists, may be written and has room");
        assert!(std::error::Error::source(&error).is_some());
    }
}
