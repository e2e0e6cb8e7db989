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
    // <answer>
    //~ todo!("for each rank, find the time in which it communicates and does not compute")
    let of = |rank: usize, kind: Kind| spans.iter().filter(move |span| span.rank == rank && span.kind == kind);
    // The length of what these spans cover, each moment once.
    let covered = |spans: Vec<&Span>| {
        let mut spans: Vec<(f64, f64)> = spans.iter().map(|span| (span.begin, span.end)).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut length, mut until) = (0.0, f64::NEG_INFINITY);
        for (begin, end) in spans {
            length += (end - begin.max(until)).max(0.0);
            until = until.max(end);
        }
        length
    };
    let (mut exposed, mut communicates) = (Vec::new(), 0.0);
    for rank in 0..ranks {
        let computes = covered(of(rank, Kind::Compute).collect());
        let both = covered(of(rank, Kind::Compute).chain(of(rank, Kind::Communication)).collect());
        communicates += covered(of(rank, Kind::Communication).collect());
        exposed.push(both - computes);
    }
    let hidden = communicates - exposed.iter().sum::<f64>();
    // The last to call the last all-reduce.
    let last_call = |rank: &usize| of(*rank, Kind::Communication).map(|span| span.begin).fold(0.0, f64::max);
    let straggler = (0..ranks).max_by(|a, b| last_call(a).total_cmp(&last_call(b))).unwrap_or(0);
    Ok(Reading { exposed, overlap: 100.0 * hidden / communicates, straggler })
    // </answer>
}
