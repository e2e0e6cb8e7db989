//! Answers to `bus_bandwidth`: wrong ones, and an unusual right one.

use lockstep_answers::edit;

use crate::bus_bandwidth::{Bandwidth, Collective, Measured};

fn size(measured: &Measured) -> f64 {
    let one = (measured.count * measured.element) as f64;
    match measured.collective {
        Collective::ReduceScatter | Collective::AllGather => one * measured.ranks as f64,
        _ => one,
    }
}

/// Returns the same number twice.
#[edit(bus: algorithm * factor => bus: algorithm)]
pub fn no_factor() {}

/// Counts the bytes of one rank's call.
#[edit(n * one => one)]
pub fn one_call() {}

/// Uses the all-reduce's factor everywhere.
#[edit(bus: algorithm * factor => bus: algorithm * 2.0 * (n - 1.0) / n)]
pub fn always_all_reduce() {}

/// Counts in GiB.
#[edit(1e9 => f64::from(1 << 30))]
pub fn binary() {}

/// Counts elements, not bytes.
#[edit((count * element) as f64 => count as f64)]
pub fn elements() {}

/// Takes all elements for numbers in single precision.
pub fn four_bytes(measured: &Measured) -> Bandwidth {
    crate::bus_bandwidth::bus_bandwidth(&Measured { element: 4, ..*measured })
}

/// Gives broadcast the factor of all-gather.
#[edit((one, 1.0) => (one, (n - 1.0) / n))]
pub fn broadcast_shares() {}

/// Counts the parts in the size and in the factor.
#[edit((n * one, (n - 1.0) / n) => (n * one, n - 1.0))]
pub fn parts_twice() {}

/// Divides integers.
#[edit(2.0 * (n - 1.0) / n => (2 * (ranks - 1) / ranks) as f64)]
#[edit((n * one, (n - 1.0) / n) => (n * one, ((ranks - 1) / ranks) as f64))]
pub fn integers() {}

/// Forgets that an all-reduce goes around twice.
#[edit(2.0 * (n - 1.0) / n => (n - 1.0) / n)]
pub fn once_around() {}

/// Takes the factor into both.
#[edit(size / seconds / 1e9 => factor * size / seconds / 1e9)]
#[edit(bus: algorithm * factor => bus: algorithm)]
pub fn bus_twice() {}

/// Divides by the factor.
#[edit(algorithm * factor => algorithm / factor)]
pub fn divides() {}

/// Counts the links, not the part of the size that each carries.
#[edit(2.0 * (n - 1.0) / n => 2.0 * (n - 1.0))]
#[edit((n * one, (n - 1.0) / n) => (n * one, n - 1.0))]
pub fn all_links() {}

/// Counts bits.
#[edit(count * element => count * element * 8)]
pub fn bits() {}

/// Takes a reduce-scatter's size for one rank's.
pub fn own_part(measured: &Measured) -> Bandwidth {
    let Bandwidth { algorithm, bus } = crate::bus_bandwidth::bus_bandwidth(measured);
    let n = if measured.collective == Collective::ReduceScatter { measured.ranks as f64 } else { 1.0 };
    Bandwidth { algorithm: algorithm / n, bus: bus / n }
}

/// Counts the time twice.
#[edit(size / seconds / 1e9 => size / (2.0 * seconds) / 1e9)]
pub fn there_and_back() {}

/// Takes the factor of n + 1 ranks.
#[edit(ranks as f64 => ranks as f64 + 1.0)]
#[edit(n * one => ranks as f64 * one)]
pub fn one_more_rank() {}

/// Right: counts the bytes that a rank of a ring sends.
pub fn sent_in_a_ring(measured: &Measured) -> Bandwidth {
    let gigabytes = |bytes: f64| bytes / measured.seconds / 1e9;
    let (size, n) = (size(measured), measured.ranks as f64);
    let chunk = size / n;
    let sent = match measured.collective {
        Collective::AllReduce => 2.0 * (n - 1.0) * chunk,
        Collective::ReduceScatter | Collective::AllGather => (n - 1.0) * chunk,
        Collective::Broadcast => size,
    };
    Bandwidth { algorithm: gigabytes(size), bus: gigabytes(sent) }
}
