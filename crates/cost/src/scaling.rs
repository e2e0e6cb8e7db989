//! How a step scales with the number of ranks: the part that more ranks do not divide, and the ring that the ranks' all-reduces show.
//!
//! Sources: G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities" (1967);
//! J. L. Gustafson, "Reevaluating Amdahl's law" (1988).

use crate::Link;

/// The same work on more ranks (strong scaling): a part s of one rank's time stays as it is, the rest is divided.
/// T(n) = T(1)·(s + (1 − s)/n).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amdahl {
    /// The part s; not below 0, and above 1 if more ranks are slower.
    pub serial: f64,
}

/// Work that grows with the ranks (weak scaling): n ranks do n(1 − s) + s times the work of one in its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gustafson {
    /// The part s; not below 0.
    pub serial: f64,
}

impl Amdahl {
    /// Fits s to (ranks, seconds) with the least squared errors of T(n)/T(1). `None` without a time of one rank and another.
    pub fn fit(times: &[(usize, f64)]) -> Option<Self> {
        let share = |ranks: f64, time: f64| (1.0 - 1.0 / ranks, time - 1.0 / ranks);
        Some(Amdahl { serial: slope(times, share)? })
    }

    /// T(1)/T(n).
    pub fn speed_up(&self, ranks: usize) -> f64 {
        1.0 / (self.serial + (1.0 - self.serial) / ranks as f64)
    }

    /// The speed-up that no number of ranks exceeds.
    pub fn limit(&self) -> f64 {
        1.0 / self.serial
    }
}

impl Gustafson {
    /// Fits s to (ranks, seconds of one rank's share) with the least squared errors of n·T(1)/T(n). `None` without a time of one rank
    /// and another.
    pub fn fit(times: &[(usize, f64)]) -> Option<Self> {
        let lost = |ranks: f64, time: f64| (ranks - 1.0, ranks - ranks / time);
        Some(Gustafson { serial: slope(times, lost)? })
    }

    /// n·T(1)/T(n): how many times one rank's work is done in its time.
    pub fn speed_up(&self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        ranks - self.serial * (ranks - 1.0)
    }
}

/// The line through the origin and the points that `point` makes of ranks and of T(n)/T(1), for n above 1.
fn slope(times: &[(usize, f64)], point: impl Fn(f64, f64) -> (f64, f64)) -> Option<f64> {
    let (_, alone) = times.iter().find(|(ranks, _)| *ranks == 1)?;
    let points = times.iter().filter(|(ranks, _)| *ranks > 1);
    let points = points.map(|(ranks, time)| point(*ranks as f64, time / alone));
    let (up, down) = points.fold((0.0, 0.0), |(up, down), (x, y)| (up + x * y, down + x * x));
    (down > 0.0 && up.is_finite()).then(|| (up / down).max(0.0))
}

/// An all-reduce that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduce {
    /// How many ranks took part.
    pub ranks: usize,
    /// The size.
    pub bytes: f64,
    /// The time.
    pub seconds: f64,
}

impl Link {
    /// The link of a ring in which all-reduces take 2(n−1)·(α + S/(n·B)), with the least relative errors. Neither α nor 1/B is below 0;
    /// where times do not grow with bytes, B is infinite. `None` if numbers of ranks and sizes are too few to tell α from B.
    pub fn fit(samples: &[AllReduce]) -> Option<Self> {
        let rows: Vec<[f64; 2]> =
            samples.iter().filter(|sample| sample.ranks > 1 && sample.seconds > 0.0).map(row).collect();
        let sum = |of: fn(&[f64; 2]) -> f64| rows.iter().map(of).sum::<f64>();
        let (aa, ab, bb) = (sum(|[a, _]| a * a), sum(|[a, b]| a * b), sum(|[_, b]| b * b));
        let (a1, b1) = (sum(|[a, _]| *a), sum(|[_, b]| *b));
        let determinant = aa * bb - ab * ab;
        if determinant.is_nan() || determinant <= 1e-6 * aa * bb {
            return None;
        }
        let (latency, per_byte) = ((a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant);
        let (latency, per_byte) = match (latency, per_byte) {
            (latency, _) if latency < 0.0 => (0.0, b1 / bb),
            (_, per_byte) if per_byte < 0.0 => (a1 / aa, 0.0),
            both => both,
        };
        Some(Link { latency, bandwidth: 1.0 / per_byte })
    }
}

/// What α and 1/B are multiplied with, divided by the time.
fn row(sample: &AllReduce) -> [f64; 2] {
    let messages = 2.0 * (sample.ranks - 1) as f64;
    [messages / sample.seconds, messages * sample.bytes / (sample.ranks as f64 * sample.seconds)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found}, not {expected}");
    }

    /// Amdahl's own numbers: with a serial part of 5 %, 20 is the limit, and 16 ranks reach 9.14.
    #[test]
    fn finds_the_serial_part_of_amdahls_law() {
        let times = [1, 2, 4, 8].map(|ranks| (ranks, 3.0 * (0.05 + 0.95 / ranks as f64)));
        let found = Amdahl::fit(&times).unwrap();
        close(found.serial, 0.05);
        close(found.limit(), 20.0);
        close(found.speed_up(16), 16.0 / 1.75);
    }

    /// Gustafson's: with s = 0.4 %, 1,024 ranks do 1,020 times the work.
    #[test]
    fn finds_the_serial_part_of_gustafsons_law() {
        let law = Gustafson { serial: 0.004 };
        assert_eq!(law.speed_up(1024).round(), 1020.0);
        let times = [1, 2, 4].map(|ranks| (ranks, 2.0 * ranks as f64 / law.speed_up(ranks)));
        close(Gustafson::fit(&times).unwrap().serial, 0.004);
    }

    #[test]
    fn knows_nothing_of_one_number_of_ranks_and_nothing_below_zero() {
        assert_eq!(Amdahl::fit(&[(1, 1.0)]), None);
        assert_eq!(Amdahl::fit(&[(2, 1.0), (4, 0.5)]), None);
        assert_eq!(Gustafson::fit(&[(1, 1.0), (1, 1.1)]), None);
        // Faster than n times: a cache that became large enough.
        assert_eq!(Amdahl::fit(&[(1, 1.0), (2, 0.4)]), Some(Amdahl { serial: 0.0 }));
        // Two ranks are slower than one.
        close(Amdahl::fit(&[(1, 1.0), (2, 1.5)]).unwrap().serial, 2.0);
    }

    fn ring(latency: f64, bandwidth: f64, ranks: usize, bytes: f64) -> AllReduce {
        AllReduce { ranks, bytes, seconds: Link { latency, bandwidth }.all_reduce(ranks, bytes) }
    }

    #[test]
    fn finds_the_link_of_a_ring_by_ranks_or_by_sizes() {
        let by_ranks = [2, 4, 8].map(|ranks| ring(50e-6, 1e9, ranks, 7e6));
        let by_sizes = [1e3, 7e6].map(|bytes| ring(50e-6, 1e9, 2, bytes));
        for samples in [&by_ranks[..], &by_sizes] {
            let found = Link::fit(samples).unwrap();
            close(found.latency, 50e-6);
            close(found.bandwidth, 1e9);
        }
        assert_eq!(Link::fit(&by_ranks[..1]), None);
        assert_eq!(Link::fit(&[]), None);
    }

    #[test]
    fn no_part_of_a_link_is_below_zero() {
        let sample = |bytes, seconds| AllReduce { ranks: 2, bytes, seconds };
        let shrinking = Link::fit(&[sample(1e3, 2e-3), sample(1e6, 1e-3)]).unwrap();
        assert!(shrinking.latency > 0.0 && shrinking.bandwidth.is_infinite(), "{shrinking:?}");
        let steep = Link::fit(&[sample(1e3, 1e-7), sample(1e6, 1e-3)]).unwrap();
        assert!(steep.latency == 0.0 && steep.bandwidth > 0.0, "{steep:?}");
    }
}
