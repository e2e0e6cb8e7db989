//! Errors of the command line's flags.

use super::given::Given;
use super::program::ProgramError;

/// Why the flags do not describe a job. Nothing has been started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text has the wrong type: torchrun exits with 2.
    #[error("{given}: expected {expected}")]
    NotOfType {
        /// The flag and its text.
        given: Given,
        /// What the flag accepts.
        expected: &'static str,
    },
    /// The text has an invalid value: torchrun exits with 1.
    #[error("{given}: {why}")]
    NotAllowed {
        /// The flag and its text.
        given: Given,
        /// What is wrong, and what the flag accepts.
        why: String,
    },
    /// Flags contradict each other.
    #[error("{0}")]
    Clash(String),
    /// The program does not exist, or nothing can run it.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl ConfigError {
    /// Returns true if the command line itself is malformed (exit code 2), false if its values are invalid (1).
    pub fn is_usage(&self) -> bool {
        matches!(self, ConfigError::NotOfType { .. })
    }

    pub(super) fn not_allowed(given: &Given, why: impl Into<String>) -> Self {
        ConfigError::NotAllowed { given: given.clone(), why: why.into() }
    }
}
