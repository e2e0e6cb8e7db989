//! The α–β model: a message of n bytes takes t = α + β·n.
//!
//! α is the fixed cost of a message (latency), 1/β the rate at which long messages flow (bandwidth). Source: R. W. Hockney,
//! "The communication challenge for MPP", Parallel Computing 20 (1994).

/// A cost model of messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlphaBeta {
    /// Microseconds for an empty message.
    pub alpha: f64,
    /// Microseconds per byte.
    pub beta: f64,
}

/// Why the points do not determine a line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// There are fewer than two sizes: α and β cannot be separated.
    #[error("the α–β model needs times for at least 2 message sizes, and there are {0}")]
    TooFewSizes(usize),
    /// A time that is not above 0.
    #[error("{time} µs for {bytes} bytes is not a time above 0")]
    NoTime { bytes: f64, time: f64 },
}

/// A size in bytes and its time in microseconds.
type Sample = (f64, f64);

/// Rounds of reweighting; the weights converge long before.
const ROUNDS: usize = 50;

impl AlphaBeta {
    /// Fits the line with the least relative errors through `samples` of (bytes, microseconds). Neither α nor β is below 0.
    ///
    /// A least-squares fit to absolute errors would fit only the longest messages, whose times are a thousand times as long as those of
    /// the shortest. So errors are divided by the time. Outliers are down-weighted with Huber's weights, computed iteratively.
    /// A time that is far too long has a relative error of at most 1, but one that is too short can have a large one; so if
    /// many points are disturbed, the line follows the undisturbed ones, since a busy machine only ever adds time.
    pub fn fit(samples: &[Sample]) -> Result<Self, FitError> {
        check(samples)?;
        let mut doubts = vec![1.0; samples.len()];
        let mut line = least_squares(samples, &doubts);
        for _ in 0..ROUNDS {
            let errors: Vec<f64> = samples.iter().map(|sample| line.error(*sample)).collect();
            doubts = huber(&errors);
            line = least_squares(samples, &doubts);
        }
        Ok(line)
    }

    /// Microseconds for a message of `bytes`.
    pub fn time(&self, bytes: f64) -> f64 {
        self.alpha + self.beta * bytes
    }

    /// The bandwidth for long messages, in 10^6 bytes a second. Infinite if β is 0.
    pub fn bandwidth(&self) -> f64 {
        1.0 / self.beta
    }

    /// The message size in bytes from which transfer time exceeds latency (n½ of Hockney).
    pub fn half_size(&self) -> f64 {
        self.alpha / self.beta
    }

    /// The largest relative error at any of the points: 0.25 if the model is off by a quarter.
    pub fn worst(&self, samples: &[Sample]) -> f64 {
        samples.iter().map(|sample| self.error(*sample).abs()).fold(0.0, f64::max)
    }

    fn error(&self, (bytes, time): Sample) -> f64 {
        self.time(bytes) / time - 1.0
    }

    fn cost(&self, samples: &[Sample], weights: &[f64]) -> f64 {
        samples.iter().zip(weights).map(|(sample, weight)| weight * self.error(*sample).powi(2)).sum()
    }
}

fn check(samples: &[Sample]) -> Result<(), FitError> {
    let usable = |&&(bytes, time): &&Sample| bytes.is_finite() && bytes >= 0.0 && time.is_finite() && time > 0.0;
    if let Some(&(bytes, time)) = samples.iter().find(|sample| !usable(sample)) {
        return Err(FitError::NoTime { bytes, time });
    }
    let mut sizes: Vec<f64> = samples.iter().map(|(bytes, _)| *bytes).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    sizes.dedup();
    if sizes.len() < 2 { Err(FitError::TooFewSizes(sizes.len())) } else { Ok(()) }
}

/// The line with the least weighted squares of relative errors with α, β ≥ 0: if the unconstrained optimum has a negative
/// coefficient, the best line has one of them at 0.
fn least_squares(samples: &[Sample], weights: &[f64]) -> AlphaBeta {
    // Σ w·x·y over the samples, with x and y relative to the time: 1/t for α, n/t for β, 1 for the target.
    let sum = |of: fn(f64, f64) -> f64| -> f64 {
        samples.iter().zip(weights).map(|(&(n, t), w)| w * of(1.0 / t, n / t)).sum()
    };
    let (aa, ab, bb) = (sum(|a, _| a * a), sum(|a, b| a * b), sum(|_, b| b * b));
    let (ay, by) = (sum(|a, _| a), sum(|_, b| b));
    let determinant = aa * bb - ab * ab;
    let free = AlphaBeta { alpha: (ay * bb - by * ab) / determinant, beta: (by * aa - ay * ab) / determinant };
    if free.alpha >= 0.0 && free.beta >= 0.0 {
        return free;
    }
    let edges = [AlphaBeta { alpha: ay / aa, beta: 0.0 }, AlphaBeta { alpha: 0.0, beta: by / bb }];
    let [flat, steep] = edges;
    if flat.cost(samples, weights) < steep.cost(samples, weights) { flat } else { steep }
}

/// Huber's weights: 1 up to 1.345 standard deviations, decreasing beyond (P. J. Huber, "Robust Estimation of a Location
/// Parameter", 1964). The deviation is estimated from the median error, which is robust to outliers.
fn huber(errors: &[f64]) -> Vec<f64> {
    const FLOOR: f64 = 1e-6; // below this all errors are rounding
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    let limit = (1.345 * 1.4826 * sizes[sizes.len() / 2]).max(FLOOR);
    errors.iter().map(|error| (limit / error.abs()).min(1.0)).collect()
}

// The collectives and the exchange of messages that nccl-tests measures, and the bandwidth that each needs of its links.
//
// Sizes and factors are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md), so that results can be compared with theirs. A size S is
// that of the whole operation: of the tensor that is reduced or broadcast, of all that is gathered, scattered or exchanged.

/// An operation of all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Sum on all ranks.
    AllReduce,
    /// Sum on all ranks of a bucket of DDP's gradients, in place.
    AllReduceBucket,
    /// From one rank to all.
    Broadcast,
    /// Sum on one rank.
    Reduce,
    /// Each rank's part to all ranks.
    AllGather,
    /// Each rank's part to one rank.
    Gather,
    /// A part from one rank to each rank.
    Scatter,
    /// Sum; each rank gets a part.
    ReduceScatter,
    /// A part from each rank to each.
    AllToAll,
    /// A message from each rank to the next, in a ring.
    SendRecv,
    /// Only waits for all ranks.
    Barrier,
}

impl Collective {
    pub const ALL: [Collective; 11] = [
        Collective::AllReduce,
        Collective::AllReduceBucket,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::Gather,
        Collective::Scatter,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::SendRecv,
        Collective::Barrier,
    ];

    /// PyTorch's name, if it has one.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllReduceBucket => "all_reduce_bucket",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllGather => "all_gather",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::SendRecv => "send_recv",
            Collective::Barrier => "barrier",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Returns true if the bytes are split into one part for each rank.
    pub fn splits(self) -> bool {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        [AllGather, Gather, Scatter, ReduceScatter, AllToAll].contains(&self)
    }

    /// The smallest size of at least `bytes` that consists of 4-byte elements and, if it is split, of equal parts for
    /// `ranks` ranks.
    pub fn size(self, bytes: u64, ranks: usize) -> u64 {
        let unit = if self.splits() { 4 * ranks as u64 } else { 4 };
        if self == Collective::Barrier { 0 } else { bytes.max(1).div_ceil(unit) * unit }
    }

    /// Bus bandwidth divided by algorithm bandwidth (size divided by time): what a link carries for each byte of the size in the
    /// best algorithm. 0 for a barrier.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            Collective::AllReduce | Collective::AllReduceBucket => 2.0 * (ranks - 1.0) / ranks,
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
            Collective::Barrier => 0.0,
            _ => (ranks - 1.0) / ranks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(time: impl Fn(f64) -> f64) -> Vec<Sample> {
        (2..=22).map(|power| f64::from(1u32 << power)).map(|bytes| (bytes, time(bytes))).collect()
    }

    fn close(got: f64, wanted: f64, within: f64) {
        assert!((got / wanted - 1.0).abs() < within, "{got}, not {wanted}");
    }

    #[test]
    fn finds_the_line_that_made_the_points() {
        let line = AlphaBeta::fit(&samples(|n| 40.0 + 0.001 * n)).unwrap();
        close(line.alpha, 40.0, 1e-6);
        close(line.beta, 0.001, 1e-6);
        close(line.bandwidth(), 1000.0, 1e-6);
        close(line.half_size(), 40_000.0, 1e-6);
        assert!(line.worst(&samples(|n| 40.0 + 0.001 * n)) < 1e-6);
    }

    #[test]
    fn finds_it_through_noise_of_a_tenth() {
        // Any numbers between 0 and 1 without order will do: multiples of the golden ratio.
        let noise = (1..).map(|index| (f64::from(index) * 0.618_033_988_749_895).fract());
        let points =
            samples(|n| 40.0 + 0.001 * n).into_iter().zip(noise).map(|((n, t), part)| (n, t * (0.9 + 0.2 * part)));
        let points: Vec<Sample> = points.collect();
        let line = AlphaBeta::fit(&points).unwrap();
        close(line.alpha, 40.0, 0.1);
        close(line.beta, 0.001, 0.1);
    }

    #[test]
    fn one_time_that_is_wildly_off_hardly_moves_it() {
        let mut points = samples(|n| 40.0 + 0.001 * n);
        points[3].1 *= 50.0;
        let line = AlphaBeta::fit(&points).unwrap();
        close(line.alpha, 40.0, 0.01);
        close(line.beta, 0.001, 0.01);
    }

    #[test]
    fn an_intercept_below_zero_becomes_zero() {
        let line = AlphaBeta::fit(&[(10.0, 5.0), (20.0, 15.0), (30.0, 25.0)]).unwrap();
        assert_eq!(line.alpha, 0.0);
        assert!(line.beta > 0.5 && line.beta < 1.0, "{line:?}");
    }

    #[test]
    fn times_that_fall_with_size_give_a_flat_line() {
        let line = AlphaBeta::fit(&[(10.0, 5.0), (20.0, 4.0), (30.0, 3.0)]).unwrap();
        assert_eq!((line.beta, line.bandwidth()), (0.0, f64::INFINITY));
        assert!(line.alpha >= 3.0 && line.alpha <= 5.0, "{line:?}");
    }

    #[test]
    fn two_sizes_are_enough_and_one_is_not() {
        let line = AlphaBeta::fit(&[(0.0, 2.0), (10.0, 12.0)]).unwrap();
        close(line.alpha, 2.0, 1e-9);
        close(line.beta, 1.0, 1e-9);
        assert_eq!(AlphaBeta::fit(&[(8.0, 2.0), (8.0, 3.0)]), Err(FitError::TooFewSizes(1)));
        assert_eq!(AlphaBeta::fit(&[]), Err(FitError::TooFewSizes(0)));
    }

    #[test]
    fn refuses_times_that_are_not_positive() {
        for time in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(AlphaBeta::fit(&[(4.0, 1.0), (8.0, time)]), Err(FitError::NoTime { bytes: 8.0, .. })));
        }
    }

    /// nccl-tests, doc/PERFORMANCE.md.
    #[test]
    fn has_the_factors_of_nccl_tests() {
        let factor = |name: &str| Collective::named(name).unwrap().bus_factor(4);
        assert_eq!((factor("all_reduce"), factor("reduce_scatter"), factor("all_gather")), (1.5, 0.75, 0.75));
        assert_eq!((factor("broadcast"), factor("reduce"), factor("all_to_all")), (1.0, 1.0, 0.75));
        assert_eq!((factor("send_recv"), factor("all_reduce_bucket")), (1.0, 1.5));
        assert_eq!(Collective::AllReduce.bus_factor(1), 0.0);
    }

    #[test]
    fn rounds_a_size_up_to_what_all_ranks_can_share() {
        assert_eq!(Collective::AllReduce.size(4, 3), 4);
        assert_eq!([1, 12, 13].map(|bytes| Collective::AllGather.size(bytes, 3)), [12, 12, 24]);
        assert_eq!(Collective::Barrier.size(64, 3), 0);
    }

    #[test]
    fn finds_each_by_its_name() {
        assert!(Collective::ALL.into_iter().all(|collective| Collective::named(collective.name()) == Some(collective)));
        assert_eq!(Collective::named("all"), None);
    }
}
