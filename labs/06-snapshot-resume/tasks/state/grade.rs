//! Grades `state`: compares a run that was stopped with one that was not, and both with the momentum of PyTorch's SGD
//! (`torch/optim/sgd.py`).

use lockstep_grading::runner::Inputs;
use lockstep_grading::{Claim, Runner, close};

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
    /// The last bits of the rate, which is computed as a power.
    Bits,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // A power of the decay often has the bits of a product of as many factors: draw steps at which they differ.
    let (cases, end) = loop {
        let (cases, end) = draw(&mut random);
        if cases[1..].iter().all(|case| reference(case, Loses::Bits) != reference(case, Loses::Nothing)) {
            break (cases, end);
        }
    };
    let outputs = runner.call::<_, (Vec<f64>, u64)>(1, &cases)?;
    let (undisturbed, _) = outputs.of(0, 0);
    let reference = reference(&cases[0], Loses::Nothing);
    Claim::close(&reference, undisturbed, 1e-9)
        .given(given(&cases[0]))
        .or_fail("a run without a stop ends with different weights: change only what is saved and loaded")?;
    for (number, case) in cases.iter().enumerate() {
        let (weights, computed) = outputs.of(0, number);
        check(case, end, undisturbed, weights, *computed)?;
    }
    Ok(())
}

/// Runs of as many steps: without a stop, with one, and with two.
fn draw(random: &mut Inputs) -> ([Case; 3], u64) {
    // Far from the targets, so the velocity is never zero at a stop.
    let initial: Vec<f64> = random.numbers(3).into_iter().map(|number| number + 10.0).collect();
    let targets = [random.numbers(3), random.numbers(3)];
    let (first, second) = (random.below(2..6) as u64, random.below(7..10) as u64);
    let end = second + 5;
    let case = |stops: &[u64]| (initial.clone(), targets.clone(), stops.to_vec());
    ([case(&[end]), case(&[first, end]), case(&[first, second, end])], end)
}

fn check(case: &Case, end: u64, undisturbed: &[f64], observed: &[f64], computed: u64) -> anyhow::Result<()> {
    Claim::that(computed == end, format!("{end} steps are computed"), format!("{computed} steps are computed"))
        .given(given(case))
        .or_fail("the run does not continue where it was stopped: it must begin with the step that was saved")?;
    let as_if = |loses| close(&reference(case, loses), observed, 1e-9);
    let far =
        |one: &[f64]| one.iter().zip(undisturbed).map(|(one, right)| ((one - right) / right).abs()).fold(0.0, f64::max);
    Claim::equal(undisturbed, observed)
        .given(given(case))
        .diagnose_if(
            as_if(Loses::Both),
            "only the weights were saved: after a stop, the velocity starts at zero and the learning rate at its initial value",
        )
        .diagnose_if(as_if(Loses::Velocity), "the velocity starts at zero after a stop: momentum is state, so save it with the weights")
        .diagnose_if(
            as_if(Loses::Rate),
            "the learning rate starts at its initial value after a stop: save it, or compute it from the step",
        )
        .diagnose_if(
            as_if(Loses::Nothing),
            "the weights are nearly the same, but not to the last bit: a number is rounded in the snapshot, or computed in another way \
             than step by step, such as by a power",
        )
        .diagnose_if(
            far(observed) < 1e-6,
            "the weights are right only to six digits: a number is saved or computed in single precision. All of them are `f64`",
        )
        .diagnose_if(
            as_if(Loses::Behind),
            "the learning rate is one step behind after a stop: the snapshot holds the rate of the step that was done, and the next step \
             reads the one that has fallen since",
        )
        .or_fail("the resumed run does not end like the undisturbed one: what else does the next step read?")
}

fn given(case: &Case) -> String {
    let (stops, end) = (&case.2[..case.2.len() - 1], case.2[case.2.len() - 1]);
    match stops {
        [] => format!("{end} steps, not stopped"),
        stops => format!("{end} steps, stopped before steps {stops:?} and started again from the snapshot"),
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
        if stops.contains(&step) && loses == Loses::Bits {
            rate = 0.1 * 0.95_f64.powi(step as i32);
        }
        for (at, weight) in weights.iter_mut().enumerate() {
            velocity[at] = 0.9 * velocity[at] + (*weight - targets[step as usize % 2][at]);
            *weight -= rate * velocity[at];
        }
        rate *= 0.95;
    }
    weights
}
