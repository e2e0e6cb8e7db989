//! Task `exchange`: pieces of a row with what lies along their borders, on 3 and 2 ranks.

use lockstep_grading::{Claim, Numbers, Stage, close};

use super::waits;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    // Two ranks last: each is both neighbours of the other there.
    for ranks in [3, 2] {
        let mut piece = |rank: usize| -> Vec<f64> {
            let length = random.below(2..7);
            // Rising, so that no two numbers of the row are the same.
            let value = |(place, noise): (usize, f64)| 100.0 * rank as f64 + 10.0 * place as f64 + noise;
            random.numbers(length).into_iter().enumerate().map(value).collect()
        };
        let given: Vec<Vec<f64>> = (0..ranks).map(&mut piece).collect();
        let outputs = stage.call::<_, Numbers>(ranks, &[&given]).map_err(waits::told)?;
        for (rank, observed) in outputs.all(0).enumerate() {
            judge(rank, &given, observed)?;
        }
    }
    Ok(())
}

fn judge(rank: usize, given: &[Vec<f64>], observed: &[f64]) -> anyhow::Result<()> {
    let ranks = given.len();
    let (own, previous, next) = (&given[rank], &given[(rank + ranks - 1) % ranks], &given[(rank + 1) % ranks]);
    let around = |before: f64, after: f64| [&[before], &own[..], &[after]].concat();
    let (first, last) = (|of: &[f64]| of[0], |of: &[f64]| of[of.len() - 1]);
    let expected = around(last(previous), first(next));
    let near = |wrong: &[f64]| close(wrong, observed, 0.0);
    Claim::equal(&expected[..], observed)
        .on_rank(rank)
        .given(format!("the pieces of {ranks} ranks: {given:?}"))
        .knows(observed.len() != own.len() + 2, "the result is the rank's piece with one number in front and one behind")
        .knows(
            ranks == 2 && near(&around(first(next), last(previous))),
            "the two messages from the other rank have changed places. It is both neighbours at once, so both messages come \
             from the same rank, and if they have one tag as well, they match in the order in which they were started",
        )
        .knows(
            near(&around(first(next), last(previous))),
            "what came from the next rank stands in front, and what came from the previous one behind",
        )
        .knows(
            near(&around(first(previous), last(next))),
            "these are the neighbours' numbers from their far ends: the next rank needs this piece's last number, the \
             previous one its first",
        )
        .knows(
            near(&around(first(own), last(own))) || near(&around(last(own), first(own))),
            "the numbers at the ends are this rank's own: nothing was received",
        )
        .knows(
            near(&around(0.0, 0.0)),
            "the numbers at the ends are still what they were before anything came: use the tensors that `wait` gives back",
        )
        .otherwise("in front stands the last number of the previous rank's piece, behind the first of the next one's")
}
