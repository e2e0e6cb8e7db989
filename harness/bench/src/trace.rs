//! `lockstep bench trace`: the timeline of a few training steps under DDP on every rank: forward, backward, each bucket's all-reduce, waiting,
//! optimizer; as a table, as a trace for chrome://tracing and Perfetto, and as a picture of the last step.
//!
//! Ranks note the time where a part begins, and a communication hook where the all-reduce of a bucket begins and ends. When the last bucket
//! begins, all gradients are there: from then on a rank waits.
//!
//! The trace is in the Trace Event Format, as torch.profiler writes it: a process for each rank, a thread for its training, and one for each
//! bucket. Source: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockstep_plot::{Axis, COLOURS, MARGIN, WIDTH, column, round_up, stacked, svg_image, title};
use lockstep_process::Signals;
use lockstep_rank_messages::bench::{Model, Order, StepOrder, TraceAnswer, TracedStep};
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::ddp::model;
use crate::exit::Code;
use crate::machine::{MachineState, rank_labels};
use crate::ranks::{Program, Ranks};
use crate::report::{Form, HostInfo, Screen, Table, Target, count, numbers_table, wrapped};
use crate::results::Unit;
use crate::statistics::Spread;

/// Show a step's timeline on every rank: forward, backward, each bucket's all-reduce, waiting, optimizer
#[derive(Args)]
pub(crate) struct TraceOptions {
    /// The model
    #[arg(long, value_name = "NAME", default_value = "mlp", value_parser = model())]
    model: Model,
    /// Ranks; each is a process of one thread on this machine
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: u16,
    /// Samples in a rank's batch
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Steps; the picture shows the last
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Write the timeline: .json for chrome://tracing and ui.perfetto.dev, or on stdout (-), or .svg; may be repeated
    #[arg(long = "report", value_name = "FILE", value_parser = |name: &str| Target::parse(name, FORMS))]
    reports: Vec<Target>,
    /// Time limit of each wait for the ranks, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// The forms of a timeline: the Trace Event Format, and the picture.
const FORMS: &[Form] = &[Form::Json, Form::Svg];

impl TraceOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let screen = Screen::new(self.reports.iter().any(Target::is_stdout));
        let (ranks, machine) = (usize::from(self.ranks), HostInfo::here());
        let signals = Signals::listen().context("cannot listen for signals")?;
        let state = MachineState::now();
        screen.line(format!("{}\n{}", machine.summary(), state.summary()));
        let notes = state.labels(machine.cores).into_iter().chain(rank_labels(ranks, machine.cores));
        notes.for_each(|note| screen.line(format!("note: {note}")));
        let job = Ranks::new(&Program::own()?, ranks, Duration::from_secs(self.timeout), &signals);
        let order = StepOrder { model: self.model, batch: self.batch, steps: self.steps };
        let timeline: TraceAnswer = job.ask(&Order::Trace(order))?;
        let title = format!(
            "{} on {}, {} a rank",
            self.model.name(),
            count(ranks, "rank"),
            count(self.batch as usize, "sample")
        );
        let table = table(&timeline, &title);
        screen.line(format!("\n{}\n{}", table.title, numbers_table(&table, screen.style())));
        let steps = count(self.steps as usize, "step");
        let words = format!(
            "median of {steps}; waits: from the start of the last bucket to the end of backward; hidden: the part of the all-reduces' time \
             before that; last: in how many steps the others waited for its gradients"
        );
        screen.line(wrapped(&words, screen.style().width));
        for target in &self.reports {
            let text = if target.form == Form::Svg { picture(&timeline, &title) } else { json(&timeline)? };
            target.save("the timeline", &text)?;
        }
        Ok(Code::Success)
    }
}

/// A row for each rank.
fn table(timeline: &TraceAnswer, title: &str) -> Table {
    let headings = ["rank", "step", "forward", "backward", "waits", "optimizer", "all-reduces", "hidden", "last"];
    let rows = timeline.ranks.iter().enumerate().map(|(rank, steps)| {
        let time = |of: fn(&TracedStep) -> f64| Unit::Seconds.show(1e-6 * median(steps.iter().map(of)));
        let hidden = Unit::Share.show(median(steps.iter().map(hidden)));
        let parts = [
            time(|step| step.ended - step.begun),
            time(|step| step.backward - step.forward),
            time(|step| step.optimizer - step.backward),
            time(waits),
            time(|step| step.forward - step.begun + step.ended - step.optimizer),
            time(|step| length(&reducing(step, f64::INFINITY))),
        ];
        let last = format!("{}/{}", was_last(timeline, rank), steps.len());
        std::iter::once(rank.to_string()).chain(parts).chain([hidden, last]).collect()
    });
    Table { title: title.to_owned(), headings: headings.map(str::to_owned).into(), rows: rows.collect() }
}

/// In how many steps this rank's gradients were complete after those of all others: the others waited for it.
fn was_last(timeline: &TraceAnswer, rank: usize) -> usize {
    let ranks = &timeline.ranks;
    let complete = |rank: usize, step: usize| ranks[rank].get(step).and_then(complete);
    let latest = |step: &usize| {
        let all = (0..ranks.len()).filter_map(|rank| Some((rank, complete(rank, *step)?)));
        all.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(rank, _)| rank)
    };
    (0..ranks[rank].len()).filter(|step| latest(step) == Some(rank)).count()
}

/// When all gradients were there: the last bucket began.
fn complete(step: &TracedStep) -> Option<f64> {
    step.buckets.iter().map(|bucket| bucket.started).max_by(f64::total_cmp)
}

fn waits(step: &TracedStep) -> f64 {
    complete(step).map_or(0.0, |complete| step.optimizer - complete)
}

/// The part of the time of all-reduces in which the rank still computed gradients.
fn hidden(step: &TracedStep) -> f64 {
    let until = complete(step).unwrap_or(step.optimizer);
    length(&reducing(step, until)) / length(&reducing(step, f64::INFINITY))
}

/// The intervals before `until` in which buckets are reduced, in order and apart from each other.
fn reducing(step: &TracedStep, until: f64) -> Vec<(f64, f64)> {
    let mut all: Vec<_> = step.buckets.iter().map(|bucket| (bucket.started, bucket.ended.min(until))).collect();
    all.retain(|(from, to)| from < to);
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    all.into_iter().fold(Vec::new(), |mut apart: Vec<(f64, f64)>, (from, to)| {
        match apart.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => apart.push((from, to)),
        }
        apart
    })
}

/// The parts of the rank's own thread, in order: name, begin, end. Waiting is the end of the backward pass.
fn parts(step: &TracedStep) -> Vec<(&'static str, f64, f64)> {
    let complete = complete(step).unwrap_or(step.optimizer);
    vec![
        ("clear gradients", step.begun, step.forward),
        ("forward", step.forward, step.backward),
        ("backward", step.backward, complete),
        ("wait", complete, step.optimizer),
        ("optimizer", step.optimizer, step.ended),
    ]
}

fn length(intervals: &[(f64, f64)]) -> f64 {
    intervals.iter().map(|(from, to)| to - from).sum()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(&values.collect::<Vec<_>>()).map_or(0.0, |spread| spread.median)
}

#[cfg(test)]
mod testing {
    use lockstep_rank_messages::bench::TracedBucket;

    use super::*;

    /// Two ranks and one step, in microseconds: rank 1 is slower by 1 ms, and reduces two buckets.
    pub(crate) fn sample() -> TraceAnswer {
        let bucket = |bucket, bytes, started, ended| TracedBucket { bucket, bytes, started, ended };
        let step = |late: f64| TracedStep {
            begun: 1e15,
            forward: 1e15 + 100.0,
            backward: 1e15 + 3000.0,
            optimizer: 1e15 + 12_000.0,
            ended: 1e15 + 13_000.0,
            buckets: vec![
                bucket(0, 1 << 20, 1e15 + 5000.0 + late, 1e15 + 8000.0),
                bucket(1, 4 << 20, 1e15 + 7000.0 + late, 1e15 + 11_000.0),
            ],
        };
        TraceAnswer { ranks: vec![vec![step(0.0)], vec![step(1000.0)]] }
    }
}

/// The thread of training; a bucket's is one more than its number.
const TRAINING: usize = 0;

/// The file.
pub(crate) fn json(timeline: &TraceAnswer) -> anyhow::Result<String> {
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

/// In pixels: the words at the left, the title, a lane, the room below a rank, and the axis.
const WORDS: f64 = 110.0;
const TITLE: f64 = 40.0;
const LANE: f64 = 24.0;
const ROOM: f64 = 12.0;
const AXIS: f64 = 30.0;
/// Narrower boxes have no words in them, by pixels for each letter.
const LETTER: f64 = 7.5;
/// Of waiting.
const GREY: &str = "#b4bcc6";
/// Steps of the axis, about.
const TICKS: f64 = 8.0;

/// A file of its own.
pub(crate) fn picture(timeline: &TraceAnswer, of: &str) -> String {
    let steps: Vec<&TracedStep> = timeline.ranks.iter().filter_map(|steps| steps.last()).collect();
    let begun = steps.iter().map(|step| step.begun).fold(f64::INFINITY, f64::min);
    let ended = steps.iter().map(|step| step.ended).fold(0.0, f64::max);
    // Microseconds.
    let axis = Axis::linear((ended - begun).max(1.0), (MARGIN + WORDS, WIDTH - 2.0 * MARGIN));
    let at = |time: f64| axis.at(time - begun);
    let lanes_of = |step: &TracedStep| LANE * (1.0 + step.buckets.len() as f64) + ROOM;
    let height = TITLE + steps.iter().map(|step| lanes_of(step)).sum::<f64>() + AXIS;
    let tops = stacked(TITLE, steps.iter().map(|step| (lanes_of(step), step)));
    let content = html! {
        (title(24.0, &format!("The last step: {of}")))
        @for tick in axis.multiples(round_up(axis.most / TICKS)) {
            (column(axis.at(tick), (TITLE - 6.0, height - AXIS), 16.0, &Unit::Seconds.show(1e-6 * tick)))
        }
        @for (rank, (top, step)) in tops.enumerate() { (lanes(rank, step, top, &at)) }
    };
    let label = "The last step of every rank as a timeline; the table has the times";
    svg_image(label, height, &content).into_string() + "\n"
}

/// The lanes of one rank; `at` is the place of a time.
fn lanes(rank: usize, step: &TracedStep, top: f64, at: &dyn Fn(f64) -> f64) -> Markup {
    html! {
        text x=(MARGIN) y=(top + 16.0) font-weight="bold" { (format!("rank {rank}")) }
        @for (name, from, to) in parts(step) { (block(name, (from, to), top, colour(name), at)) }
        @for (bucket, line) in step.buckets.iter().zip(1_u32..) {
            @let y = top + LANE * f64::from(line);
            text x=(MARGIN + 12.0) y=(y + 16.0) font-size="11" { (format!("bucket {}", bucket.bucket)) }
            (block(&Unit::Bytes.show(bucket.bytes as f64), (bucket.started, bucket.ended), y, "#cc79a7", at))
        }
    }
}

/// Neighbours differ, and words name them where they fit; also in any colour vision.
fn colour(part: &str) -> &'static str {
    match part {
        "forward" => COLOURS[2],
        "backward" => COLOURS[0],
        "wait" => GREY,
        _ => COLOURS[1],
    }
}

fn block(name: &str, (from, to): (f64, f64), y: f64, colour: &str, at: &dyn Fn(f64) -> f64) -> Markup {
    let (left, right) = (at(from), at(to));
    let width = (10.0 * (right - left)).round() / 10.0;
    let dark = colour == GREY || colour == "#cc79a7";
    html! {
        rect x=(left) y=(y) width=(width) height=(LANE - 4.0) fill=(colour) { title { (format!("{name}: \
            {}", Unit::Seconds.show(1e-6 * (to - from)))) } }
        @if width > LETTER * name.len() as f64 {
            text x=(left + 4.0) y=(y + 14.0) font-size="11" fill=(if dark { "#000000" } else { "#ffffff" }) { (name) }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_rank_messages::bench::TracedBucket;
    use roxmltree::Document;

    use super::*;
    use crate::trace::testing::sample;

    #[test]
    fn shows_parts_of_each_rank_and_who_was_last() {
        let table = table(&sample(), "mlp");
        let row = |rank: usize| table.rows[rank].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(row(0), ["0", "13.0 ms", "2.90 ms", "9.00 ms", "5.00 ms", "1.10 ms", "6.00 ms", "33.3 %", "0/1"]);
        assert_eq!(row(1), ["1", "13.0 ms", "2.90 ms", "9.00 ms", "4.00 ms", "1.10 ms", "5.00 ms", "40.0 %", "1/1"]);
    }

    #[test]
    fn adds_up_intervals_that_overlap_once() {
        let mut step = sample().ranks[0][0].clone();
        let bucket = |started: f64, ended: f64| TracedBucket { bucket: 0, bytes: 1, started, ended };
        step.buckets =
            vec![bucket(5.0, 9.0), bucket(1.0, 3.0), bucket(6.0, 7.0), bucket(8.0, 12.0), bucket(20.0, 20.0)];
        assert_eq!(reducing(&step, f64::INFINITY), [(1.0, 3.0), (5.0, 12.0)]);
        assert_eq!((reducing(&step, 6.0), length(&reducing(&step, 6.0))), (vec![(1.0, 3.0), (5.0, 6.0)], 3.0));
        let one_after_the_other = |parts: Vec<(&str, f64, f64)>| parts.windows(2).all(|pair| pair[0].2 == pair[1].1);
        assert!(one_after_the_other(parts(&sample().ranks[1][0])));
    }

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

    #[test]
    fn has_a_block_for_each_part_and_bucket_in_its_place() {
        let text = picture(&sample(), "</text> on 2 ranks");
        let document = Document::parse(&text).unwrap();
        let blocks: Vec<_> = document.descendants().filter(|node| node.tag_name().name() == "rect").skip(1).collect();
        assert_eq!(blocks.len(), 2 * (5 + 2));
        let number = |node: &roxmltree::Node<'_, '_>, name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
        for block in &blocks {
            assert!(number(block, "x") >= WORDS && number(block, "x") + number(block, "width") <= WIDTH, "{text}");
        }
        // A rank's parts follow each other.
        for pair in blocks[..5].windows(2) {
            assert!((number(&pair[0], "x") + number(&pair[0], "width") - number(&pair[1], "x")).abs() < 0.11, "{text}");
        }
        let words: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        for expected in ["rank 1", "backward", "4.00 MiB", "wait", "10.0 ms"] {
            assert!(words.contains(&expected), "{expected} in {words:?}");
        }
    }
}
