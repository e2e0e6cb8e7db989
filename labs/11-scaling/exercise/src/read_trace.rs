//! Task 9: read a trace.
//!
//! A trace shows what each rank did when. Communication that runs while the rank computes costs nothing; the rest is *exposed*.
//! Two buckets may be sent at the same time. An all-reduce ends at the same moment on all ranks, so its length on a rank says how
//! early that rank came.

use anyhow::Result;

use crate::training::{Kind, Reading, Span, spans};

/// What the trace of one step shows.
pub fn read_trace(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let ranks = spans.iter().map(|span| span.rank + 1).max().unwrap_or(0);
    todo!("for each rank, find the time in which it communicates and does not compute")
}
