//! Grades `windows`: streams whose last window is whole or shorter, on 1 to 4 ranks, from the beginning and from the middle.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_grading::{Claim, Inputs, Runner, counted, joined};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
struct Case {
    stream: Vec<u32>,
    window: usize,
    rank: usize,
    ranks: usize,
    done: usize,
}

/// Inputs and targets.
type Pair = (Vec<u32>, Vec<u32>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Window, whole windows, tokens of the last one, ranks, windows that are done.
    for (window, whole, rest, ranks, done) in [
        (8, 6, 0, 1, 0),
        (8, 7, 0, 2, 0),
        (6, 8, 4, 3, 0),
        (7, 11, 3, 4, 5),
        (5, 12, 0, 3, 4),
        (6, 9, 2, 2, 3),
        (6, 7, 1, 3, 0),
    ] {
        let stream = draw(&mut random, window * whole + rest + 1);
        let case = |rank| Case { stream: stream.clone(), window, rank, ranks, done };
        let cases: Vec<Case> = (0..ranks).map(case).collect();
        let outputs = runner.call::<_, Vec<Pair>>(1, &cases)?;
        let found: Vec<&Vec<Pair>> = (0..ranks).map(|rank| outputs.of(0, rank)).collect();
        Checked { case: &cases[0], found }.check()?;
    }
    Ok(())
}

/// Different tokens, so that each says where it is.
fn draw(random: &mut Inputs, tokens: usize) -> Vec<u32> {
    let mut left: Vec<u32> = (100..1000).collect();
    (0..tokens).map(|_| left.swap_remove(random.below(0..left.len()))).collect()
}

struct Checked<'a> {
    case: &'a Case,
    /// Of each rank.
    found: Vec<&'a Vec<Pair>>,
}

impl Checked<'_> {
    fn check(&self) -> anyhow::Result<()> {
        self.check_pairs()?;
        self.check_targets()?;
        self.check_order()
    }

    /// The windows as if the first one began at token 0.
    fn all(&self) -> usize {
        (self.case.stream.len() - 1).div_ceil(self.case.window)
    }

    fn given(&self) -> String {
        let Case { stream, window, ranks, done, .. } = self.case;
        format!(
            "{} tokens in windows of {window}, on {}, {} done",
            stream.len(),
            counted(*ranks, "rank"),
            counted(*done, "window")
        )
    }

    /// Each target follows its input.
    fn check_pairs(&self) -> anyhow::Result<()> {
        let Case { stream, window, .. } = self.case;
        let places: BTreeMap<u32, usize> = stream.iter().copied().zip(0..).collect();
        for (rank, pairs) in self.found.iter().enumerate() {
            for (number, (inputs, targets)) in pairs.iter().enumerate() {
                let after = |token: &u32| places.get(token).and_then(|place| stream.get(place + 1)).copied();
                let follow: Vec<u32> = inputs.iter().filter_map(after).collect();
                let is_run = inputs.windows(2).all(|two| after(&two[0]) == Some(two[1]));
                let described = |tokens: &[u32]| joined(tokens, " ");
                let right = if follow.is_empty() {
                    "inputs of the stream, each with the token that follows it".to_owned()
                } else {
                    format!("the targets {}", described(&follow))
                };
                let before = inputs.len().saturating_sub(1);
                let listed = |tokens: &[u32]| if tokens.is_empty() { "none".to_owned() } else { described(tokens) };
                Claim::that(
                    !inputs.is_empty() && is_run && follow == *targets && inputs.len() == targets.len(),
                    right,
                    format!("the inputs {}, the targets {}", listed(inputs), listed(targets)),
                )
                .on_rank(rank)
                .given(format!("{}; window {number} of this rank", self.given()))
                .diagnose_if(inputs.is_empty(), "a window without inputs: a rank may have fewer windows, but not empty ones")
                .diagnose_if(
                    inputs.iter().chain(targets).any(|token| !places.contains_key(token)),
                    "a token that is not in the stream: the last window may be shorter, and nothing fills it up",
                )
                .diagnose_if(
                    inputs == targets,
                    "the targets are the inputs themselves, so the model learns to copy: the target of a token is the one that follows",
                )
                .diagnose_if(
                    targets.iter().filter_map(after).eq(inputs.iter().copied()) && targets.len() == inputs.len(),
                    "each target is the token before its input: inputs and targets are swapped",
                )
                .diagnose_if(
                    inputs.len() > targets.len() && follow == *targets,
                    "the stream's last token is an input without a target: no token follows it",
                )
                .diagnose_if(
                    is_run && follow.len() == inputs.len() && targets.len() == before && follow.starts_with(targets),
                    "the window's last input has no target: it is the token that follows in the stream, the next window's first input",
                )
                .diagnose_if(
                    is_run && targets.len() == inputs.len() && inputs.get(1..).is_some_and(|rest| targets.starts_with(rest)) && targets[before] == inputs[0],
                    "the last target is the window's own first token: it is the one that follows in the stream",
                )
                .diagnose_if(!is_run, "the inputs of a window are neighbours in the stream")
                .or_fail("the target of each input is the token that follows it in the stream")?;
                let ends_last = places.get(&targets[targets.len() - 1]) == Some(&(stream.len() - 1));
                Claim::that(
                    inputs.len() == *window || inputs.len() < *window && ends_last,
                    format!("{window} inputs"),
                    inputs.len().to_string(),
                )
                .on_rank(rank)
                .given(format!("{}; window {number} of this rank", self.given()))
                .or_fail("only the last window of the stream may be shorter than the others")?;
            }
        }
        Ok(())
    }

    /// The places of all targets, in the order of ranks and windows.
    fn targets(&self) -> Vec<usize> {
        let places: BTreeMap<u32, usize> = self.case.stream.iter().copied().zip(0..).collect();
        let tokens = self.found.iter().flat_map(|pairs| pairs.iter()).flat_map(|(_, targets)| targets.clone());
        tokens.filter_map(|token| places.get(&token).copied()).collect()
    }

    /// Each token that is left is a target once.
    fn check_targets(&self) -> anyhow::Result<()> {
        let Case { stream, window, ranks, done, .. } = self.case;
        let found = self.targets();
        let once: BTreeSet<usize> = found.iter().copied().collect();
        let right: BTreeSet<usize> = (done * window + 1..stream.len()).collect();
        let missing: Vec<usize> = right.difference(&once).copied().collect();
        let again: Vec<usize> = once.difference(&right).copied().collect();
        let twice = found.len() - once.len();
        let last = (stream.len() - 1) % window;
        let begin = once.first().map_or(0, |first| first.saturating_sub(1));
        let windows = |from: usize| (from * window + 1..stream.len()).collect::<BTreeSet<usize>>();
        let of_each = windows((done * ranks).min(self.all()));
        let every_one = missing.len() > 1 && missing.windows(2).all(|two| two[1] - two[0] == window + 1);
        Claim::that(
            missing.is_empty() && again.is_empty() && twice == 0,
            format!("the tokens {} to {} as targets, each once", done * window + 1, stream.len() - 1),
            format!(
                "{} of them missing, {} more than once, {} from before",
                missing.len(),
                counted(found.len() - once.len(), "target"),
                again.len()
            ),
        )
        .given(self.given())
        .diagnose_if(
            *ranks > 1 && !found.is_empty() && self.found.iter().all(|pairs| pairs == &self.found[0]),
            "all ranks take the same windows: each window belongs to one rank",
        )
        .diagnose_if(
            every_one,
            "the first token of each window is never a target: pieces of window + 1 tokens do not overlap, but a window's last target is \
             the next one's first input",
        )
        .diagnose_if(
            *done > 0 && begin == 0 && missing.is_empty() && twice == 0,
            "the windows that are done come again: go on after them",
        )
        .diagnose_if(
            *done > 0 && twice == 0 && once == (done + 1..stream.len()).collect(),
            "`done` counts windows, not tokens",
        )
        .diagnose_if(
            *done > 0 && *ranks > 1 && twice == 0 && once == of_each,
            "windows are left out: `done` are those of all ranks together, not of each",
        )
        .diagnose_if(
            twice > 0 && self.wraps(),
            "windows come twice, so that all ranks have as many: a rank may have one less",
        )
        .diagnose_if(
            twice > 0,
            "windows overlap: a token is a target more than once. The next window begins where this one's inputs end",
        )
        .diagnose_if(
            last > 0 && missing.len() == last && missing.last() == Some(&(stream.len() - 1)),
            "the last window is left out, because it is shorter: its tokens count, too",
        )
        .diagnose_if(
            twice == 0 && *done > 0 && !again.is_empty() && again.iter().all(|target| *target <= done * window),
            "windows that are done come again: `done` are those of all ranks together, so the first new one has this number",
        )
        .diagnose_if(
            missing.first().is_some_and(|first| missing.len() == stream.len() - first) && again.is_empty(),
            "windows at the end are left out. The ranks need not have as many: in the last step some may have one more",
        )
        .or_fail("each token but the first is a target exactly once, on one of the ranks, or in the windows that are done")
    }

    /// Returns true if ranks that have nothing left take windows again.
    fn wraps(&self) -> bool {
        let lengths: BTreeSet<usize> = self.found.iter().map(|pairs| pairs.len()).collect();
        let left = self.all() - self.case.done;
        lengths.len() == 1
            && lengths.first() == Some(&left.div_ceil(self.case.ranks))
            && !left.is_multiple_of(self.case.ranks)
    }

    /// In each step the next windows are taken.
    fn check_order(&self) -> anyhow::Result<()> {
        let Case { stream, window, ranks, done, .. } = self.case;
        let number =
            |(inputs, _): &Pair| stream.iter().position(|token| token == &inputs[0]).map_or(0, |place| place / window);
        let lists: Vec<Vec<usize>> = self.found.iter().map(|pairs| pairs.iter().map(number).collect()).collect();
        let left = self.all() - done;
        for step in 0..left.div_ceil(*ranks) {
            let taken: BTreeSet<usize> = lists.iter().filter_map(|list| list.get(step)).copied().collect();
            let first = done + step * ranks;
            let next: BTreeSet<usize> = (first..self.all().min(first + ranks)).collect();
            let listed = |numbers: &BTreeSet<usize>| joined(&numbers.iter().collect::<Vec<_>>(), ", ");
            let neighbours = lists.iter().all(|list| list.windows(2).all(|two| two[1] == two[0] + 1));
            Claim::that(taken == next, format!("the windows {}", listed(&next)), format!("the windows {}", listed(&taken)))
                .given(format!("{}; step {step} of all ranks", self.given()))
                .diagnose_if(
                    neighbours,
                    "each rank takes a block of neighbours: if the run stops in the middle, the windows that are done are not the first \
                     ones of the stream, and another number of ranks cannot go on",
                )
                .or_fail("in each step the ranks together take the next windows of the stream, one each")?;
        }
        Ok(())
    }
}
