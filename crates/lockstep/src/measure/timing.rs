//! Times one operation of a group: repeated, from a common start, with its spread.

use std::time::Instant;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use serde::Serialize;
use tch::{Device, Tensor};

/// How often an operation is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// Warm-up batches, which are not timed: the first messages open connections and touch memory.
    pub warm_up: usize,
    /// Timed batches; each gives one time.
    pub timed: usize,
    /// Operations per batch. There should be several, since ranks leave the preceding barrier some microseconds apart.
    pub batch: usize,
}

impl Repeats {
    /// Suitable repetitions for a message of this size: many per batch if one takes microseconds, one if it takes milliseconds.
    pub fn for_bytes(bytes: u64) -> Self {
        const ABOUT: u64 = 256 * 1024; // bytes in a batch
        let batch = (ABOUT / bytes.max(1)).clamp(1, 10) as usize;
        Repeats { warm_up: 2, timed: 15, batch }
    }
}

/// Times of one operation, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
}

impl Spread {
    /// Computes the percentiles of times in any order; percentiles between two times are interpolated, as in NumPy. `None`
    /// without times.
    pub fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        (!sorted.is_empty()).then(|| Spread { median: at(0.5), p10: at(0.1), p90: at(0.9) })
    }

    /// The same times multiplied by a factor: ½ for half a round trip.
    pub fn scaled(self, by: f64) -> Self {
        Spread { median: self.median * by, p10: self.p10 * by, p90: self.p90 * by }
    }
}

/// Times `operation`. Every rank of the group must call this; a rank without a part in the operation passes one that does
/// nothing. Each batch starts at a barrier and takes as long as its slowest rank, so all ranks get the same result.
///
/// On a GPU a batch ends when the device has finished the queued work.
///
/// # Errors
/// The errors of the operation and of the group.
pub fn time(group: &ProcessGroup, repeats: &Repeats, mut operation: impl FnMut() -> Result<()>) -> Result<Spread> {
    let mut times = Vec::with_capacity(repeats.timed);
    for round in 0..repeats.warm_up + repeats.timed.max(1) {
        group.barrier()?;
        let begun = Instant::now();
        (0..repeats.batch.max(1)).try_for_each(|_| operation())?;
        synchronize(group.device());
        if round >= repeats.warm_up {
            times.push(begun.elapsed().as_secs_f64() * 1e6 / repeats.batch.max(1) as f64);
        }
    }
    let mut slowest = Tensor::from_slice(&times).to_device(group.device());
    group.all_reduce(&mut slowest, ReduceOp::Max)?;
    let slowest = crate::results::numbers(&slowest)?;
    Spread::of(&slowest).ok_or_else(|| anyhow::anyhow!("no operation was timed"))
}

/// Waits until a GPU has done all that was queued; nothing to do on the CPU.
pub fn synchronize(device: Device) {
    if let Device::Cuda(index) = device {
        tch::Cuda::synchronize(index as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_median_and_percentiles_as_numpy_does() {
        // numpy.percentile([5, 1, 4, 2, 3], [50, 10, 90])
        assert_eq!(Spread::of(&[5.0, 1.0, 4.0, 2.0, 3.0]), Some(Spread { median: 3.0, p10: 1.4, p90: 4.6 }));
        assert_eq!(Spread::of(&[7.0]), Some(Spread { median: 7.0, p10: 7.0, p90: 7.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn repeats_longer_operations_less_often() {
        let batches = [4, 64 * 1024, 1 << 20, 1 << 40].map(|bytes| Repeats::for_bytes(bytes).batch);
        assert_eq!(batches, [10, 4, 1, 1]);
    }
}
