//! Which rank takes which sample: `lockstep::sampler`'s order, dealt to the ranks, with padding; and the rest of an epoch after a resume on
//! another number of ranks.

use crate::order::{every, randperm};
use crate::scene::{Controls, Frame, Scene};

/// Each rank's samples: positions `taken + rank`, `taken + rank + ranks`, … of the order, as many for each; padding is the order's beginning.
fn dealt(order: &[usize], taken: usize, ranks: usize, drop_last: bool) -> Vec<Vec<usize>> {
    let left = order.len() - taken;
    let each = if drop_last { left / ranks } else { left.div_ceil(ranks) };
    (0..ranks).map(|rank| every(order, taken + rank, ranks, each)).collect()
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let samples = controls.count("samples", "samples", [4, 48], 22);
    let ranks = controls.count("ranks", "ranks", [1, 6], 4);
    let batch = controls.count("batch", "samples of a rank in a step", [1, 4], 2);
    let epoch = controls.count("epoch", "epoch", [0, 9], 0);
    let shuffle = controls.choice("shuffle", "order", &["shuffled", "as they are"]) == 0;
    let drop_last = controls.choice("rest", "what is left over", &["padded", "dropped"]) == 1;
    let resume = controls.count("resume", "stop after step", [0, 6], 0);
    let then = controls.count("then", "and resume on ranks", [1, 6], 3);

    let order = if shuffle { randperm(samples, epoch as u64) } else { (0..samples).collect() };
    let mut steps: Vec<(usize, Vec<Vec<usize>>)> = Vec::new();
    let mut turns = |dealt: Vec<Vec<usize>>, limit: usize| {
        let each = dealt.first().map_or(0, Vec::len);
        let some = (0..each).step_by(batch).take(limit);
        some.for_each(|from| {
            steps.push((dealt.len(), dealt.iter().map(|own| own[from..(from + batch).min(each)].to_vec()).collect()))
        });
    };
    let all = dealt(&order, 0, ranks, drop_last);
    let whole = all.first().map_or(0, |own| own.len().div_ceil(batch));
    let stops = resume > 0 && resume < whole;
    turns(all, if stops { resume } else { usize::MAX });
    if stops {
        turns(dealt(&order, (resume * batch * ranks).min(samples), then, drop_last), usize::MAX);
    }

    // The order above, ranks below.
    let per_row = if width < 500.0 { 12 } else { 24 };
    let (size, left) = ((width / per_row as f64).min(30.0), if width < 500.0 { 44.0 } else { 64.0 });
    let rows = samples.div_ceil(per_row);
    let (top, row) = (22.0 + rows as f64 * size + 30.0, 28.0);
    let lanes = ranks.max(if stops { then } else { 0 });
    let height = top + lanes as f64 * row + 4.0;
    let mut times = vec![0; samples];
    let mut frames = Vec::new();
    for now in 0..=steps.len() {
        let says = match now {
            0 => format!("The order of epoch {epoch}: the same on all ranks."),
            now if now == steps.len() => "The end of the epoch.".to_owned(),
            now if stops && now == resume => {
                format!("Step {now}. The job is killed here, and resumes on {then} ranks.")
            }
            now => format!("Step {now}: each rank takes its next {batch}."),
        };
        let mut frame = Frame { says, shapes: Vec::new() };
        if let Some((_, taken)) = now.checked_sub(1).and_then(|at| steps.get(at)) {
            taken.iter().flatten().for_each(|sample| times[*sample] += 1);
        }
        frame.words("order", [0.0, 2.0], "faint", "the order of this epoch:");
        for (at, sample) in order.iter().enumerate() {
            let [x, y] = [(at % per_row) as f64 * size, 22.0 + (at / per_row) as f64 * size];
            let class = match times[*sample] {
                0 => "cell",
                1 => "done",
                _ => "wrong",
            };
            frame.cell(format!("order {sample}"), [x, y, size - 3.0, size - 3.0], class, sample.to_string());
        }
        frame.words("taken", [0.0, top - 20.0], "faint", "taken in this step:");
        let in_step = now.checked_sub(1).and_then(|at| steps.get(at));
        for rank in 0..in_step.map_or(ranks, |(ranks, _)| *ranks) {
            let y = top + rank as f64 * row;
            frame.words(
                format!("name {rank}"),
                [0.0, y + 4.0],
                "plain",
                format!("{} {rank}", if width < 500.0 { "r." } else { "rank" }),
            );
            let own = in_step.map_or(&[][..], |(_, taken)| &taken[rank]);
            for (at, sample) in own.iter().enumerate() {
                frame.cell(
                    format!("{rank} {at}"),
                    [left + at as f64 * 40.0, y, 34.0, row - 6.0],
                    "moving",
                    sample.to_string(),
                );
            }
        }
        frames.push(frame);
    }
    let (never, twice) =
        (times.iter().filter(|times| **times == 0).count(), times.iter().filter(|times| **times > 1).count());
    let mut scene = Scene { width, height, frames, facts: Vec::new(), first: 0 };
    scene.tell("steps", steps.len().to_string());
    scene.tell("samples never taken", never.to_string());
    scene.tell("samples taken twice (padding)", twice.to_string());
    Ok(scene)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of `lockstep::sampler::DistributedSampler`'s documentation, and PyTorch's: 5 samples on 2 ranks, in order.
    #[test]
    fn ranks_take_turns_and_the_first_samples_pad() {
        let order: Vec<usize> = (0..5).collect();
        assert_eq!(dealt(&order, 0, 2, false), [[0, 2, 4], [1, 3, 0]]);
        assert_eq!(dealt(&order, 0, 2, true), [[0, 2], [1, 3]]);
        assert_eq!(dealt(&order, 2, 3, false), [[2], [3], [4]]);
    }

    #[test]
    fn an_epoch_that_resumes_on_another_number_of_ranks_leaves_no_sample_out() {
        for (ranks, then, taken) in [(4, 3, 8), (2, 5, 6), (6, 1, 12)] {
            let order = randperm(22, 3);
            let first = dealt(&order, 0, ranks, false);
            let before = first.iter().flat_map(|own| own[..taken / ranks].to_vec());
            let after = dealt(&order, taken, then, false);
            let mut all: Vec<usize> = before.chain(after.into_iter().flatten()).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all, (0..22).collect::<Vec<_>>());
        }
    }
}
