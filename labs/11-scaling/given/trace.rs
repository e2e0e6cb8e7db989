//! Reads a trace in the format of Chrome's tracing, as torch.profiler and Perfetto have it. You do not change this file.

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What a rank did from `begin` to `end`, in microseconds from the start of the trace. All ranks have the same clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub rank: usize,
    pub kind: Kind,
    pub begin: f64,
    pub end: f64,
}

/// What it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The training thread computes.
    Compute,
    /// An all-reduce of a bucket is under way: from the rank's call to the end, which is the same on all ranks.
    Communication,
    /// The loader's thread reads a batch ahead.
    Loading,
}

/// What a trace shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// For each rank, microseconds in which it communicates and does not compute.
    pub exposed: Vec<f64>,
    /// Of all ranks' time with communication, the percentage that is hidden behind computation.
    pub overlap: f64,
    /// The rank for which the others wait.
    pub straggler: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    trace_events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    /// `X` is a complete event with its duration; `M` names a process.
    ph: String,
    #[serde(default)]
    cat: String,
    /// The rank.
    pid: usize,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
}

/// The spans of a trace, in its order: those of a rank may overlap, and are not sorted.
pub fn spans(json: &str) -> Result<Vec<Span>> {
    let trace: Trace = serde_json::from_str(json)?;
    let span = |event: Event| {
        let kind = match event.cat.as_str() {
            "compute" => Kind::Compute,
            "communication" => Kind::Communication,
            "loading" => Kind::Loading,
            _ => return None,
        };
        Some(Span { rank: event.pid, kind, begin: event.ts, end: event.ts + event.dur })
    };
    Ok(trace.trace_events.into_iter().filter(|event| event.ph == "X").filter_map(span).collect())
}
