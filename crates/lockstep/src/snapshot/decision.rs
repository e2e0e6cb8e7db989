//! The decision of the rank that reads a snapshot; it is sent to every rank, followed by the snapshot itself.

use serde::{Deserialize, Serialize};

/// The reader's decision.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Decision {
    /// All ranks load this file (shown path, length); its bytes follow.
    Resume(String, usize),
    /// The file is bad: try the next. If it has another schema, the message for the case that no other file is good.
    Next(Option<String>),
    /// No rank trains.
    Refuse(String),
}
