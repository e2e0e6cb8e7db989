//! Why the flags do not make a job.

use super::given::Given;
use super::program::ProgramError;

/// Why the flags do not make a job. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is of another kind than the flag takes: torchrun ends with 2.
    #[error("{given}: expected {expected}")]
    NotOfType {
        /// The flag and its text.
        given: Given,
        /// What would do.
        expected: &'static str,
    },
    /// The text cannot be meant: torchrun ends with 1.
    #[error("{given}: {why}")]
    NotAllowed {
        /// The flag and its text.
        given: Given,
        /// What is wrong, and what would do.
        why: String,
    },
    /// Flags contradict each other.
    #[error("{0}")]
    Clash(String),
    /// There is no such program, or nothing to run it with.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl ConfigError {
    /// Whether the command line itself is wrong, as its parser would say (exit code 2), rather than what it asks for (1).
    pub fn is_usage(&self) -> bool {
        matches!(self, ConfigError::NotOfType { .. })
    }

    pub(super) fn not_allowed(given: &Given, why: impl Into<String>) -> Self {
        ConfigError::NotAllowed { given: given.clone(), why: why.into() }
    }
}
