//! Compares the algorithms written by hand with the engine's all_reduce: the results are equal if the sum is exact; otherwise the
//! last bits differ.

use anyhow::{Context, Result, ensure};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::Rank;
use lockstep::data::rng::KeyedRng;
use lockstep::measure::Table;
use lockstep::results::numbers;
use tch::{Device, Kind, Tensor};

use crate::Lab;
use crate::by_hand;
use crate::collectives::OPS;

/// An all-reduce, in place, on all ranks.
pub(crate) type AllReduce = fn(&ProcessGroup, &mut Tensor, ReduceOp) -> Result<()>;

// ANCHOR: three
/// The three all-reduces, the engine's first.
pub(crate) const ALGORITHMS: [(&str, AllReduce); 3] =
    [("engine", engine), ("ring", by_hand::ring_all_reduce), ("doubling", by_hand::doubling_all_reduce)];

fn engine(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
    Ok(group.all_reduce(tensor, op)?)
}
// ANCHOR_END: three

// ANCHOR: equal
/// Compares with the engine for each operation, for whole numbers and for floats with exact sums and products, and for several
/// lengths.
pub(crate) fn equal(lab: &mut Lab<'_>) -> Result<()> {
    let world = lab.world() as i64;
    let mut compared = 0;
    for length in [1, world, world + 1, 1000] {
        for kind in [Kind::Int64, Kind::Float] {
            for (name, op) in OPS {
                let start = exact(lab.group.rank(), length, (kind, lab.group.device()));
                let [engine, ring, doubling] = reduced(lab.group, &start, op)?;
                for (by_hand, result) in [("ring", ring), ("doubling", doubling)] {
                    let what = format!("{by_hand}: {name} of {length} {kind:?}");
                    ensure!(result == engine, "{what}: differs from the engine's result on rank {}", lab.group.rank());
                    compared += 1;
                }
            }
        }
    }
    lab.say(&format!("compare: {compared} times by hand on {world} ranks, each time the engine's very numbers\n"));
    lab.results.note("compare", compared)
}
// ANCHOR_END: equal

/// The result of each of the three for `start`.
fn reduced(group: &ProcessGroup, start: &Tensor, op: ReduceOp) -> Result<[Tensor; 3]> {
    let mut results = ALGORITHMS.map(|_| start.copy());
    for ((_, all_reduce), result) in ALGORITHMS.iter().zip(&mut results) {
        all_reduce(group, result, op)?;
    }
    Ok(results)
}

/// Whole numbers 1, 2, 3, or floats ½, 1, 2, in turn over the elements and over the ranks: in every element three neighbours hold
/// one of each. So a product of floats only moves the exponent, by 22 at most on 64 ranks, and one of whole numbers stays below 2^63.
fn exact(rank: Rank, length: i64, (kind, device): (Kind, Device)) -> Tensor {
    let turn = (Tensor::arange(length, (Kind::Int64, device)) + rank.get() as i64).remainder(3);
    if kind == Kind::Float { turn.to_kind(Kind::Float).exp2() / 2 } else { turn + 1 }
}

// ANCHOR: last_bits
/// 2^24: the next greater float is 2^24 + 2, and 2^24 + 1 is rounded to 2^24.
const BIG: f32 = 16_777_216.0;

/// Every element has the same numbers, but the sum depends on the order of the additions.
fn absorbed(group: &ProcessGroup) -> Tensor {
    let mine = [BIG, 1.0, -BIG, 1.0][group.rank().get() % 4];
    Tensor::full([group.size().get() as i64], f64::from(mine), (Kind::Float, group.device()))
}
// ANCHOR_END: last_bits

pub(crate) fn last_bits(lab: &mut Lab<'_>) -> Result<()> {
    let results = reduced(lab.group, &absorbed(lab.group), ReduceOp::Sum)?;
    let values = results.iter().map(numbers).collect::<Result<Vec<_>>>()?;
    for (result, (name, _)) in results.iter().zip(ALGORITHMS) {
        ensure!(same_on_all(lab.group, result)?, "{name}: the ranks hold different sums");
    }
    let mut table =
        Table::new(std::iter::once("sum by".into()).chain((0..lab.world()).map(|at| format!("element {at}"))));
    for ((name, _), values) in ALGORITHMS.iter().zip(&values) {
        table.row(std::iter::once((*name).to_owned()).chain(values.iter().map(|value| value.to_string())));
    }
    let cycle = "ranks hold 2^24, 1, -2^24, 1 and so on, the same in every element";
    lab.say(&format!("last_bits: {cycle}; each sum is the same on all ranks\n{table}\n"));
    lab.results.note("last_bits", &values)?;
    drawn(lab)
}

/// The errors of the three for numbers like gradients, drawn from a normal distribution.
fn drawn(lab: &Lab<'_>) -> Result<()> {
    const LENGTH: usize = 10_000;
    let mut rng = KeyedRng::new(&[5, lab.group.rank().get() as u64]);
    let start: Vec<f32> = (0..LENGTH).map(|_| rng.normal()).collect();
    let start = Tensor::from_slice(&start).to_device(lab.group.device());
    let mut truth = start.to_kind(Kind::Double);
    engine(lab.group, &mut truth, ReduceOp::Sum)?;
    let results = reduced(lab.group, &start, ReduceOp::Sum)?;
    let mut table = Table::new(["sum by", "unlike the engine's", "greatest error"]);
    for ((name, _), result) in ALGORITHMS.iter().zip(&results) {
        let other = result.not_equal_tensor(&results[0]).sum(Kind::Int64).int64_value(&[]);
        let error = (result.to_kind(Kind::Double) - &truth).abs().max().double_value(&[]);
        table.row([(*name).to_owned(), other.to_string(), format!("{error:.1e}")]);
    }
    lab.say(&format!("{LENGTH} drawn floats a rank, errors against a sum in doubles\n{table}\n"));
    Ok(())
}

/// Returns true if all ranks hold the same numbers: the minimum of every element is its maximum.
fn same_on_all(group: &ProcessGroup, tensor: &Tensor) -> Result<bool> {
    let (mut least, mut most) = (tensor.copy(), tensor.copy());
    group.all_reduce(&mut least, ReduceOp::Min).context("cannot compare the ranks' sums")?;
    group.all_reduce(&mut most, ReduceOp::Max)?;
    Ok(least == most)
}

/// For the tests of both algorithms: worlds of 1 to 8 ranks, every operation, and lengths around the world size, including 0.
#[cfg(test)]
pub(crate) fn assert_reduces_like_a_sum_on_one_rank(all_reduce: AllReduce) {
    use std::time::Duration;

    use c10d::{Endpoint, GroupOptions};
    use lockstep::{init_process_group, threads};

    let options = GroupOptions {
        timeout: Duration::from_secs(60),
        endpoint: Endpoint::Interface("lo".into()),
        ..GroupOptions::default()
    };
    for world in 1..=8usize {
        threads::run_threads(world, |env| {
            let group = init_process_group(env, tch::Device::Cpu, &options)?;
            let number = |rank: usize, at: usize| ((7 * at + 3 * rank) % 5 + 1) as f64;
            for length in [0, 1, 2, world - 1, world, world + 1, 3 * world + 2] {
                for (name, op) in OPS {
                    let fold: fn(f64, f64) -> f64 = match op {
                        ReduceOp::Sum => |a, b| a + b,
                        ReduceOp::Product => |a, b| a * b,
                        ReduceOp::Min => f64::min,
                        _ => f64::max,
                    };
                    let of = |at| (0..world).map(|rank| number(rank, at)).reduce(fold).unwrap();
                    let wanted: Vec<f64> = (0..length).map(of).collect();
                    let mine: Vec<f64> = (0..length).map(|at| number(env.rank.get(), at)).collect();
                    let mut tensor = Tensor::from_slice(&mine);
                    all_reduce(&group, &mut tensor, op)?;
                    assert_eq!(numbers(&tensor)?, wanted, "{name} of {length} on rank {} of {world}", env.rank);
                }
            }
            let mut tensor = Tensor::ones([2], (Kind::Float, tch::Device::Cpu));
            let result = all_reduce(&group, &mut tensor, ReduceOp::Avg);
            assert!(result.is_err(), "an average cannot be computed step by step");
            group.barrier()?;
            Ok(())
        })
        .unwrap();
    }
}

#[cfg(test)]
mod tests {
    use lockstep::threads::MOST_RANKS;

    use super::*;
    use crate::by_hand::combine;

    /// The sum of the ranks' numbers in this order.
    fn folded(order: &[usize], kind: Kind, op: ReduceOp) -> Tensor {
        let of = |&rank: &usize| exact(Rank::new(rank), 5, (kind, Device::Cpu));
        let mut held = of(&order[0]);
        order[1..].iter().for_each(|rank| combine(&mut held, &of(rank), op).unwrap());
        held
    }

    #[test]
    fn what_is_compared_does_not_depend_on_the_order_of_as_many_ranks_as_there_may_be() {
        for ranks in [2, 3, 31, MOST_RANKS] {
            let forwards: Vec<usize> = (0..ranks).collect();
            let mut by_number = forwards.clone(); // the worst order: equal numbers first
            by_number.sort_by_key(|rank| rank % 3);
            let backwards: Vec<usize> = by_number.iter().rev().copied().collect();
            for (kind, (name, op)) in [Kind::Int64, Kind::Float].into_iter().flat_map(|kind| OPS.map(|op| (kind, op))) {
                let wanted = folded(&forwards, kind, op);
                for order in [&by_number, &backwards] {
                    assert!(
                        folded(order, kind, op) == wanted,
                        "{name} of {kind:?} over {ranks} ranks in order {order:?}"
                    );
                }
            }
        }
        let product = numbers(&folded(&(0..MOST_RANKS).collect::<Vec<_>>(), Kind::Float, ReduceOp::Product)).unwrap();
        assert_eq!(product, [0.5, 1.0, 2.0, 0.5, 1.0]);
    }
}
