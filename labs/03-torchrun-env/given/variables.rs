//! The environment of a process as a value, which need not be the environment of this process. You do not change this file.

use std::collections::BTreeMap;

/// Variables by name.
pub struct Variables(pub BTreeMap<String, String>);

impl Variables {
    /// The value of a variable; `None` if it is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}
