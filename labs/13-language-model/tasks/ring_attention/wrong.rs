//! Answers to `ring_attention`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor, no_grad};

use crate::ring::Ring;

/// An output, and the logarithm of its sum of exponentials.
type Part = (Tensor, Tensor);

fn early(x: &Tensor) -> Tensor {
    x.narrow(0, 0, x.size()[0] / 2)
}

fn late(x: &Tensor) -> Tensor {
    x.narrow(0, x.size()[0] / 2, x.size()[0] / 2)
}

fn merge(one: &Part, other: &Part) -> Part {
    let log_sum = one.1.logaddexp(&other.1);
    let share = |part: &Part| &part.0 * (&part.1 - &log_sum).exp();
    (share(one) + share(other), log_sum)
}

/// Nothing seen yet, by as many queries.
fn nothing(queries: &Tensor) -> Part {
    (queries.zeros_like(), Tensor::full([queries.size()[0], 1], f64::NEG_INFINITY, (Kind::Double, queries.device())))
}

/// What this rank's early and late queries see of its own block.
fn own(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<[Part; 2]> {
    let (output, log_sum) = ring.attend(queries, keys, values, true)?;
    Ok([(early(&output), early(&log_sum)), (late(&output), late(&log_sum))])
}

/// What they see of the block of another rank; nothing where it comes later.
fn seen(ring: &Ring<'_>, of: usize, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<[Part; 2]> {
    Ok(if of < ring.rank() {
        let (output, log_sum) = ring.attend(queries, &early(keys), &early(values), false)?;
        [(early(&output), early(&log_sum)), (late(&output), late(&log_sum))]
    } else {
        [nothing(&early(queries)), ring.attend(&late(queries), keys, values, false)?]
    })
}

/// All blocks go round as `sent` sends them; `join` puts what is seen of a block to what was seen before, from the own block on.
fn round(
    ring: &Ring<'_>,
    [queries, keys, values]: [&Tensor; 3],
    shifts: usize,
    sent: impl Fn(&Tensor) -> Result<Tensor>,
    join: impl Fn(&Part, &Part) -> Part,
) -> Result<[Part; 2]> {
    let [mut first, mut second] = own(ring, queries, keys, values)?;
    let mut block = Tensor::stack(&[keys, values], 0);
    for step in 1..=shifts {
        block = sent(&block)?;
        let of = (ring.rank() + 2 * ring.ranks() - step) % ring.ranks();
        let [one, other] = seen(ring, of, queries, &block.get(0), &block.get(1))?;
        (first, second) = (join(&first, &one), join(&second, &other));
    }
    Ok([first, second])
}

fn whole([first, second]: [Part; 2]) -> Tensor {
    Tensor::cat(&[first.0, second.0], 0)
}

/// The given program: sees the rank's own keys.
#[given]
pub fn own_keys() {}

/// All pairs with the keys of other ranks.
fn whole_blocks(ring: &Ring<'_>, [queries, keys, values]: [&Tensor; 3], own_causal: bool) -> Result<Tensor> {
    let mut all = ring.attend(queries, keys, values, own_causal)?;
    let mut block = Tensor::stack(&[keys, values], 0);
    for _ in 1..ring.ranks() {
        block = ring.to_next(&block)?;
        all = merge(&all, &ring.attend(queries, &block.get(0), &block.get(1), false)?);
    }
    Ok(all.0)
}

/// Has no mask.
pub fn not_causal(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    whole_blocks(ring, [queries, keys, values], false)
}

/// Takes all of each block of another rank.
pub fn all_of_others(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    whole_blocks(ring, [queries, keys, values], true)
}

/// Takes lower ranks for earlier ones, as if each had one chunk.
pub fn one_chunk(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let mut all = ring.attend(queries, keys, values, true)?;
    let mut block = Tensor::stack(&[keys, values], 0);
    for step in 1..ring.ranks() {
        block = ring.to_next(&block)?;
        let part = ring.attend(queries, &block.get(0), &block.get(1), false)?;
        // Used by each rank, so that gradients go back; of higher ranks it counts nothing.
        all = if step <= ring.rank() { merge(&all, &part) } else { (&all.0 + &part.0 * 0.0, all.1) };
    }
    Ok(all.0)
}

/// Adds the outputs up.
pub fn sums(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let add = |one: &Part, other: &Part| (&one.0 + &other.0, one.1.shallow_clone());
    Ok(whole(round(ring, [queries, keys, values], ring.ranks() - 1, |block| ring.to_next(block), add)?))
}

/// Averages the outputs.
pub fn averages(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let add = |one: &Part, other: &Part| (&one.0 + &other.0, one.1.shallow_clone());
    let [first, second] = round(ring, [queries, keys, values], ring.ranks() - 1, |block| ring.to_next(block), add)?;
    // The early queries see the blocks of lower ranks, the late ones of all.
    let blocks = [ring.rank() as f64 + 1.0, ring.ranks() as f64];
    Ok(Tensor::cat(&[first.0 / blocks[0], second.0 / blocks[1]], 0))
}

/// Weighs with the sums of exponentials, without taking off the larger logarithm.
pub fn overflows(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let add = |one: &Part, other: &Part| {
        let (one_sum, other_sum) = (one.1.exp(), other.1.exp());
        let sum = &one_sum + &other_sum;
        ((&one.0 * one_sum + &other.0 * other_sum) / &sum, sum.log())
    };
    Ok(whole(round(ring, [queries, keys, values], ring.ranks() - 1, |block| ring.to_next(block), add)?))
}

/// Keeps the logarithm of the own block.
pub fn first_sum(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let add = |one: &Part, other: &Part| (merge(one, other).0, one.1.shallow_clone());
    Ok(whole(round(ring, [queries, keys, values], ring.ranks() - 1, |block| ring.to_next(block), add)?))
}

/// Stops one rank too early.
pub fn misses_one(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let shifts = ring.ranks().saturating_sub(2);
    Ok(whole(round(ring, [queries, keys, values], shifts, |block| ring.to_next(block), merge)?))
}

/// Sends the keys only.
pub fn values_stay(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let sent = |block: &Tensor| Ok(Tensor::stack(&[ring.to_next(&block.get(0))?, values.shallow_clone()], 0));
    Ok(whole(round(ring, [queries, keys, values], ring.ranks() - 1, sent, merge)?))
}

/// Sends copies that do not belong to the graph.
pub fn detached(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let sent = |block: &Tensor| no_grad(|| ring.to_next(&block.detach()));
    Ok(whole(round(ring, [queries, keys, values], ring.ranks() - 1, sent, merge)?))
}

/// Stops when the blocks of all lower ranks were here, as if each had one chunk: the others wait.
pub fn skips(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let mut all = ring.attend(queries, keys, values, true)?;
    let mut block = Tensor::stack(&[keys, values], 0);
    for _ in 0..ring.rank() {
        block = ring.to_next(&block)?;
        all = merge(&all, &ring.attend(queries, &block.get(0), &block.get(1), false)?);
    }
    Ok(all.0)
}

/// Computes all pairs, and hides the pairs with later keys.
pub fn hides(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let [mut first, mut second] = own(ring, queries, keys, values)?;
    let mut block = Tensor::stack(&[keys, values], 0);
    for step in 1..ring.ranks() {
        block = ring.to_next(&block)?;
        let (keys, values) = (block.get(0), block.get(1));
        let hidden = |queries: &Tensor, keys: &Tensor, values: &Tensor, sees: bool| -> Result<Part> {
            let (output, log_sum) = ring.attend(queries, keys, values, false)?;
            Ok((output, if sees { log_sum } else { log_sum + f64::NEG_INFINITY }))
        };
        let lower = step <= ring.rank();
        for (number, sees) in [(0, [lower, true]), (1, [false, !lower])] {
            let of = |x: &Tensor| if number == 0 { early(x) } else { late(x) };
            first = merge(&first, &hidden(&early(queries), &of(&keys), &of(&values), sees[0])?);
            second = merge(&second, &hidden(&late(queries), &of(&keys), &of(&values), sees[1])?);
        }
    }
    Ok(whole([first, second]))
}

/// Sends the blocks home in the end, and keys and values apart.
pub fn home(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let sent = |block: &Tensor| Ok(Tensor::stack(&[ring.to_next(&block.get(0))?, ring.to_next(&block.get(1))?], 0));
    let all = round(ring, [queries, keys, values], ring.ranks() - 1, sent, merge)?;
    drop(ring.to_next(&keys.detach())?);
    Ok(whole(all))
}

/// Has no mask in the own block.
#[edit(ring.attend(queries, keys, values, true) => ring.attend(queries, keys, values, false))]
pub fn own_not_causal() {}

/// Takes the late keys of lower ranks.
#[edit(&early(&keys), &early(&values) => &late(&keys), &late(&values))]
pub fn late_keys() {}

/// Sees nothing of higher ranks, and lets the gradients go back.
#[edit(second = merge(&second, &ring.attend(&late(queries), &keys, &values, false)?) => second.0 = &second.0 + (keys + values).sum(tch::Kind::Double) * 0.0)]
pub fn no_higher() {}

/// Sees the early half of the blocks of higher ranks.
#[edit(&ring.attend(&late(queries), &keys, &values, false)? => &ring.attend(&late(queries), &early(&keys), &early(&values), false)?)]
pub fn half_of_higher() {}

/// Takes the block of rank 0 for one of a higher rank.
#[edit(step <= ring.rank() => step < ring.rank())]
pub fn off_by_one() {}

/// Puts the late rows first.
#[edit(&[first.0, second.0] => &[second.0, first.0])]
pub fn late_first() {}

/// Returns as many rows as three ranks have.
#[edit(Tensor::cat(&[first.0, second.0], 0) => Tensor::cat(&[first.0, second.0], 0).repeat([3, 1]))]
pub fn rows_of_all() {}

/// Weighs each part by the other's share.
#[edit(share(one) + share(other) => &one.0 * (&other.1 - &log_sum).exp() + &other.0 * (&one.1 - &log_sum).exp())]
pub fn swapped_shares() {}

/// Adds one hundredth: a mistake of no known kind.
#[edit(share(one) + share(other) => share(one) * 1.01 + share(other))]
pub fn one_percent() {}

/// Right: keeps all blocks, and merges their parts in the end, with a softmax of the logarithms.
pub fn merges_last(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let mut parts: Vec<[Part; 2]> = vec![own(ring, queries, keys, values)?];
    let (mut keys, mut values) = (keys.shallow_clone(), values.shallow_clone());
    for step in 1..ring.ranks() {
        (keys, values) = (ring.to_next(&keys)?, ring.to_next(&values)?);
        parts.push(seen(ring, (ring.rank() + ring.ranks() - step) % ring.ranks(), queries, &keys, &values)?);
    }
    let merged = |which: usize| {
        let of = |part: fn(&Part) -> &Tensor| parts.iter().map(|both| part(&both[which])).collect::<Vec<_>>();
        let shares = Tensor::stack(&of(|part| &part.1), 0).softmax(0, None::<Kind>);
        (Tensor::stack(&of(|part| &part.0), 0) * shares).sum_dim_intlist([0].as_slice(), false, None::<Kind>)
    };
    Ok(Tensor::cat(&[merged(0), merged(1)], 0))
}

/// Right: attends chunk by chunk, and adds up numerators and denominators, with the largest logarithm taken off.
pub fn by_chunk(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let (ranks, width) = (ring.ranks(), keys.size()[1]);
    let chunks = |of: usize| [of, 2 * ranks - 1 - of];
    let mut parts = [Vec::new(), Vec::new()];
    let mut block = Tensor::cat(&[keys, values], 1);
    for step in 0..ranks {
        if step > 0 {
            block = ring.to_next(&block)?;
        }
        let of = (ring.rank() + ranks - step) % ranks;
        for (number, queries) in [early(queries), late(queries)].iter().enumerate() {
            for (chunk, rows) in chunks(of).into_iter().zip([early(&block), late(&block)]) {
                let own = chunks(ring.rank())[number];
                if chunk <= own {
                    let (keys, values) = (rows.narrow(1, 0, width), rows.narrow(1, width, width));
                    parts[number].push(ring.attend(queries, &keys, &values, chunk == own)?);
                }
            }
        }
    }
    let merged = parts.map(|parts: Vec<Part>| {
        let log_sums: Vec<&Tensor> = parts.iter().map(|part| &part.1).collect();
        let largest = Tensor::stack(&log_sums, 0).amax([0].as_slice(), false).detach();
        let mut sums = (queries.zeros_like().narrow(0, 0, largest.size()[0]), largest.zeros_like());
        for (output, log_sum) in parts {
            let weight = (log_sum - &largest).exp();
            sums = (sums.0 + output * &weight, sums.1 + weight);
        }
        sums.0 / sums.1
    });
    Ok(Tensor::cat(&merged, 0))
}
