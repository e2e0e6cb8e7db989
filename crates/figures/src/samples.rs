//! Which rank takes which sample: `lockstep::sampler`'s order, dealt to the ranks, with padding; and the rest of an epoch after a resume on
//! another number of ranks.

use crate::order::{every, randperm};
use crate::scene::{Controls, Frame, Scene, is_narrow};

/// Each rank's samples: positions `taken + rank`, `taken + rank + ranks`, … of the order, as many for each; padding is the order's beginning.
fn dealt(order: &[usize], taken: usize, ranks: usize, drop_last: bool) -> Vec<Vec<usize>> {
    let left = order.len() - taken;
    let each = if drop_last { left / ranks } else { left.div_ceil(ranks) };
    (0..ranks).map(|rank| every(order, taken + rank, ranks, each)).collect()
}

/// What each rank takes in a step.
type Step = Vec<Vec<usize>>;

/// The ranks' samples in steps of `batch` samples each.
fn steps(dealt: &[Vec<usize>], batch: usize) -> impl Iterator<Item = Step> {
    let each = dealt.first().map_or(0, Vec::len);
    let part = move |from: usize| dealt.iter().map(|own| own[from..(from + batch).min(each)].to_vec()).collect();
    (0..each).step_by(batch).map(part)
}

/// The order above, ranks below.
struct Drawing<'a> {
    order: &'a [usize],
    width: f64,
    per_row: usize,
    size: f64,
    top: f64,
}

impl<'a> Drawing<'a> {
    const ROW: f64 = 28.0;

    fn new(order: &'a [usize], width: f64) -> Self {
        let per_row = if is_narrow(width) { 12 } else { 24 };
        let size = (width / per_row as f64).min(30.0);
        let top = 22.0 + order.len().div_ceil(per_row) as f64 * size + 30.0;
        Drawing { order, width, per_row, size, top }
    }

    /// `times` says how often each sample has been taken so far; the step has what each rank takes now.
    fn frame(&self, says: String, times: &[usize], step: &[Vec<usize>]) -> Frame {
        let mut frame = Frame::new(says);
        frame.words("order", [0.0, 2.0], "faint", "the order of this epoch:");
        for (at, sample) in self.order.iter().enumerate() {
            let (column, row) = (at % self.per_row, at / self.per_row);
            let [x, y] = [column as f64 * self.size, 22.0 + row as f64 * self.size];
            let class = match times[*sample] {
                0 => "cell",
                1 => "done",
                _ => "wrong",
            };
            let place = [x, y, self.size - 3.0, self.size - 3.0];
            frame.cell(format!("order {sample}"), place, class, sample.to_string());
        }
        frame.words("taken", [0.0, self.top - 20.0], "faint", "taken in this step:");
        for (rank, own) in step.iter().enumerate() {
            let y = self.top + rank as f64 * Self::ROW;
            frame.rank(rank, y + 4.0, self.width);
            for (at, sample) in own.iter().enumerate() {
                let place = [Frame::after_rank(self.width) + at as f64 * 40.0, y, 34.0, Self::ROW - 6.0];
                frame.cell(format!("{rank} {at}"), place, "moving", sample.to_string());
            }
        }
        frame
    }
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
    let mut taken: Vec<Step> = steps(&dealt(&order, 0, ranks, drop_last), batch).collect();
    let stops = resume > 0 && resume < taken.len();
    if stops {
        taken.truncate(resume);
        let rest = dealt(&order, (resume * batch * ranks).min(samples), then, drop_last);
        taken.extend(steps(&rest, batch));
    }
    let drawing = Drawing::new(&order, width);
    let lanes = if stops { ranks.max(then) } else { ranks };
    let mut times = vec![0; samples];
    // Before the first step, ranks have nothing.
    let before = [vec![Vec::new(); ranks]];
    let frame = |(now, step): (usize, &Step)| {
        step.iter().flatten().for_each(|sample| times[*sample] += 1);
        let says = match now {
            0 => format!("The order of epoch {epoch}: the same on all ranks."),
            now if now == taken.len() => "The end of the epoch.".to_owned(),
            now if stops && now == resume => {
                format!("Step {now}. The job is killed here, and resumes on {then} ranks.")
            }
            now => format!("Step {now}: each rank takes its next {batch}."),
        };
        drawing.frame(says, &times, step)
    };
    let frames = before.iter().chain(&taken).enumerate().map(frame).collect();
    let mut scene = Scene::new([width, drawing.top + lanes as f64 * Drawing::ROW + 4.0], frames);
    scene.tell("steps", taken.len().to_string());
    let number = |is: fn(usize) -> bool| times.iter().filter(|times| is(**times)).count().to_string();
    scene.tell("samples never taken", number(|times| times == 0));
    scene.tell("samples taken twice (padding)", number(|times| times > 1));
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
