//! Where the output of one worker goes.

use std::path::PathBuf;

/// One of a worker's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Where both streams of a worker go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Its standard output.
    pub stdout: StreamPlan,
    /// Its standard error.
    pub stderr: StreamPlan,
}

/// Where one stream goes. A file alone (torchrun's `--redirects`) is written by the worker itself, so that nothing is lost
/// whatever becomes of the agent; file and console are its `--tee`. With neither, only the last lines are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamPlan {
    /// Shown on the agent's stream of the same kind.
    pub console: bool,
    /// The worker has the agent's own stream, byte for byte and terminal for terminal; then nothing else here counts, and its
    /// last lines are not known.
    pub inherit: bool,
    /// Written to this file, in a folder that exists.
    pub file: Option<PathBuf>,
    /// What stands before each line on the console and in the filtered file; never in `file`.
    pub prefix: Prefix,
    /// Lines that hold any of these are also written to `filtered`.
    pub filters: Vec<String>,
    /// One file for all workers of a node: torchrun's `filtered_stdout.log` and `filtered_stderr.log`.
    pub filtered: Option<PathBuf>,
}

/// What stands before the lines of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    /// Nothing.
    #[default]
    Never,
    /// This text.
    Always(String),
}

impl Prefix {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Prefix::Never => b"",
            Prefix::Always(text) => text.as_bytes(),
        }
    }
}

impl StreamPlan {
    /// Whether lines are to be looked at for filters.
    pub(super) fn is_filtered(&self) -> bool {
        self.filtered.is_some() && !self.filters.is_empty()
    }

    /// Whether the worker can write to the file itself.
    pub(super) fn is_direct(&self) -> bool {
        self.file.is_some() && !self.console && !self.is_filtered()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_alone_is_written_by_the_worker() {
        let file = StreamPlan { file: Some("x".into()), ..StreamPlan::default() };
        let filters = StreamPlan { filters: vec!["a".into()], ..file.clone() };
        assert!(file.is_direct() && filters.is_direct());
        assert!(!StreamPlan { console: true, ..file }.is_direct());
        assert!(!StreamPlan { filtered: Some("y".into()), ..filters }.is_direct());
        assert!(!StreamPlan::default().is_direct());
    }
}
