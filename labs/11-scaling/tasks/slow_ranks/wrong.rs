//! Answers to `slow_ranks`: wrong ones, and an unusual right one.

use lockstep_answers::given;

use crate::slow_ranks::{Cause, Counters};

fn most(ranks: &[Counters], of: fn(&Counters) -> f64) -> usize {
    (0..ranks.len()).max_by(|a, b| of(&ranks[*a]).total_cmp(&of(&ranks[*b]))).unwrap_or(0)
}

fn logs(ranks: &[Counters]) -> bool {
    ranks.iter().any(|rank| rank.calls > rank.steps * rank.buckets)
}

/// The given program: blames the rank that waits for longest.
#[given]
pub fn waits_longest() {}

/// Blames the network for whatever is long in it.
pub fn network(ranks: &[Counters]) -> (Cause, Option<usize>) {
    let mean = |of: fn(&Counters) -> f64| ranks.iter().map(of).sum::<f64>();
    if mean(|rank| rank.exchange_ms) > mean(|rank| rank.compute_ms) + mean(|rank| rank.data_ms) {
        return (Cause::Logging, None);
    }
    own_time(ranks)
}

fn own_time(ranks: &[Counters]) -> (Cause, Option<usize>) {
    let rank = most(ranks, |rank| rank.data_ms + rank.compute_ms);
    let cause = if ranks[rank].data_ms > ranks[rank].compute_ms { Cause::Loader } else { Cause::Straggler };
    (cause, Some(rank))
}

/// Mistakes an exchange that is long on every rank for many exchanges.
pub fn long_exchange(ranks: &[Counters]) -> (Cause, Option<usize>) {
    let least = ranks.iter().map(|rank| rank.exchange_ms / rank.compute_ms).fold(f64::INFINITY, f64::min);
    if least > 1.0 { (Cause::Logging, None) } else { waits_shortest(ranks) }
}

/// Compares what the rank does with its data and with computing, not with what other ranks do.
pub fn more_data(ranks: &[Counters]) -> (Cause, Option<usize>) {
    if logs(ranks) { (Cause::Logging, None) } else { own_time(ranks) }
}

/// Mistakes a slow loader for a slow processor.
pub fn no_loader(ranks: &[Counters]) -> (Cause, Option<usize>) {
    if logs(ranks) {
        (Cause::Logging, None)
    } else {
        (Cause::Straggler, Some(most(ranks, |rank| rank.data_ms + rank.compute_ms)))
    }
}

/// Always blames a rank.
pub fn blames_one(ranks: &[Counters]) -> (Cause, Option<usize>) {
    let rank = most(ranks, |rank| rank.data_ms + rank.compute_ms);
    let (cause, _) = own_time(ranks);
    (if logs(ranks) { Cause::Logging } else { cause }, Some(rank))
}

/// Names no rank.
pub fn no_rank(ranks: &[Counters]) -> (Cause, Option<usize>) {
    (more_data(ranks).0, None)
}

/// Compares the calls of a run with the buckets of a step.
pub fn calls_of_a_step(ranks: &[Counters]) -> (Cause, Option<usize>) {
    if ranks[0].calls > ranks[0].buckets { (Cause::Logging, None) } else { own_time(ranks) }
}

/// Takes the second of the ranks in the order of their waiting.
pub fn second(ranks: &[Counters]) -> (Cause, Option<usize>) {
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by(|a, b| ranks[*a].exchange_ms.total_cmp(&ranks[*b].exchange_ms));
    if logs(ranks) { (Cause::Logging, None) } else { (Cause::Straggler, Some(order[1])) }
}

/// Right: finds the rank that waits least, and then what it does instead.
pub fn waits_shortest(ranks: &[Counters]) -> (Cause, Option<usize>) {
    if logs(ranks) {
        return (Cause::Logging, None);
    }
    let rank = most(ranks, |rank| -rank.exchange_ms);
    let other = (rank + 1) % ranks.len();
    let loads = ranks[rank].data_ms - ranks[other].data_ms > ranks[rank].compute_ms - ranks[other].compute_ms;
    (if loads { Cause::Loader } else { Cause::Straggler }, Some(rank))
}
