//! A scheduler's job as a process on one of its nodes sees it. You do not change this file.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Variables and files, by name.
pub struct Job {
    /// The environment.
    pub variables: BTreeMap<String, String>,
    /// The texts of files, by path.
    pub files: BTreeMap<String, String>,
}

impl Job {
    /// The value of a variable; `None` if it is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The text of a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn read(&self, path: &str) -> Result<&str> {
        self.files.get(path).map(String::as_str).with_context(|| format!("there is no file {path}"))
    }
}
