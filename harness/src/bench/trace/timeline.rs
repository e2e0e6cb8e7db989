//! The picture of a timeline: the last step, a lane for the training of each rank, and below it a lane for each of its buckets.

use lockstep_contract::bench::{TraceAnswer, TracedStep};
use maud::{Markup, html};

use crate::bench::drawing::{COLOURS, MARGIN, WIDTH, column, frame, stacked, title};
use crate::bench::results::Unit;
use crate::bench::trace::parts;
use crate::report::picture::round_up;

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
pub(super) fn picture(timeline: &TraceAnswer, of: &str) -> String {
    let steps: Vec<&TracedStep> = timeline.ranks.iter().filter_map(|steps| steps.last()).collect();
    let begun = steps.iter().map(|step| step.begun).fold(f64::INFINITY, f64::min);
    let ended = steps.iter().map(|step| step.ended).fold(0.0, f64::max);
    let scale = Scale { begun, width: (ended - begun).max(1.0) };
    let lanes_of = |step: &TracedStep| LANE * (1.0 + step.buckets.len() as f64) + ROOM;
    let height = TITLE + steps.iter().map(|step| lanes_of(step)).sum::<f64>() + AXIS;
    let tops = stacked(TITLE, steps.iter().map(|step| (lanes_of(step), step)));
    let content = html! {
        (title(24.0, &format!("The last step: {of}")))
        (scale.axis(height - AXIS))
        @for (rank, (top, step)) in tops.enumerate() { (lanes(rank, step, top, &scale)) }
    };
    let label = "The last step of every rank as a timeline; the table has the times";
    frame(label, height, &content).into_string() + "\n"
}

/// From microseconds to pixels.
struct Scale {
    begun: f64,
    width: f64,
}

impl Scale {
    fn at(&self, time: f64) -> f64 {
        let part = ((time - self.begun) / self.width).clamp(0.0, 1.0);
        (10.0 * (MARGIN + WORDS + part * (WIDTH - WORDS - 3.0 * MARGIN))).round() / 10.0
    }

    fn axis(&self, bottom: f64) -> Markup {
        let step = round_up(self.width / TICKS);
        let ticks = (0..).map(|count| f64::from(count) * step).take_while(|tick| *tick <= self.width);
        html! {
            @for tick in ticks {
                (column(self.at(self.begun + tick), (TITLE - 6.0, bottom), 16.0, &Unit::Seconds.show(1e-6 * tick)))
            }
        }
    }
}

/// The lanes of one rank.
fn lanes(rank: usize, step: &TracedStep, top: f64, scale: &Scale) -> Markup {
    html! {
        text x=(MARGIN) y=(top + 16.0) font-weight="bold" { (format!("rank {rank}")) }
        @for (name, from, to) in parts(step) { (block(name, (from, to), top, colour(name), scale)) }
        @for (bucket, line) in step.buckets.iter().zip(1_u32..) {
            @let y = top + LANE * f64::from(line);
            text x=(MARGIN + 12.0) y=(y + 16.0) font-size="11" { (format!("bucket {}", bucket.bucket)) }
            (block(&Unit::Bytes.show(bucket.bytes as f64), (bucket.started, bucket.ended), y, "#cc79a7", scale))
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

fn block(name: &str, (from, to): (f64, f64), y: f64, colour: &str, scale: &Scale) -> Markup {
    let (left, right) = (scale.at(from), scale.at(to));
    let width = (10.0 * (right - left)).round() / 10.0;
    let dark = colour == GREY || colour == "#cc79a7";
    html! {
        rect x=(left) y=(y) width=(width) height=(LANE - 4.0) fill=(colour) { title { (format!("{name}: {}", Unit::Seconds.show(1e-6 * (to - from)))) } }
        @if width > LETTER * name.len() as f64 {
            text x=(left + 4.0) y=(y + 14.0) font-size="11" fill=(if dark { "#000000" } else { "#ffffff" }) { (name) }
        }
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;
    use crate::bench::trace::testing::sample;

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
