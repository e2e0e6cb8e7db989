//! The destinations of one worker's output.

use std::path::PathBuf;

/// One of a worker's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The destinations of both streams of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Its standard output.
    pub stdout: StreamPlan,
    /// Its standard error.
    pub stderr: StreamPlan,
}

/// The destinations of one stream. If a stream only goes to a file (torchrun's `--redirects`), the worker writes the
/// file directly, so that nothing is lost if the agent dies; file and console are its `--tee`. With neither, only the
/// last lines are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamPlan {
    /// Show it on the agent's stream of the same kind.
    pub console: bool,
    /// The worker inherits the agent's own stream, a terminal. Then all other fields are ignored, and its last lines are
    /// unknown.
    pub inherit: bool,
    /// Write it to this file, in an existing folder.
    pub file: Option<PathBuf>,
    /// The prefix of each line on the console and in the filtered file; never in `file`.
    pub prefix: Prefix,
    /// Lines that contain one of these are also written to `filtered`.
    pub filters: Vec<String>,
    /// One file for all workers of a node: torchrun's `filtered_stdout.log` and `filtered_stderr.log`.
    pub filtered: Option<PathBuf>,
}

/// The prefix of a worker's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    /// Nothing.
    #[default]
    Never,
    /// This text.
    Always(String),
}

impl Plan {
    /// Returns true if both streams only go to the console.
    pub(super) fn is_console_alone(&self) -> bool {
        let shown = |plan: &StreamPlan| plan.console && !plan.inherit && plan.file.is_none();
        shown(&self.stdout) && shown(&self.stderr)
    }

    /// Returns true if the worker printed its errors to a terminal that it has inherited.
    pub(super) fn is_unread(&self) -> bool {
        self.stderr.inherit
    }
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
    /// Returns true if lines must be checked against filters.
    pub(super) fn is_filtered(&self) -> bool {
        self.filtered.is_some() && !self.filters.is_empty()
    }

    /// Returns true if the worker can write the file directly.
    pub(super) fn is_direct(&self) -> bool {
        self.file.is_some() && !self.console && !self.is_filtered()
    }
}

/// How the console shows an incomplete line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenLines {
    /// Not at all.
    Hidden,
    /// In place, when the worker pauses.
    InPlace,
    /// As lines of their own, every half minute.
    Regularly,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_writes_a_file_directly_only_if_it_is_the_only_destination() {
        let file = StreamPlan { file: Some("x".into()), ..StreamPlan::default() };
        let filters = StreamPlan { filters: vec!["a".into()], ..file.clone() };
        assert!(file.is_direct() && filters.is_direct());
        assert!(!StreamPlan { console: true, ..file }.is_direct());
        assert!(!StreamPlan { filtered: Some("y".into()), ..filters }.is_direct());
        assert!(!StreamPlan::default().is_direct());
    }
}
