//! What a worker is to be started with.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::{ProgramError, find_program};

/// A program, its arguments, and what it finds at its start.
#[derive(Debug)]
pub struct Spec {
    /// A path, or a name that is looked for in the worker's PATH.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Changes to the agent's own environment, in order: a value is set, `None` is removed.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// The folder that it starts in; the agent's own if `None`. Then `program` must not be a relative path.
    pub folder: Option<PathBuf>,
    /// Standard input.
    pub stdin: Stdin,
    /// Standard output.
    pub stdout: Sink,
    /// Standard error.
    pub stderr: Sink,
}

impl Spec {
    /// The file that will be executed. To be asked before any worker is started: then a wrong program is one clear error.
    ///
    /// # Errors
    /// See [`find_program`].
    pub fn find_program(&self) -> Result<PathBuf, ProgramError> {
        find_program(&self.program, self.path().as_deref())
    }

    /// The value of PATH that the worker will see: its own if it gets one, else the agent's.
    fn path(&self) -> Option<OsString> {
        let given = self.env.iter().rev().find(|(name, _)| name == "PATH");
        given.map_or_else(|| std::env::var_os("PATH"), |(_, value)| value.clone())
    }
}

/// What a worker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The agent's own standard input, as torchrun's workers do.
    Inherit,
    /// Nothing.
    Null,
}

/// Where one of a worker's streams goes.
#[derive(Debug)]
pub enum Sink {
    /// Where the agent's own goes.
    Inherit,
    /// Nowhere.
    Null,
    /// To this open file or pipe.
    Fd(OwnedFd),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_the_last_path_that_the_worker_is_given() {
        let path = |env: &[Option<&str>]| {
            let env = env.iter().map(|value| ("PATH".into(), value.map(OsString::from))).collect();
            let (stdin, stdout, stderr) = (Stdin::Null, Sink::Null, Sink::Null);
            Spec { program: "x".into(), args: vec![], env, folder: None, stdin, stdout, stderr }.path()
        };
        assert_eq!(path(&[Some("/a"), Some("/b")]), Some("/b".into()));
        assert_eq!(path(&[Some("/a"), None]), None);
        assert_eq!(path(&[]), std::env::var_os("PATH"));
    }
}
