//! What rank 0 decides about a resume; it goes to every rank, and then the snapshot itself.

use serde::{Deserialize, Serialize};

/// What rank 0 decided.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Decision {
    /// There is nothing to resume from.
    Anew,
    /// All resume from the file that is shown so, of so many bytes, which follow.
    Resume(String, usize),
    /// Nobody trains.
    Refuse(String),
}
