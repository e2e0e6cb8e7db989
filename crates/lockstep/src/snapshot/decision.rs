//! What the rank that reads a snapshot decides about it; it goes to every rank, and then the snapshot itself.

use serde::{Deserialize, Serialize};

/// What the reader decided.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Decision {
    /// All resume from the file that is shown so, of so many bytes, which follow.
    Resume(String, usize),
    /// It is bad: try the next. If it is one of another schema, what to say if no other is good.
    Next(Option<String>),
    /// Nobody trains.
    Refuse(String),
}
