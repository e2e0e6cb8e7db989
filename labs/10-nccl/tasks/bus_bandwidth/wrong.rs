//! Answers to `bus_bandwidth`: wrong ones, and an unusual right one.

use crate::bus_bandwidth::{Bandwidth, Collective, Measured};

fn size(measured: &Measured) -> f64 {
    let one = (measured.count * measured.element) as f64;
    match measured.collective {
        Collective::ReduceScatter | Collective::AllGather => one * measured.ranks as f64,
        _ => one,
    }
}

fn factor(measured: &Measured) -> f64 {
    let n = measured.ranks as f64;
    match measured.collective {
        Collective::AllReduce => 2.0 * (n - 1.0) / n,
        Collective::ReduceScatter | Collective::AllGather => (n - 1.0) / n,
        Collective::Broadcast => 1.0,
    }
}

/// Returns the same number twice.
pub fn no_factor(measured: &Measured) -> Bandwidth {
    let algorithm = size(measured) / measured.seconds / 1e9;
    Bandwidth { algorithm, bus: algorithm }
}

/// Counts the bytes of one rank's call.
pub fn one_call(measured: &Measured) -> Bandwidth {
    let algorithm = (measured.count * measured.element) as f64 / measured.seconds / 1e9;
    Bandwidth { algorithm, bus: algorithm * factor(measured) }
}

/// Uses the all-reduce's factor everywhere.
pub fn always_all_reduce(measured: &Measured) -> Bandwidth {
    let (n, algorithm) = (measured.ranks as f64, size(measured) / measured.seconds / 1e9);
    Bandwidth { algorithm, bus: algorithm * 2.0 * (n - 1.0) / n }
}

/// Counts in GiB.
pub fn binary(measured: &Measured) -> Bandwidth {
    let algorithm = size(measured) / measured.seconds / f64::from(1 << 30);
    Bandwidth { algorithm, bus: algorithm * factor(measured) }
}

/// Counts elements, not bytes.
pub fn elements(measured: &Measured) -> Bandwidth {
    let right = sent_in_a_ring(measured);
    let element = measured.element as f64;
    Bandwidth { algorithm: right.algorithm / element, bus: right.bus / element }
}

/// Gives broadcast the factor of all-gather.
pub fn broadcast_shares(measured: &Measured) -> Bandwidth {
    let algorithm = size(measured) / measured.seconds / 1e9;
    let shared = Measured { collective: Collective::AllGather, ..*measured };
    let factor = if measured.collective == Collective::Broadcast { factor(&shared) } else { factor(measured) };
    Bandwidth { algorithm, bus: algorithm * factor }
}

/// Counts the parts in the size and in the factor.
pub fn parts_twice(measured: &Measured) -> Bandwidth {
    let algorithm = size(measured) / measured.seconds / 1e9;
    let parts = if size(measured) > (measured.count * measured.element) as f64 { measured.ranks as f64 } else { 1.0 };
    Bandwidth { algorithm, bus: algorithm * factor(measured) * parts }
}

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
