//! A step of DDP on one rank: the backward pass, and buckets whose exchange begins while it goes on ([`lockstep_cost::Prediction`]).

use lockstep_cost::{Bound, Bucket, Compute, Exchange, Link, Prediction, Sizes};

use crate::scene::{Controls, Frame, Scene, bytes, is_narrow, seconds};

/// Buckets that are drawn one by one.
const DRAWN: usize = 60;
const MIB: f64 = 1_048_576.0;

/// A step, its buckets, and where they are drawn.
struct Lanes {
    compute: Compute,
    found: Prediction,
    buckets: Vec<Bucket>,
    width: f64,
    left: f64,
    /// Pixels of a second.
    scale: f64,
}

impl Lanes {
    const TOP: f64 = 8.0;
    const ROW: f64 = 40.0;
    const HEIGHT: f64 = Self::TOP + 3.0 * Self::ROW + 8.0;

    /// When something begins or ends, in order.
    fn moments(&self) -> Vec<f64> {
        let begin = self.compute.forward;
        let drawn = self.buckets.iter().take(DRAWN);
        let ends = drawn.flat_map(|bucket| [begin + bucket.ready, begin + bucket.done]);
        let mut moments: Vec<f64> = [0.0, begin].into_iter().chain(ends).chain([self.found.step]).collect();
        moments.sort_by(f64::total_cmp);
        moments.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
        moments
    }

    fn says(&self, now: f64) -> String {
        let begin = self.compute.forward;
        let all = self.buckets.len();
        let number =
            |end: fn(&Bucket) -> f64| self.buckets.iter().filter(|one| begin + end(one) <= now + 1e-12).count();
        let (ready, done) = (number(|bucket| bucket.ready), number(|bucket| bucket.done));
        match now {
            now if now <= 0.0 => "The step begins with the forward pass.".to_owned(),
            now if now <= begin => "The backward pass begins, at the last layers.".to_owned(),
            now if now >= self.found.step => "The averaged gradients are there: the optimizer can begin.".to_owned(),
            now if now < begin + self.compute.backward => {
                format!("{ready} of {all} buckets are full, {done} are averaged, while the backward pass goes on.")
            }
            _ => format!("The backward pass has ended, the rank waits: {done} of {all} buckets are averaged."),
        }
    }

    fn frame(&self, now: f64) -> Frame {
        let (begin, computed) = (self.compute.forward, self.compute.forward + self.compute.backward);
        let at = |seconds: f64| self.left + self.scale * seconds;
        let lane = |lane: usize| Self::TOP + lane as f64 * Self::ROW;
        let mut frame = Frame::new(self.says(now));
        for (number, name) in ["compute", "buckets", "exchange"].iter().enumerate() {
            frame.words(format!("lane {number}"), [0.0, lane(number) + 8.0], "plain", *name);
        }
        let mut bar = |key: String, [from, until]: [f64; 2], number: usize, class: &'static str, words: &str| {
            if from < now {
                let words = if self.scale * (until - from) > 9.0 * words.len() as f64 { words } else { "" };
                let wide = self.scale * (until.min(now) - from);
                frame.cell(key, [at(from), lane(number), wide, Self::ROW - 8.0], class, words);
            }
        };
        bar("forward".into(), [0.0, begin], 0, "cell", "forward");
        bar("backward".into(), [begin, computed], 0, "compute", "backward");
        let mut before = 0.0;
        for (number, bucket) in self.buckets.iter().enumerate().take(DRAWN) {
            bar(format!("bucket {number}"), [begin + before, begin + bucket.ready], 1, "partial", &number.to_string());
            bar(format!("sum {number}"), [begin + bucket.begun, begin + bucket.done], 2, "done", &number.to_string());
            before = bucket.ready;
        }
        if self.found.exposed > 0.0 {
            bar("exposed".into(), [computed, self.found.step], 0, "wrong", "waits");
        }
        frame.line("now", [at(now).min(self.width), 2.0, 0.0, Self::HEIGHT - 8.0], "now");
        frame
    }
}

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

    let left = if is_narrow(width) { 68.0 } else { 80.0 };
    let lanes = Lanes { compute, found, buckets, width, left, scale: (width - left - 6.0) / found.step };
    let frames = lanes.moments().into_iter().map(|now| lanes.frame(now)).collect();
    let mut scene = Scene::new([width, Lanes::HEIGHT], frames).starting_at_the_end();
    scene.tell("a step", seconds(found.step));
    scene.tell(
        "exposed communication",
        format!("{} ({:.0} % of the step)", seconds(found.exposed), 100.0 * found.exposed / found.step),
    );
    let last = lanes.buckets.last().map_or(0.0, |bucket| bucket.bytes);
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
