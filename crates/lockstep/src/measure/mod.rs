//! Measuring messages: a sweep of sizes, times with their spread, the α–β model through them, a table and a plot.
//!
//! Units: bytes, microseconds, and MB/s for 10^6 bytes a second. Leaves out the operation, which the caller passes in.
//!
//! ```no_run
//! use lockstep::measure::{Repeats, Series, Sizes, bare, plot, time};
//! # fn f(group: &c10d::ProcessGroup) -> anyhow::Result<()> {
//! let group = bare(group)?;
//! let mut series = Series::new("all_reduce");
//! for bytes in Sizes::new(4, 1 << 20)?.iter() {
//!     let mut tensor = tch::Tensor::f_zeros([bytes as i64 / 4], (tch::Kind::Float, group.device()))?;
//!     let spread = time(&group, &Repeats::for_bytes(bytes), || Ok(group.all_reduce(&mut tensor, c10d::ReduceOp::Sum)?))?;
//!     series.push(bytes, spread);
//! }
//! println!("{}", series.table());
//! plot::save("plots/all_reduce.svg".as_ref(), "all_reduce on 2 ranks", &[series])?;
//! # Ok(()) }
//! ```

pub mod plot;
mod series;

use std::time::Instant;

use c10d::{DebugLevel, GroupOptions, ProcessGroup, ReduceOp};
use serde::Serialize;
use tch::{Device, Tensor};

pub use lockstep_cost::{AlphaBeta, FitError};
pub use series::{Point, Series, Table, table_of};

use crate::exit::UsageError;

/// Powers of two in bytes, from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    least: u64,
    most: u64,
}

/// The smallest message: one element of a float tensor.
const ELEMENT: u64 = 4;

/// The largest message, 4 GiB: more is probably a typing mistake.
const GREATEST: u64 = 1 << 32;

impl Sizes {
    /// The powers of two between `least` and `most` bytes.
    ///
    /// Errors: one of them is not a power of two, is less than one 4-byte element or more than 4 GiB, or `least` is above `most`.
    pub fn new(least: u64, most: u64) -> Result<Self, UsageError> {
        let usable = |bytes: u64| bytes.is_power_of_two() && (ELEMENT..=GREATEST).contains(&bytes);
        if let Some(bad) = [least, most].into_iter().find(|&bytes| !usable(bytes)) {
            return Err(UsageError(format!(
                "a message of {bad} bytes cannot be measured: give a power of two from {ELEMENT} to {GREATEST}"
            )));
        }
        if least > most {
            return Err(UsageError(format!("no sizes from {least} to {most} bytes: the least is above the most")));
        }
        Ok(Sizes { least, most })
    }

    /// The sizes in bytes, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        let most = self.most;
        std::iter::successors(Some(self.least), |bytes| Some(bytes * 2)).take_while(move |&bytes| bytes <= most)
    }
}

/// A group of the same ranks that do not compare their calls ([`GroupOptions::compare_calls`]), since comparing costs an
/// additional message. A collective of the whole job, like [`ProcessGroup::new_group`].
pub fn bare(group: &ProcessGroup) -> c10d::Result<ProcessGroup> {
    let options = GroupOptions { compare_calls: Some(false), debug: Some(DebugLevel::Off), ..group.options().clone() };
    let made = group.new_group(group.members(), &options)?;
    Ok(made.expect("every rank of the group is a member"))
}

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
pub fn time(
    group: &ProcessGroup,
    repeats: &Repeats,
    mut operation: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Spread> {
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
    fn sweeps_powers_of_two_with_both_ends() {
        assert_eq!(Sizes::new(4, 32).unwrap().iter().collect::<Vec<_>>(), [4, 8, 16, 32]);
        assert_eq!(Sizes::new(8, 8).unwrap().iter().collect::<Vec<_>>(), [8]);
        assert_eq!(Sizes::new(GREATEST, GREATEST).unwrap().iter().count(), 1);
    }

    #[test]
    fn refuses_sizes_that_no_float_tensor_has_and_those_that_no_memory_holds() {
        for (least, most, named) in [
            (2, 8, "of 2 bytes"),
            (4, 12, "of 12 bytes"),
            (0, 8, "of 0 bytes"),
            (16, 8, "from 16 to 8"),
            (4, 1 << 33, "of 8589934592 bytes cannot be measured: give a power of two from 4 to 4294967296"),
            (1 << 63, 1 << 63, "of 9223372036854775808 bytes"),
        ] {
            let message = Sizes::new(least, most).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }

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
