//! A step of DDP on one rank: the backward pass, and buckets whose exchange begins while it goes on ([`lockstep_cost::Prediction`]).

use lockstep_cost::{Bound, Bucket, Compute, Exchange, Link, Prediction, Sizes};

use crate::scene::{Controls, Frame, Scene, bytes, seconds};

/// Buckets that are drawn one by one.
const DRAWN: usize = 60;
const MIB: f64 = 1_048_576.0;

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let ranks = controls.count("ranks", "ranks", [2, 64], 4);
    let gradients = controls.range("gradients", "gradients, in MB", [10.0, 1000.0, 10.0], 100.0);
    let bucket = controls.range("bucket", "a bucket, in MiB", [1.0, 200.0, 1.0], 25.0);
    let bandwidth = controls.range("bandwidth", "a link, in GB a second", [0.1, 50.0, 0.1], 2.0);
    let latency = controls.range("latency", "a message, in µs", [0.0, 500.0, 5.0], 20.0);
    let forward = controls.range("forward", "forward pass, in ms", [1.0, 200.0, 1.0], 30.0);
    let backward = controls.range("backward", "backward pass, in ms", [1.0, 400.0, 1.0], 60.0);

    let compute = Compute { forward: 1e-3 * forward, backward: 1e-3 * backward, optimizer: 0.0 };
    let sizes = Sizes { gradients: 1e6 * gradients, bucket: MIB * bucket, first_bucket: MIB };
    let exchange = Exchange::Ddp { sent: 1.0, calls: 1.0, hook: 0.0, accumulate: 1 };
    let link = Link { latency: 1e-6 * latency, bandwidth: 1e9 * bandwidth };
    let found = Prediction::of(compute, sizes, exchange, ranks, link);
    let buckets = Bucket::all(compute, sizes, exchange, ranks, link);

    let (left, top, row) = (if width < 500.0 { 68.0 } else { 80.0 }, 8.0, 40.0);
    let scale = (width - left - 6.0) / found.step;
    let (height, begin) = (top + 3.0 * row + 8.0, compute.forward);
    let at = |seconds: f64| left + scale * seconds;
    let mut moments: Vec<f64> = [0.0, begin]
        .into_iter()
        .chain(buckets.iter().take(DRAWN).flat_map(|bucket| [begin + bucket.ready, begin + bucket.done]))
        .chain([found.step])
        .collect();
    moments.sort_by(f64::total_cmp);
    moments.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
    let frame = |now: &f64| {
        let (now, computed) = (*now, begin + compute.backward);
        let ready = buckets.iter().filter(|bucket| begin + bucket.ready <= now + 1e-12).count();
        let done = buckets.iter().filter(|bucket| begin + bucket.done <= now + 1e-12).count();
        let says = match now {
            now if now <= 0.0 => "The step begins with the forward pass.".to_owned(),
            now if now <= begin => "The backward pass begins, at the last layers.".to_owned(),
            now if now >= found.step => "The averaged gradients are there: the optimizer can begin.".to_owned(),
            now if now < computed => format!(
                "{ready} of {} buckets are full, {done} are averaged, while the backward pass goes on.",
                buckets.len()
            ),
            _ => format!(
                "The backward pass has ended, the rank waits: {done} of {} buckets are averaged.",
                buckets.len()
            ),
        };
        let mut frame = Frame { says, shapes: Vec::new() };
        for (lane, name) in ["compute", "buckets", "exchange"].iter().enumerate() {
            frame.words(format!("lane {lane}"), [0.0, top + lane as f64 * row + 8.0], "plain", *name);
        }
        let mut bar = |key: String, [from, until]: [f64; 2], lane: usize, class: &'static str, words: &str| {
            if from < now {
                let wide = scale * (until.min(now) - from);
                let words = if scale * (until - from) > 9.0 * words.len() as f64 { words } else { "" };
                frame.cell(key, [at(from), top + lane as f64 * row, wide, row - 8.0], class, words);
            }
        };
        bar("forward".into(), [0.0, begin], 0, "cell", "forward");
        bar("backward".into(), [begin, computed], 0, "compute", "backward");
        let mut before = 0.0;
        for (number, bucket) in buckets.iter().enumerate().take(DRAWN) {
            bar(format!("bucket {number}"), [begin + before, begin + bucket.ready], 1, "partial", &number.to_string());
            bar(format!("sum {number}"), [begin + bucket.begun, begin + bucket.done], 2, "done", &number.to_string());
            before = bucket.ready;
        }
        if found.exposed > 0.0 {
            bar("exposed".into(), [computed, found.step], 0, "wrong", "waits");
        }
        frame.line("now", [at(now).min(width), 2.0, 0.0, height - 8.0], "now");
        frame
    };
    let frames: Vec<Frame> = moments.iter().map(frame).collect();
    let first = frames.len() - 1;
    let mut scene = Scene { width, height, frames, facts: Vec::new(), first };
    scene.tell("a step", seconds(found.step));
    scene.tell(
        "exposed communication",
        format!("{} ({:.0} % of the step)", seconds(found.exposed), 100.0 * found.exposed / found.step),
    );
    let last = buckets.last().map_or(0.0, |bucket| bucket.bytes);
    scene.tell(
        "the last bucket alone",
        format!("2(n − 1)(α + S/(nB)) = {} for {}", seconds(link.all_reduce(ranks, last)), bytes(last)),
    );
    scene.tell(
        "what rules",
        match found.bound {
            Bound::Compute => "computing: the exchange is hidden",
            Bound::Latency => "the number of messages",
            Bound::Bandwidth | Bound::Hook => "bytes",
        },
    );
    Ok(scene)
}
