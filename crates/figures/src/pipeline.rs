//! A pipeline's schedule over time: which stage works on which micro-batch, the bubble, and the activations that a stage holds.
//!
//! GPipe's and 1F1B's tables are those that the labs carry out ([`lockstep_cost::Schedule`]); the interleaved one, in which a rank has two
//! stages, is here only. Source: Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
//! (2021), section 2.2.

use lockstep_cost::{Action, Schedule};

use crate::scene::{Controls, Frame, Scene};

const SCHEDULES: [&str; 3] = ["fill and drain (GPipe)", "1F1B", "interleaved 1F1B, two stages a rank"];
/// Units of time: a forward pass of a rank's layers, and a backward pass.
const FORWARD: u64 = 2;
const BACKWARD: u64 = 4;
/// Stages of a rank in the interleaved schedule.
const CHUNKS: usize = 2;

/// An action of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work {
    forward: bool,
    micro_batch: usize,
    /// Which of the rank's stages.
    chunk: usize,
    start: u64,
    end: u64,
}

fn timeline(schedule: usize, ranks: usize, micro_batches: usize) -> Vec<Vec<Work>> {
    let schedule = match schedule {
        0 => Schedule::gpipe(ranks, micro_batches),
        1 => Schedule::one_f_one_b(ranks, micro_batches),
        _ => return interleaved(ranks, micro_batches),
    };
    let work = |slot: lockstep_cost::Slot| {
        let (forward, micro_batch) = match slot.action {
            Action::Forward(micro_batch) => (true, micro_batch),
            Action::Backward(micro_batch) => (false, micro_batch),
        };
        Work { forward, micro_batch, chunk: 0, start: slot.start, end: slot.end }
    };
    let stages = schedule.timeline(FORWARD, BACKWARD);
    stages.into_iter().map(|slots| slots.into_iter().map(work).collect()).collect()
}

/// Stage c·p + r of all is chunk c of rank r; micro-batches, a multiple of p, go through in groups of p. Rank r begins with 2(p − r − 1) + p
/// forward passes, and then alternates.
fn interleaved(ranks: usize, micro_batches: usize) -> Vec<Vec<Work>> {
    let order = |forward: bool| -> Vec<(usize, usize)> {
        let groups = (0..micro_batches).step_by(ranks);
        groups
            .flat_map(|first| {
                let chunks = (0..CHUNKS).map(move |chunk| if forward { chunk } else { CHUNKS - 1 - chunk });
                chunks.flat_map(move |chunk| {
                    (first..(first + ranks).min(micro_batches)).map(move |micro_batch| (micro_batch, chunk))
                })
            })
            .collect()
    };
    let (forward, backward) = (order(true), order(false));
    let table: Vec<Vec<(bool, usize, usize)>> = (0..ranks)
        .map(|rank| {
            let warm_up = (2 * (ranks - rank - 1) + (CHUNKS - 1) * ranks).min(forward.len());
            let mut actions: Vec<_> =
                forward[..warm_up].iter().map(|(micro_batch, chunk)| (true, *micro_batch, *chunk)).collect();
            for (turn, (micro_batch, chunk)) in backward.iter().enumerate() {
                actions.extend(forward.get(warm_up + turn).map(|(micro_batch, chunk)| (true, *micro_batch, *chunk)));
                actions.push((false, *micro_batch, *chunk));
            }
            actions
        })
        .collect();
    carried_out(&table, ranks)
}

/// When each action starts, if each waits for its inputs. Ends early if the ranks wait for each other for ever.
fn carried_out(table: &[Vec<(bool, usize, usize)>], ranks: usize) -> Vec<Vec<Work>> {
    let mut done: Vec<Vec<Work>> = vec![Vec::new(); ranks];
    let last = CHUNKS * ranks - 1;
    loop {
        let before: usize = done.iter().map(Vec::len).sum();
        for rank in 0..ranks {
            while let Some(&(forward, micro_batch, chunk)) = table[rank].get(done[rank].len()) {
                let stage = chunk * ranks + rank;
                let of = |stage: usize, forward: bool| {
                    let found = |work: &&Work| {
                        (work.forward, work.micro_batch, work.chunk) == (forward, micro_batch, stage / ranks)
                    };
                    done[stage % ranks].iter().find(found).map(|work| work.end)
                };
                let ready = match (forward, stage) {
                    (true, 0) => Some(0),
                    (true, stage) => of(stage - 1, true),
                    (false, stage) if stage == last => of(stage, true),
                    (false, stage) => of(stage + 1, false),
                };
                let Some(ready) = ready else { break };
                let start = ready.max(done[rank].last().map_or(0, |work| work.end));
                let length = if forward { FORWARD } else { BACKWARD } / CHUNKS as u64;
                done[rank].push(Work { forward, micro_batch, chunk, start, end: start + length });
            }
        }
        if done.iter().map(Vec::len).sum::<usize>() == before {
            return done;
        }
    }
}

/// Micro-batches whose activations a rank holds at a moment, in parts of the layers of one rank.
fn held(works: &[Work], at: u64, chunks: usize) -> f64 {
    let forward = works.iter().filter(|work| work.forward && work.end <= at).count();
    let backward = works.iter().filter(|work| !work.forward && work.end <= at).count();
    (forward - backward) as f64 / chunks as f64
}

/// The works of all ranks, and where they are drawn.
struct Lanes {
    works: Vec<Vec<Work>>,
    chunks: usize,
    /// The step's end.
    end: u64,
    width: f64,
    left: f64,
    /// Pixels of a unit of time.
    unit: f64,
    height: f64,
}

impl Lanes {
    const TOP: f64 = 8.0;
    const ROW: f64 = 30.0;

    fn new(works: Vec<Vec<Work>>, chunks: usize, width: f64) -> Self {
        let end = works.iter().flatten().map(|work| work.end).max().unwrap_or(1);
        let left = Frame::after_rank(width);
        let (unit, height) = ((width - left - 46.0) / end as f64, Self::TOP + works.len() as f64 * Self::ROW + 26.0);
        Lanes { works, chunks, end, width, left, unit, height }
    }

    /// When something ends, in order.
    fn moments(&self) -> Vec<u64> {
        let mut ends: Vec<u64> = self.works.iter().flatten().map(|work| work.end).chain([0]).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn says(&self, now: u64) -> String {
        let is_busy = |works: &&Vec<Work>| works.iter().any(|work| work.start < now && now <= work.end);
        let (ranks, busy) = (self.works.len(), self.works.iter().filter(is_busy).count());
        match now {
            0 => "Nothing has begun.".to_owned(),
            now if now == self.end => "The step's end: the optimizer can begin.".to_owned(),
            _ if busy == ranks => "All ranks compute.".to_owned(),
            _ => format!("{busy} of {ranks} ranks compute, {} wait.", ranks - busy),
        }
    }

    fn frame(&self, now: u64) -> Frame {
        let Lanes { width, left, unit, height, .. } = *self;
        let mut frame = Frame::new(self.says(now));
        for (rank, works) in self.works.iter().enumerate() {
            let y = Self::TOP + rank as f64 * Self::ROW;
            frame.rank(rank, y + 4.0, width);
            for work in works.iter().filter(|work| work.start < now) {
                let (x, wide) = (left + unit * work.start as f64, unit * (work.end.min(now) - work.start) as f64);
                let class = match (work.forward, work.chunk) {
                    (true, 0) => "cell",
                    (true, _) => "partial",
                    (false, 0) => "compute",
                    (false, _) => "done",
                };
                let has_room = unit * (work.end - work.start) as f64 > 13.0;
                let words = if has_room { work.micro_batch.to_string() } else { String::new() };
                let key = format!("{rank} {} {} {}", work.forward, work.micro_batch, work.chunk);
                frame.cell(key, [x, y, wide, Self::ROW - 6.0], class, words);
            }
            let held = held(works, now, self.chunks).to_string();
            frame.cell(format!("held {rank}"), [width - 40.0, y, 38.0, Self::ROW - 6.0], "plain", held);
        }
        frame.line("now", [left + unit * now as f64, 2.0, 0.0, height - 28.0], "now");
        frame.cell("heading", [width - 60.0, height - 22.0, 60.0, 18.0], "plain faint", "held");
        frame.words("legend", [left, height - 22.0], "faint", "light: forward, dark: backward");
        frame
    }
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let schedule = controls.choice("schedule", "schedule", &SCHEDULES);
    let ranks = controls.count("stages", "ranks", [2, 6], 4);
    let asked_for = controls.count("micro_batches", "micro-batches", [1, 12], 6);
    let interleaved = schedule == 2;
    let (chunks, micro_batches) =
        if interleaved { (CHUNKS, asked_for.next_multiple_of(ranks)) } else { (1, asked_for) };
    let lanes = Lanes::new(timeline(schedule, ranks, micro_batches), chunks, width);
    let moments = lanes.moments();
    let frames = moments.iter().map(|now| lanes.frame(*now)).collect();
    let busy = micro_batches as u64 * (FORWARD + BACKWARD);
    let bubble = 1.0 - busy as f64 / lanes.end as f64;
    let held = lanes.works.iter().flat_map(|works| moments.iter().map(|at| held(works, *at, chunks)));
    let peak = held.fold(0.0, f64::max);
    let mut scene = Scene::new([width, lanes.height], frames).starting_at_the_end();
    let why = if interleaved { ": interleaved, a multiple of the ranks" } else { "" };
    scene.tell("micro-batches", format!("{micro_batches}{why}"));
    scene.tell("bubble", format!("{:.0} % of the time", 100.0 * bubble));
    let turns = if interleaved { "2m" } else { "m" };
    scene.tell(
        "formula",
        format!("(p − 1) / ({turns} + p − 1) = {:.0} %", 100.0 * share(ranks, chunks * micro_batches)),
    );
    scene.tell("activations of one rank at once, at most", format!("{peak} micro-batches"));
    Ok(scene)
}

fn share(ranks: usize, turns: usize) -> f64 {
    (ranks - 1) as f64 / (turns + ranks - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_does_everything_once_and_the_bubble_is_the_formulas() {
        for (schedule, ranks, micro_batches) in
            (0..3).flat_map(|s| (2..=6).flat_map(move |p| (1..=12).map(move |m| (s, p, m))))
        {
            let told = format!("{} on {ranks} with {micro_batches}", SCHEDULES[schedule]);
            let chunks = if schedule == 2 { CHUNKS } else { 1 };
            let micro_batches = if schedule == 2 { ranks * micro_batches } else { micro_batches };
            let works = timeline(schedule, ranks, micro_batches);
            assert!(works.iter().all(|works| works.len() == 2 * chunks * micro_batches), "{told}");
            let end = works.iter().flatten().map(|work| work.end).max().unwrap();
            let bubble = 1.0 - (micro_batches as u64 * (FORWARD + BACKWARD)) as f64 / end as f64;
            let formula = share(ranks, chunks * micro_batches);
            assert!((bubble - formula).abs() < 1e-12, "{told}: {bubble}, not {formula}");
        }
    }

    #[test]
    fn one_forward_one_backward_holds_no_more_than_there_are_ranks() {
        let peak = |schedule: usize| {
            let works = timeline(schedule, 4, 12);
            (0..200).map(|at| held(&works[0], at, 1)).fold(0.0, f64::max)
        };
        assert_eq!((peak(0), peak(1)), (12.0, 4.0));
    }
}
