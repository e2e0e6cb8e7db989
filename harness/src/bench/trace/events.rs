//! A timeline in the Trace Event Format, which chrome://tracing and Perfetto read, as torch.profiler writes it: a process for each rank,
//! a thread for its training, and one for each bucket.
//!
//! Source: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.

use anyhow::Context;
use lockstep_contract::bench::{TraceAnswer, TracedStep};
use serde_json::{Value, json};

use super::parts;

/// The thread of training; a bucket's is one more than its number.
const TRAINING: usize = 0;

/// The file.
pub(super) fn json(timeline: &TraceAnswer) -> anyhow::Result<String> {
    let begun = timeline.ranks.iter().flatten().map(|step| step.begun).fold(f64::INFINITY, f64::min);
    let events: Vec<Value> = timeline
        .ranks
        .iter()
        .enumerate()
        .flat_map(|(rank, steps)| {
            let steps_events =
                steps.iter().enumerate().flat_map(move |(number, step)| of_step(rank, number, step, begun));
            names(rank, steps).into_iter().chain(steps_events)
        })
        .collect();
    let file = json!({"displayTimeUnit": "ms", "traceEvents": events});
    Ok(serde_json::to_string(&file).context("cannot write the trace as JSON")? + "\n")
}

/// The names of a rank's threads.
fn names(rank: usize, steps: &[TracedStep]) -> Vec<Value> {
    let name = |what: &str, thread: usize, name: String| json!({"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}});
    let buckets = steps.iter().flat_map(|step| &step.buckets).map(|bucket| bucket.bucket + 1).max().unwrap_or(0);
    let threads = (0..buckets).map(|bucket| name("thread_name", bucket + 1, format!("all-reduce of bucket {bucket}")));
    [name("process_name", TRAINING, format!("rank {rank}")), name("thread_name", TRAINING, "training".to_owned())]
        .into_iter()
        .chain(threads)
        .collect()
}

fn of_step(rank: usize, number: usize, step: &TracedStep, begun: f64) -> Vec<Value> {
    let event = |name: String, thread: usize, from: f64, to: f64, args: Value| json!({"ph": "X", "name": name, "pid": rank, "tid": thread, "ts": from - begun, "dur": to - from, "args": args});
    let whole = event(format!("step {number}"), TRAINING, step.begun, step.ended, json!({}));
    let parts = parts(step)
        .into_iter()
        .map(|(name, from, to)| event(name.to_owned(), TRAINING, from, to, json!({"step": number})));
    let buckets = step.buckets.iter().map(|bucket| {
        let args = json!({"step": number, "bytes": bucket.bytes});
        event(format!("bucket {}", bucket.bucket), bucket.bucket + 1, bucket.started, bucket.ended, args)
    });
    std::iter::once(whole).chain(parts).chain(buckets).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::sample;
    use super::*;

    #[test]
    fn every_part_and_bucket_of_every_rank_is_an_event_with_its_time() {
        let file: Value = serde_json::from_str(&json(&sample()).unwrap()).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!((complete.len(), events.len()), (2 * (1 + 5 + 2), 2 * (8 + 2 + 2)));
        let found = complete.iter().find(|event| event["pid"] == 1 && event["name"] == "bucket 1").unwrap();
        let expected = json!({"ph": "X", "name": "bucket 1", "pid": 1, "tid": 2, "ts": 8000.0, "dur": 3000.0,
            "args": {"step": 0, "bytes": 4 << 20}});
        assert_eq!(**found, expected);
        let parts: f64 = complete
            .iter()
            .filter(|event| event["pid"] == 0 && event["tid"] == 0)
            .filter_map(|event| event["dur"].as_f64())
            .sum();
        // The step, and its parts, which fill it.
        assert_eq!(parts, 2.0 * 13_000.0);
    }
}
