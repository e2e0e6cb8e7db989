//! How often to save: a snapshot takes time, and a failure loses the work since the last one. Of failures once in M seconds and snapshots of C
//! seconds, work of T seconds between two of them, the part C/T + T/(2M) is lost, least at T = √(2CM).
//!
//! Source: J. W. Young, "A first order approximation to the optimum checkpoint interval" (1974). It leaves out failures during a snapshot and
//! during the restart, so it holds while T is much shorter than M.

use crate::scene::{Controls, Frame, Scene, is_narrow, seconds};

/// Parts of the time: saving, and work that is done again.
fn lost(interval: f64, save: f64, failure: f64) -> (f64, f64) {
    (save / interval, (interval / (2.0 * failure)).min(1.0))
}

fn best(save: f64, failure: f64) -> f64 {
    (2.0 * save * failure).sqrt()
}

/// What a reader sets, all in seconds.
struct Plan {
    step: f64,
    interval: f64,
    save: f64,
    failure: f64,
}

/// Parts of a run from one interval before a failure in the middle of the next on: words, class, share of the width, and what is said of it.
const RUN: [(&str, &str, f64, &str); 7] = [
    ("work", "cell", 0.3, "The ranks work until the next snapshot is due."),
    ("save", "partial", 0.06, "A snapshot is saved."),
    (
        "more work",
        "cell",
        0.15,
        "Work goes on. A failure comes at any moment, in the middle of an interval on the average.",
    ),
    ("×", "wrong", 0.04, "A rank dies: what was done since the snapshot is lost."),
    ("again", "done", 0.15, "The ranks start again from the snapshot, and do the lost work a second time."),
    ("work", "cell", 0.15, "Work goes on to the next snapshot."),
    ("save", "partial", 0.06, "The next snapshot."),
];
const LEFT: f64 = 40.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 190.0;
/// Where the run is drawn.
const LANE: f64 = 232.0;
/// The chart's intervals, from a step to 10 to this power of steps, and its columns.
const POWERS: f64 = 5.0;
const COLUMNS: u32 = 60;

impl Plan {
    fn chart(&self, frame: &mut Frame, width: f64, reveal: bool) {
        let right = width - 8.0;
        let room = right - LEFT;
        let x = |interval: f64| LEFT + room * ((interval / self.step).log10() / POWERS).clamp(0.0, 1.0);
        // Up to half of the time.
        let y = |part: f64| BOTTOM - (BOTTOM - TOP) * (part / 0.5).min(1.0);
        frame.line("axis x", [LEFT, BOTTOM, room, 0.0], "line");
        frame.line("axis y", [LEFT, TOP, 0.0, BOTTOM - TOP], "line");
        for percent in [0, 25, 50] {
            let place = [2.0, y(f64::from(percent) / 100.0) - 8.0];
            frame.words(format!("part {percent}"), place, "faint", format!("{percent} %"));
        }
        for (power, name) in ["1", "10", "100", "1,000", "10,000", "steps"].iter().enumerate() {
            if is_narrow(width) && power == 4 {
                continue;
            }
            let at = x(self.step * 10_f64.powi(power as i32));
            frame.words(format!("steps {power}"), [(at - 8.0).min(right - 36.0), BOTTOM + 4.0], "faint", *name);
        }
        let wide = room / f64::from(COLUMNS);
        for column in 0..COLUMNS {
            let at = self.step * 10_f64.powf(POWERS * (f64::from(column) + 0.5) / f64::from(COLUMNS));
            let (saving, again) = lost(at, self.save, self.failure);
            let (from, low, high) = (x(at) - wide / 2.0, y(saving), y(saving + again));
            frame.cell(format!("saving {column}"), [from, low, wide, BOTTOM - low], "partial", "");
            frame.cell(format!("again {column}"), [from, high, wide, low - high], "done", "");
        }
        let mut mark = |key: &str, at: f64, class: &'static str| {
            frame.line(key, [x(at), TOP - 6.0, 0.0, BOTTOM - TOP + 10.0], class);
        };
        mark("chosen", self.interval, "now");
        if reveal {
            mark("best", best(self.save, self.failure), "dotted");
        }
    }
}

/// The first parts of the run.
fn run(frame: &mut Frame, width: f64, parts: usize) {
    let mut from = LEFT;
    for (at, (words, class, part, _)) in RUN.iter().enumerate().take(parts) {
        let wide = part * (width - 8.0 - LEFT);
        let words = if wide > 8.0 * words.len() as f64 { *words } else { "" };
        frame.cell(format!("part of the run {at}"), [from, LANE, wide - 2.0, 26.0], class, words);
        from += wide;
    }
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let power = controls.range("interval", "steps between snapshots (power of 10)", [0.0, POWERS, 0.05], 4.0);
    let step = controls.range("step", "a step, in seconds", [0.1, 10.0, 0.1], 1.0);
    let save = controls.range("save", "a snapshot, in seconds", [1.0, 120.0, 1.0], 20.0);
    let hours = controls.range("failure", "hours between failures", [1.0, 240.0, 1.0], 24.0);
    let reveal = controls.choice("best", "the best interval", &["find it", "show it"]) == 1;
    let steps = 10_f64.powf(power).round();
    let plan = Plan { step, interval: steps * step, save, failure: 3600.0 * hours };

    let frame = |parts: usize| {
        let mut frame = Frame::new(parts.checked_sub(1).map_or("A run, from left to right.", |at| RUN[at].3));
        plan.chart(&mut frame, width, reveal);
        run(&mut frame, width, parts);
        frame
    };
    let frames = (0..=RUN.len()).map(frame).collect();
    let mut scene = Scene::new([width, LANE + 34.0], frames).starting_at_the_end();
    let (saving, again) = lost(plan.interval, save, plan.failure);
    scene.tell("between two snapshots", format!("{steps} steps, {}", seconds(plan.interval)));
    scene.tell("time for saving", format!("{:.1} %", 100.0 * saving));
    scene.tell("work done again", format!("{:.1} %", 100.0 * again));
    scene.tell("together", format!("{:.1} %", 100.0 * (saving + again)));
    if reveal {
        let best = best(save, plan.failure);
        let (saving, again) = lost(best, save, plan.failure);
        let told = format!("{:.0} steps, {}: {:.1} %", best / step, seconds(best), 100.0 * (saving + again));
        scene.tell("best, √(2CM)", told);
    }
    Ok(scene)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_interval_loses_less_than_youngs() {
        for (save, failure) in [(1.0, 3600.0), (20.0, 86_400.0), (120.0, 3600.0)] {
            let sum = |interval: f64| {
                let (saving, again) = lost(interval, save, failure);
                saving + again
            };
            let least = sum(best(save, failure));
            assert!(
                [0.5, 0.9, 1.1, 2.0].iter().all(|factor| sum(factor * best(save, failure)) > least),
                "{save} {failure}"
            );
        }
        assert_eq!(best(20.0, 90.0), 60.0);
    }
}
