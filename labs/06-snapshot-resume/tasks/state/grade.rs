//! Grades `state`: compares a run that was stopped with one that was not, and both with the momentum of PyTorch's SGD
//! (`torch/optim/sgd.py`).

use lockstep_grading::runner::Inputs;
use lockstep_grading::{Claim, Runner, close, joined};

/// Initial weights, targets of two samples, and the steps at which the run is stopped.
type Case = (Vec<f64>, [Vec<f64>; 2], Vec<u64>);

/// What the reference loses at each stop.
#[derive(Clone, Copy, PartialEq)]
enum Loses {
    Nothing,
    Velocity,
    Rate,
    Both,
    /// The last fall of the rate.
    Behind,
    /// Nothing, and the rate falls once too often.
    Ahead,
    /// The last bits of the rate, which is computed as a power.
    Bits,
}

/// What one start of the answer gave: the weights, the snapshot, the steps that were computed, and the weights at the first of them.
type Start = (Vec<f64>, String, Vec<u64>, Option<Vec<f64>>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // A power of the decay often has the bits of a product of as many factors: draw steps at which they differ. Where `powf` does, which Python's
    // `**` calls, `powi` does as well.
    let cases = loop {
        let cases = draw(&mut random);
        if cases[1..].iter().all(|case| reference(case, Loses::Bits) != reference(case, Loses::Nothing)) {
            break cases;
        }
    };
    let (mut snapshots, mut last) = (vec![None; cases.len()], vec![Vec::new(); cases.len()]);
    for stop in 0..3 {
        // Each start is a process of its own, which knows only the snapshot.
        let of: Vec<usize> = (0..cases.len()).filter(|case| cases[*case].2.len() > stop).collect();
        let inputs: Vec<_> =
            of.iter().map(|case| (&cases[*case].0, &cases[*case].1, &snapshots[*case], cases[*case].2[stop])).collect();
        let shown = |input: usize| given(&cases[of[input]]);
        let outputs = runner.call::<_, Start>(1, &inputs).map_err(|error| lockstep_grading::given(error, shown))?;
        for (output, case) in of.into_iter().enumerate() {
            let (weights, snapshot, steps, first) = outputs.of(0, output);
            begins(&cases[case], stop, steps, first.as_deref(), &last[case])?;
            (last[case], snapshots[case]) = (weights.clone(), Some(snapshot.clone()));
        }
    }
    let reference = reference(&cases[0], Loses::Nothing);
    Claim::close(&reference, &last[0], 1e-9)
        .given(given(&cases[0]))
        .or_fail("a run without a stop ends with different weights: change only what is saved and loaded")?;
    cases.iter().zip(&last).try_for_each(|(case, weights)| check(case, &last[0], weights))
}

/// A start must compute the steps from the last stop to the next, beginning with the weights that it had.
fn begins(case: &Case, stop: usize, steps: &[u64], first: Option<&[f64]>, last: &[f64]) -> anyhow::Result<()> {
    let (from, to) = (stop.checked_sub(1).map_or(0, |before| case.2[before]), case.2[stop]);
    let mut computed = steps.to_vec();
    computed.dedup(); // asking twice changes nothing
    let span = |steps: &[u64]| match steps {
        [] => "no step".to_owned(),
        [one] => format!("step {one}"),
        [begin, .., end] => format!("steps {begin} to {end}"),
    };
    let start = if stop == 0 { "the first start" } else { "the start from the snapshot" };
    Claim::that(
        computed.iter().copied().eq(from..to),
        format!("{start} computes {}", span(&[from, to - 1])),
        format!("it computes {}", span(&computed)),
    )
    .given(given(case))
    .diagnose_if(
        stop > 0 && computed.first() == Some(&0) && computed.last() == Some(&(to - 1)),
        "all steps are computed again: the snapshot is not read, or its step is not where the loop begins",
    )
    .diagnose_if(
        from > 0 && computed.first() == Some(&(from - 1)),
        "the last step before the stop is trained twice: the snapshot must name the step that comes next",
    )
    .diagnose_if(
        computed.first().is_some_and(|first| *first > from),
        "a step is left out after the stop: the snapshot must name the step that comes next",
    )
    .diagnose_if(
        from > 0 && computed.first() == Some(&0),
        "after the stop the steps are counted from 0 again: the loop must begin with the step that was saved, and end with `until`",
    )
    .or_fail("a run must compute each step once: from the step that was saved up to the one before `until`")?;
    Claim::equal(last, first.filter(|_| stop > 0).unwrap_or(last))
        .given(given(case))
        .diagnose_if(
            first.is_some_and(|first| close(last, first, 1e-5)),
            "the start from the snapshot begins with nearly the last weights of the run before, but not to the last bit: numbers are rounded on \
             their way through the snapshot. Save all their digits",
        )
        .or_fail("the start from the snapshot does not begin with the last weights of the run before")
}

/// Runs of as many steps: without a stop, with one, and with two.
fn draw(random: &mut Inputs) -> [Case; 3] {
    // Far from the targets, so the velocity is never zero at a stop.
    let initial: Vec<f64> = random.numbers(3).into_iter().map(|number| number + 10.0).collect();
    let targets = [random.numbers(3), random.numbers(3)];
    let (first, second) = (random.below(2..6) as u64, random.below(7..10) as u64);
    let end = second + 5;
    let case = |stops: &[u64]| (initial.clone(), targets.clone(), stops.to_vec());
    [case(&[end]), case(&[first, end]), case(&[first, second, end])]
}

fn check(case: &Case, undisturbed: &[f64], observed: &[f64]) -> anyhow::Result<()> {
    let as_if = |loses| close(&reference(case, loses), observed, 1e-9);
    Claim::equal(undisturbed, observed)
        .given(given(case))
        .cause_if(
            as_if(Loses::Both),
            "only the weights were saved: after a stop, the velocity starts at zero and the learning rate at its initial value",
        )
        .cause_if(as_if(Loses::Velocity), "the velocity starts at zero after a stop: momentum is state, so save it with the weights")
        .cause_if(
            as_if(Loses::Rate),
            "the learning rate starts at its initial value after a stop: save it, or compute it from the step",
        )
        .diagnose_if(
            as_if(Loses::Nothing),
            "the weights are nearly the same, but not to the last bit: a number is rounded in the snapshot, or computed in another way \
             after a stop, such as by a power instead of step by step",
        )
        .diagnose_if(
            close(undisturbed, observed, 1e-5),
            "the weights are right only to six digits or so: a number is rounded in the snapshot, or saved in single precision. All of \
             them are `f64`",
        )
        .cause_if(
            as_if(Loses::Behind),
            "the learning rate is one step behind after a stop: the snapshot holds the rate of the last step, and the next step needs the \
             one that has fallen since",
        )
        .cause_if(
            as_if(Loses::Ahead),
            "the learning rate is one step ahead after a stop: it falls once more between the last step before the stop and the next",
        )
        .or_fail("the resumed run does not end like one without a stop: what else does the next step read?")
}

fn given(case: &Case) -> String {
    let (stops, end) = (&case.2[..case.2.len() - 1], case.2[case.2.len() - 1]);
    match stops {
        [] => format!("{end} steps, not stopped"),
        [one] => format!("{end} steps, stopped before step {one} and started again from the snapshot"),
        several => {
            let several = joined(several, " and ");
            format!("{end} steps, stopped before steps {several} and started again from the snapshots")
        }
    }
}

fn reference((initial, targets, stops): &Case, loses: Loses) -> Vec<f64> {
    let (mut weights, mut velocity, mut rate) = (initial.clone(), vec![0.0; initial.len()], 0.1);
    for step in 0..stops[stops.len() - 1] {
        if stops.contains(&step) && matches!(loses, Loses::Velocity | Loses::Both) {
            velocity.fill(0.0);
        }
        if stops.contains(&step) && matches!(loses, Loses::Rate | Loses::Both) {
            rate = 0.1;
        }
        if stops.contains(&step) && loses == Loses::Behind {
            rate /= 0.95;
        }
        if stops.contains(&step) && loses == Loses::Ahead {
            rate *= 0.95;
        }
        if stops.contains(&step) && loses == Loses::Bits {
            rate = 0.1 * 0.95_f64.powf(step as f64);
        }
        for (at, weight) in weights.iter_mut().enumerate() {
            velocity[at] = 0.9 * velocity[at] + (*weight - targets[step as usize % 2][at]);
            *weight -= rate * velocity[at];
        }
        rate *= 0.95;
    }
    weights
}
