//! A process's environment as a value: it need not be that of this process. There is nothing to change here.

use std::collections::BTreeMap;

/// Variables by their names.
pub struct Variables(pub BTreeMap<String, String>);

impl Variables {
    /// The value of a variable; `None` if it is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}
