//! What a worker is started with.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;

use super::{ProgramError, find_program};

/// A variable's name with its value, or without one to remove it.
pub(super) type Variable = (OsString, Option<OsString>);

/// Changes the environment of a command.
pub(super) fn set_variables(command: &mut Command, env: &[Variable]) {
    for (name, value) in env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// A program, its arguments and its environment.
#[derive(Debug)]
pub struct Spec {
    /// A path, or a name that is searched for in the worker's PATH.
    pub program: OsString,
    /// Its arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Changes to the agent's own environment, in order: a value is set, a name with `None` is removed.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// The folder in which it starts; the agent's own if `None`. If it is set, `program` must not be a relative path.
    pub folder: Option<PathBuf>,
    /// Standard input.
    pub stdin: Stdin,
    /// Standard output.
    pub stdout: Sink,
    /// Standard error.
    pub stderr: Sink,
}

impl Spec {
    /// The file that will be executed. Call it before any worker is started, so that a wrong program is one clear
    /// error.
    ///
    /// # Errors
    /// See [`find_program`].
    pub fn find_program(&self) -> Result<PathBuf, ProgramError> {
        find_program(&self.program, self.path().as_deref())
    }

    /// The value of PATH for the worker: its own if it has one, otherwise the agent's.
    pub(super) fn path(&self) -> Option<OsString> {
        let given = self.env.iter().rev().find(|(name, _)| name == "PATH");
        given.map_or_else(|| std::env::var_os("PATH"), |(_, value)| value.clone())
    }
}

/// A worker's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The agent's own, as for torchrun's workers.
    Inherit,
    /// Empty.
    Null,
}

/// The destination of one of a worker's output streams.
#[derive(Debug)]
pub enum Sink {
    /// The agent's own stream.
    Inherit,
    /// Discarded.
    Null,
    /// This open file or pipe.
    Fd(OwnedFd),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_the_last_path_that_the_worker_is_given() {
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
