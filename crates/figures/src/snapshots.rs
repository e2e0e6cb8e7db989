//! How often to save: a snapshot takes time, and a failure loses the work since the last one. Of failures once in M seconds and snapshots of C
//! seconds, work of T seconds between two of them, the part C/T + T/(2M) is lost, least at T = √(2CM).
//!
//! Source: J. W. Young, "A first order approximation to the optimum checkpoint interval" (1974). It leaves out failures during a snapshot and
//! during the restart, so it holds while T is much shorter than M.

use crate::scene::{Controls, Frame, Scene, seconds};

/// Parts of the time: saving, and work that is done again.
fn lost(interval: f64, save: f64, failure: f64) -> (f64, f64) {
    (save / interval, (interval / (2.0 * failure)).min(1.0))
}

fn best(save: f64, failure: f64) -> f64 {
    (2.0 * save * failure).sqrt()
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let steps =
        10_f64.powf(controls.range("interval", "steps between snapshots (power of 10)", [0.0, 5.0, 0.05], 4.0)).round();
    let step = controls.range("step", "a step, in seconds", [0.1, 10.0, 0.1], 1.0);
    let save = controls.range("save", "a snapshot, in seconds", [1.0, 120.0, 1.0], 20.0);
    let hours = controls.range("failure", "hours between failures", [1.0, 240.0, 1.0], 24.0);
    let reveal = controls.choice("best", "the best interval", &["find it", "show it"]) == 1;
    let (failure, interval) = (3600.0 * hours, steps * step);
    let (saving, again) = lost(interval, save, failure);

    let (left, right, top, bottom) = (40.0, width - 8.0, 12.0, 190.0);
    // From a step to a tenth of a million steps, and up to half of the time.
    let x = |interval: f64| left + (right - left) * ((interval / step).log10() / 5.0).clamp(0.0, 1.0);
    let y = |part: f64| bottom - (bottom - top) * (part / 0.5).min(1.0);
    let lane = 232.0;
    let chart = |frame: &mut Frame| {
        frame.line("axis x", [left, bottom, right - left, 0.0], "line");
        frame.line("axis y", [left, top, 0.0, bottom - top], "line");
        for percent in [0, 25, 50] {
            frame.words(
                format!("part {percent}"),
                [2.0, y(f64::from(percent) / 100.0) - 8.0],
                "faint",
                format!("{percent} %"),
            );
        }
        for (power, name) in ["1", "10", "100", "1,000", "10,000", "steps"].iter().enumerate() {
            if width < 500.0 && power == 4 {
                continue;
            }
            let at = x(step * 10_f64.powi(power as i32));
            frame.words(format!("steps {power}"), [(at - 8.0).min(right - 36.0), bottom + 4.0], "faint", *name);
        }
        let columns = 60;
        for column in 0..columns {
            let at = step * 10_f64.powf(5.0 * (f64::from(column) + 0.5) / f64::from(columns));
            let (saving, again) = lost(at, save, failure);
            let (from, wide) = (x(at) - (right - left) / 120.0, (right - left) / f64::from(columns));
            let (low, high) = (y(saving), y(saving + again));
            frame.cell(format!("saving {column}"), [from, low, wide, bottom - low], "partial", "");
            frame.cell(format!("again {column}"), [from, high, wide, low - high], "done", "");
        }
        frame.line("chosen", [x(interval), top - 6.0, 0.0, bottom - top + 10.0], "now");
        if reveal {
            frame.line("best", [x(best(save, failure)), top - 6.0, 0.0, bottom - top + 10.0], "dotted");
        }
    };
    // One interval before a failure in the middle of the next, and what follows.
    let parts = [
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
    let frame = |now: usize| {
        let says = now.checked_sub(1).map_or("A run, from left to right.", |at| parts[at].3);
        let mut frame = Frame { says: says.to_owned(), shapes: Vec::new() };
        chart(&mut frame);
        let mut from = left;
        for (at, (words, class, part, _)) in parts.iter().enumerate().take(now) {
            let wide = part * (right - left);
            frame.cell(
                format!("part of the run {at}"),
                [from, lane, wide - 2.0, 26.0],
                class,
                if wide > 8.0 * words.len() as f64 { *words } else { "" },
            );
            from += wide;
        }
        frame
    };
    let frames = (0..=parts.len()).map(frame).collect();
    let mut scene = Scene { width, height: lane + 34.0, frames, facts: Vec::new(), first: parts.len() };
    scene.tell("between two snapshots", format!("{steps} steps, {}", seconds(interval)));
    scene.tell("time for saving", format!("{:.1} %", 100.0 * saving));
    scene.tell("work done again", format!("{:.1} %", 100.0 * again));
    scene.tell("together", format!("{:.1} %", 100.0 * (saving + again)));
    if reveal {
        let best = best(save, failure);
        let (saving, again) = lost(best, save, failure);
        scene.tell(
            "best, √(2CM)",
            format!("{:.0} steps, {}: {:.1} %", best / step, seconds(best), 100.0 * (saving + again)),
        );
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
