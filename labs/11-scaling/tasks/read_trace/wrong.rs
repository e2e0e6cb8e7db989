//! Answers to `read_trace`: wrong ones, and an unusual right one.

use anyhow::Result;

use crate::training::{Kind, Reading, Span, spans};

fn covered(spans: &[Span], of: impl Fn(&Span) -> bool) -> f64 {
    let mut spans: Vec<&Span> = spans.iter().filter(|span| of(span)).collect();
    spans.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    let (mut length, mut until) = (0.0, f64::NEG_INFINITY);
    for span in spans {
        length += (span.end - span.begin.max(until)).max(0.0);
        until = until.max(span.end);
    }
    length
}

/// The reading, with `busy` for the kinds that hide communication.
fn reading(spans: &[Span], busy: fn(Kind) -> bool) -> Reading {
    let ranks = spans.iter().map(|span| span.rank + 1).max().unwrap_or(0);
    let (mut exposed, mut communicates) = (Vec::new(), 0.0);
    for rank in 0..ranks {
        let of = |kinds: &dyn Fn(Kind) -> bool| covered(spans, |span| span.rank == rank && kinds(span.kind));
        exposed.push(of(&|kind| busy(kind) || kind == Kind::Communication) - of(&|kind| busy(kind)));
        communicates += of(&|kind| kind == Kind::Communication);
    }
    let overlap = 100.0 * (1.0 - exposed.iter().sum::<f64>() / communicates);
    let calls = |rank: &usize| {
        let of = spans.iter().filter(|span| span.rank == *rank && span.kind == Kind::Communication);
        of.map(|span| span.begin).fold(0.0, f64::max)
    };
    let straggler = (0..ranks).max_by(|a, b| calls(a).total_cmp(&calls(b))).unwrap_or(0);
    Reading { exposed, overlap, straggler }
}

fn computes(kind: Kind) -> bool {
    kind == Kind::Compute
}

/// Treats all communication as exposed.
pub fn all_of_it(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let right = reading(&spans, computes);
    let all = |rank: usize| covered(&spans, |span| span.rank == rank && span.kind == Kind::Communication);
    Ok(Reading { exposed: (0..right.exposed.len()).map(all).collect(), ..right })
}

/// Counts a moment twice in which two buckets are in progress.
pub fn each_bucket(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let right = reading(&spans, computes);
    let exposed = |rank: usize| {
        let own: Vec<Span> = spans.iter().filter(|span| span.rank == rank).copied().collect();
        let buckets = own.iter().filter(|span| span.kind == Kind::Communication);
        let alone = |bucket: &Span| {
            let with = |span: &Span| span == bucket || computes(span.kind);
            covered(&own, with) - covered(&own, |span| computes(span.kind))
        };
        buckets.map(alone).sum()
    };
    Ok(Reading { exposed: (0..right.exposed.len()).map(exposed).collect(), ..right })
}

/// Lets the loader's thread hide communication.
pub fn any_thread(json: &str) -> Result<Reading> {
    Ok(reading(&spans(json)?, |kind| kind != Kind::Communication))
}

/// Lets other ranks' computation hide communication.
pub fn any_rank(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let right = reading(&spans, computes);
    let exposed = |rank: usize| {
        let with =
            covered(&spans, |span| computes(span.kind) || (span.rank == rank && span.kind == Kind::Communication));
        with - covered(&spans, |span| computes(span.kind))
    };
    Ok(Reading { exposed: (0..right.exposed.len()).map(exposed).collect(), ..right })
}

/// Blames the rank that communicates for longest.
pub fn longest(json: &str) -> Result<Reading> {
    let right = reading(&spans(json)?, computes);
    let straggler = (0..right.exposed.len()).max_by(|a, b| right.exposed[*a].total_cmp(&right.exposed[*b]));
    Ok(Reading { straggler: straggler.unwrap_or(0), ..right })
}

/// Blames the rank that computes for longest.
pub fn most_compute(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let right = reading(&spans, computes);
    let length = |rank: &usize| covered(&spans, |span| span.rank == *rank && computes(span.kind));
    let straggler = (0..right.exposed.len()).max_by(|a, b| length(a).total_cmp(&length(b)));
    Ok(Reading { straggler: straggler.unwrap_or(0), ..right })
}

/// Returns what is exposed as the overlap.
pub fn other_part(json: &str) -> Result<Reading> {
    let right = reading(&spans(json)?, computes);
    Ok(Reading { overlap: 100.0 - right.overlap, ..right })
}

/// Averages the ranks' percentages.
pub fn mean_of_percentages(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let right = reading(&spans, computes);
    let all = |rank: usize| covered(&spans, |span| span.rank == rank && span.kind == Kind::Communication);
    let parts: Vec<f64> = right.exposed.iter().enumerate().map(|(rank, exposed)| exposed / all(rank)).collect();
    Ok(Reading { overlap: 100.0 * (1.0 - parts.iter().sum::<f64>() / parts.len() as f64), ..right })
}

/// Adds up the lengths of all buckets.
pub fn lengths_of_buckets(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let right = reading(&spans, computes);
    let buckets = spans.iter().filter(|span| span.kind == Kind::Communication);
    let each: f64 = buckets.map(|span| span.end - span.begin).sum();
    Ok(Reading { overlap: 100.0 * (1.0 - right.exposed.iter().sum::<f64>() / each), ..right })
}

/// Returns a part of 1, not a percentage.
pub fn part_of_one(json: &str) -> Result<Reading> {
    let right = reading(&spans(json)?, computes);
    Ok(Reading { overlap: right.overlap / 100.0, ..right })
}

/// Blames the rank with the least exposed communication.
pub fn least_exposed(json: &str) -> Result<Reading> {
    let right = reading(&spans(json)?, computes);
    let straggler = (0..right.exposed.len()).min_by(|a, b| right.exposed[*a].total_cmp(&right.exposed[*b]));
    Ok(Reading { straggler: straggler.unwrap_or(0), ..right })
}

/// Blames the rank that calls its first all-reduce last.
pub fn first_call(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let right = reading(&spans, computes);
    let first = |rank: &usize| {
        let of = spans.iter().filter(|span| span.rank == *rank && span.kind == Kind::Communication);
        of.map(|span| span.begin).fold(f64::INFINITY, f64::min)
    };
    let straggler = (0..right.exposed.len()).max_by(|a, b| first(a).total_cmp(&first(b)));
    Ok(Reading { straggler: straggler.unwrap_or(0), ..right })
}

/// Right: walks through all moments at which something begins or ends; the straggler is the one that waits for the shortest.
pub fn moments(json: &str) -> Result<Reading> {
    let spans = spans(json)?;
    let ranks = spans.iter().map(|span| span.rank + 1).max().unwrap_or(0);
    let mut moments: Vec<f64> = spans.iter().flat_map(|span| [span.begin, span.end]).collect();
    moments.sort_by(f64::total_cmp);
    let (mut exposed, mut hidden) = (vec![0.0; ranks], vec![0.0; ranks]);
    for pair in moments.windows(2) {
        let middle = (pair[0] + pair[1]) / 2.0;
        for rank in 0..ranks {
            let does = |kind| {
                spans
                    .iter()
                    .any(|span| (span.rank, span.kind) == (rank, kind) && span.begin < middle && middle < span.end)
            };
            match (does(Kind::Communication), does(Kind::Compute)) {
                (true, true) => hidden[rank] += pair[1] - pair[0],
                (true, false) => exposed[rank] += pair[1] - pair[0],
                _ => {}
            }
        }
    }
    let length = |rank: usize| hidden[rank] + exposed[rank];
    let overlap = 100.0 * hidden.iter().sum::<f64>() / (0..ranks).map(length).sum::<f64>();
    let straggler = (0..ranks).min_by(|a, b| length(*a).total_cmp(&length(*b))).unwrap_or(0);
    Ok(Reading { exposed, overlap, straggler })
}
