//! PyTorch's flight recorder: the last calls of each rank, in files that its watchdog writes when a collective's deadline has passed
//! (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp). They show which rank is not in the call in which the others wait.
//!
//! [`pickle`] reads the files' form; the form of `_dump_fr_trace_json` is read, too.

mod astray;
mod pickle;
mod recording;

pub(super) use astray::{Astray, astray};
pub use recording::Recordings;
pub(super) use recording::read;
