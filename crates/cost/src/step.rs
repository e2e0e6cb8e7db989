//! What a training step takes on a cluster, from what it takes on one rank and from the links' α and β.
//!
//! The model, with n ranks in one ring, a link of latency α and bandwidth B, and S bytes:
//!
//! - An all-reduce is 2(n−1) messages one after the other, each of S/n bytes: 2(n−1)·(α + S/(n·B)). An all-gather or a reduce-scatter is
//!   half of that. (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.)
//! - DDP reduces a bucket when its gradients are there, one bucket after the other, while the backward pass goes on. Gradients
//!   are assumed to come at an even rate. (S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
//!   2020.)
//! - Sharding (FSDP, ZeRO's third stage) gathers each unit's parameters before its forward and its backward pass, and scatters its
//!   gradients after the latter, while the pass computes other units. The first gather and the last scatter do not overlap with
//!   computation. Units are of the same size. (S. Rajbhandari et al., "ZeRO", 2020.)
//!
//! What it leaves out: ranks that wait for each other's data, links that several jobs share, trees, and the time that a hook computes
//! except where it is given.

/// A link between neighbours in the ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds for an empty message.
    pub latency: f64,
    /// Bytes a second.
    pub bandwidth: f64,
}

/// A step on one rank, without communication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// Seconds of the forward pass.
    pub forward: f64,
    /// Seconds of the backward pass.
    pub backward: f64,
    /// Seconds of the optimizer.
    pub optimizer: f64,
}

/// How ranks exchange gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exchange {
    /// DDP in buckets.
    Ddp {
        /// Bytes that are sent for each byte of gradients: ½ with the fp16 hook.
        sent: f64,
        /// All-reduces for each bucket: 2 with PowerSGD.
        calls: f64,
        /// Seconds that the hook computes for all buckets together.
        hook: f64,
        /// Micro-batches of a step, of which only the last communicates (`no_sync`).
        accumulate: u32,
    },
    /// Parameters, gradients and optimizer state are sharded.
    Sharded {
        /// Units that are gathered one by one, 1 at least.
        units: u32,
    },
}

/// The sizes of what is exchanged, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// All gradients; parameters have as many.
    pub gradients: f64,
    /// A bucket of DDP.
    pub bucket: f64,
    /// The first bucket, which is smaller so that the exchange begins early.
    pub first_bucket: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds of the whole step, of all micro-batches.
    pub step: f64,
    /// Seconds in which a rank only waits for communication.
    pub exposed: f64,
    /// Seconds of the same step without communication.
    pub compute: f64,
    /// What takes most of the exposed time.
    pub bound: Bound,
}

/// What a step's time depends on most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Less than a hundredth of the step waits for communication.
    Compute,
    /// The communication time depends more on the number of messages than on their bytes.
    Latency,
    /// The communication time depends more on the bytes of messages than on their number.
    Bandwidth,
    /// The communication hook computes for longer than either takes.
    Hook,
}

impl Link {
    /// Seconds of an all-reduce of `bytes` on `ranks` ranks.
    pub fn all_reduce(&self, ranks: usize, bytes: f64) -> f64 {
        let (latency, transfer) = self.half(ranks, bytes);
        2.0 * (latency + transfer)
    }

    /// Seconds of latency and of transfer in half an all-reduce: an all-gather or a reduce-scatter of `bytes` on `ranks` ranks.
    fn half(&self, ranks: usize, bytes: f64) -> (f64, f64) {
        let messages = ranks.saturating_sub(1) as f64;
        (messages * self.latency, messages * bytes / (ranks as f64 * self.bandwidth))
    }
}

impl Prediction {
    /// A step on `ranks` ranks that are joined by `link`.
    pub fn of(compute: Compute, sizes: Sizes, exchange: Exchange, ranks: usize, link: Link) -> Self {
        match exchange {
            Exchange::Ddp { hook, accumulate, .. } => {
                let buckets = Bucket::all(compute, sizes, exchange, ranks, link);
                let done = buckets.last().map_or(0.0, |bucket| bucket.done);
                let sum = |of: fn(&Bucket) -> f64| buckets.iter().map(of).sum::<f64>();
                let (latency, transfer) = (sum(|bucket| bucket.latency), sum(|bucket| bucket.transfer));
                let hook = if ranks > 1 { hook } else { 0.0 };
                let exposed = (done - compute.backward).max(0.0);
                let passes = f64::from(accumulate) * (compute.forward + compute.backward) + compute.optimizer;
                Self::new(passes, exposed, [latency, transfer, hook])
            }
            Exchange::Sharded { units } => {
                let units = f64::from(units);
                let (latency, moves) = link.half(ranks, sizes.gradients);
                let waits = units * latency;
                // The first unit computes after its gather, and the last scatter follows all computing.
                let exposed = |communication: f64, pass: f64| {
                    (communication + pass / units).max(pass + communication / units) - pass
                };
                let forward = exposed(waits + moves, compute.forward);
                let backward = exposed(2.0 * (waits + moves), compute.backward);
                // The optimizer updates a share.
                let optimizer = compute.optimizer / ranks as f64;
                let passes = compute.forward + compute.backward + optimizer;
                Self::new(passes, forward + backward, [3.0 * waits, 3.0 * moves, 0.0])
            }
        }
    }

    fn new(compute: f64, exposed: f64, [latency, transfer, hook]: [f64; 3]) -> Self {
        let step = compute + exposed;
        let bound = match exposed < 0.01 * step {
            true => Bound::Compute,
            false if hook > latency.max(transfer) => Bound::Hook,
            false if latency > transfer => Bound::Latency,
            false => Bound::Bandwidth,
        };
        Prediction { step, exposed, compute, bound }
    }
}

/// A bucket of DDP's gradients, with seconds since the last micro-batch's backward pass began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub bytes: f64,
    /// Its last gradient is there.
    pub ready: f64,
    /// Its all-reduce begins: after that of the bucket before.
    pub begun: f64,
    pub done: f64,
    /// Of its messages, whatever their bytes.
    latency: f64,
    /// Of their bytes.
    transfer: f64,
}

impl Bucket {
    /// All buckets of a step, in the order in which they become ready. None are exchanged in buckets if parameters are sharded.
    pub fn all(compute: Compute, sizes: Sizes, exchange: Exchange, ranks: usize, link: Link) -> Vec<Bucket> {
        let Exchange::Ddp { sent, calls, hook, .. } = exchange else { return Vec::new() };
        let hook = if ranks > 1 { hook } else { 0.0 };
        let (mut gradients, mut before) = (0.0, 0.0_f64);
        let bucket = |bytes: f64| {
            gradients += bytes;
            let ready = compute.backward * gradients / sizes.gradients;
            let (latency, transfer) = link.half(ranks, sent * bytes);
            let (latency, transfer) = (2.0 * calls * latency, 2.0 * transfer);
            let begun = before.max(ready);
            before = begun + latency + transfer + hook * bytes / sizes.gradients;
            Bucket { bytes, ready, begun, done: before, latency, transfer }
        };
        buckets(sizes).into_iter().map(bucket).collect()
    }
}

/// The buckets' bytes in the order in which they become ready.
fn buckets(sizes: Sizes) -> Vec<f64> {
    let first = sizes.first_bucket.min(sizes.bucket).min(sizes.gradients);
    let rest = sizes.gradients - first;
    let whole = (rest / sizes.bucket).floor();
    let last = rest - whole * sizes.bucket;
    let whole = std::iter::repeat_n(sizes.bucket, whole as usize);
    std::iter::once(first).chain(whole).chain((last > 0.0).then_some(last)).collect()
}

// How a step scales with the number of ranks: the part that more ranks do not divide, and the ring that the ranks' all-reduces show.
//
// Sources: G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities" (1967);
// J. L. Gustafson, "Reevaluating Amdahl's law" (1988).

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
    /// Fits s to (ranks, seconds) with the least squared errors of T(n)/T(1). `None` without a time for one rank and one for
    /// another number.
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
    /// Fits s to (ranks, seconds of one rank's share) with the least squared errors of n·T(1)/T(n). `None` without a time for one
    /// rank and one for another number.
    pub fn fit(times: &[(usize, f64)]) -> Option<Self> {
        let lost = |ranks: f64, time: f64| (ranks - 1.0, ranks - ranks / time);
        Some(Gustafson { serial: slope(times, lost)? })
    }

    /// n·T(1)/T(n): how many times one rank's work is done in one rank's time.
    pub fn speed_up(&self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        ranks - self.serial * (ranks - 1.0)
    }
}

/// The slope of the line through the origin that fits the points which `point` computes from n and T(n)/T(1), for n above 1.
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
    pub ranks: usize,
    pub bytes: f64,
    pub seconds: f64,
}

impl Link {
    /// The link of a ring in which all-reduces take 2(n−1)·(α + S/(n·B)), with the least relative errors. Neither α nor 1/B is below 0;
    /// if times do not grow with bytes, B is infinite. `None` if there are too few numbers of ranks and sizes to separate α from B.
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

/// The factors of α and 1/B, divided by the time.
fn row(sample: &AllReduce) -> [f64; 2] {
    let messages = 2.0 * (sample.ranks - 1) as f64;
    [messages / sample.seconds, messages * sample.bytes / (sample.ranks as f64 * sample.seconds)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTE: Compute = Compute { forward: 0.010, backward: 0.020, optimizer: 0.002 };
    const SIZES: Sizes = Sizes { gradients: 100e6, bucket: 25e6, first_bucket: 25e6 };
    const DDP: Exchange = ddp(1.0, 1.0, 0.0, 1);

    const fn ddp(sent: f64, calls: f64, hook: f64, accumulate: u32) -> Exchange {
        Exchange::Ddp { sent, calls, hook, accumulate }
    }

    fn link(latency: f64, bandwidth: f64) -> Link {
        Link { latency, bandwidth }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found}, not {expected}");
    }

    #[test]
    fn one_rank_has_nothing_to_wait_for() {
        for exchange in [DDP, Exchange::Sharded { units: 10 }, ddp(0.5, 2.0, 1.0, 1)] {
            let alone = Prediction::of(COMPUTE, SIZES, exchange, 1, link(1e-3, 1e6));
            close(alone.step, 0.032);
            assert_eq!((alone.exposed, alone.bound), (0.0, Bound::Compute));
        }
    }

    /// Four buckets of 25 MB on 2 ranks at 10 GB/s: 2.5 ms each, ready every 5 ms. Only the last one adds waiting time.
    #[test]
    fn a_fast_link_exposes_only_the_last_bucket() {
        let found = Prediction::of(COMPUTE, SIZES, DDP, 2, link(0.0, 10e9));
        close(found.exposed, 0.0025);
        close(found.step, 0.0345);
        assert_eq!(found.bound, Bound::Bandwidth);
    }

    /// 25 ms each: the first is ready after 5 ms, then one follows the other.
    #[test]
    fn a_slow_link_exposes_what_the_backward_pass_cannot_hide() {
        let found = Prediction::of(COMPUTE, SIZES, DDP, 2, link(0.0, 1e9));
        close(found.exposed, 0.005 + 4.0 * 0.025 - 0.020);
        let half = Prediction::of(COMPUTE, SIZES, ddp(0.5, 1.0, 0.0, 1), 2, link(0.0, 1e9));
        close(half.exposed, 0.005 + 4.0 * 0.0125 - 0.020);
    }

    /// 14 messages of 1 ms in each of 4 buckets.
    #[test]
    fn many_ranks_on_a_link_of_high_latency_wait_for_messages() {
        let found = Prediction::of(COMPUTE, SIZES, DDP, 8, link(1e-3, 1e15));
        assert!(
            (found.exposed - (0.005 + 4.0 * 0.014 - 0.020)).abs() < 1e-5 && found.bound == Bound::Latency,
            "{found:?}"
        );
        let twice = Prediction::of(COMPUTE, SIZES, ddp(1.0, 2.0, 0.0, 1), 8, link(1e-3, 1e15));
        assert!(twice.exposed > found.exposed + 0.05);
    }

    #[test]
    fn accumulation_pays_for_one_exchange_in_several_passes() {
        let four = Prediction::of(COMPUTE, SIZES, ddp(1.0, 1.0, 0.0, 4), 2, link(0.0, 1e9));
        close(four.compute, 4.0 * 0.030 + 0.002);
        close(four.exposed, 0.085);
    }

    /// On 2 ranks at 1 GB/s a gather of all takes 50 ms: 40 ms more than the forward pass, and two of them 80 ms more than the backward.
    /// A tenth of each pass has nothing to hide.
    #[test]
    fn sharding_sends_half_as_much_again_and_divides_the_optimizer() {
        let found = Prediction::of(COMPUTE, SIZES, Exchange::Sharded { units: 10 }, 2, link(0.0, 1e9));
        close(found.exposed, 0.041 + 0.082);
        close(found.compute, 0.031);
    }

    /// At 10 GB/s a unit's gather takes 0.5 ms: the step waits for the first one in each pass, and for the last scatter.
    #[test]
    fn sharding_waits_for_the_first_gather_and_the_last_scatter_on_a_fast_link() {
        let found = Prediction::of(COMPUTE, SIZES, Exchange::Sharded { units: 10 }, 2, link(0.0, 10e9));
        close(found.exposed, 3.0 * 0.0005);
        let whole = Prediction::of(COMPUTE, SIZES, Exchange::Sharded { units: 1 }, 2, link(0.0, 10e9));
        close(whole.exposed, 3.0 * 0.005);
    }

    /// Four buckets, each 10 ms in the hook: the first is ready after 5 ms.
    #[test]
    fn a_hook_that_computes_for_long_is_the_bound() {
        let found = Prediction::of(COMPUTE, SIZES, ddp(0.01, 2.0, 0.040, 1), 2, link(1e-9, 1e12));
        assert!((found.exposed - 0.025).abs() < 1e-4 && found.bound == Bound::Hook, "{found:?}");
    }

    #[test]
    fn buckets_hold_all_gradients() {
        let sizes = Sizes { gradients: 60.0, bucket: 25.0, first_bucket: 1.0 };
        assert_eq!(buckets(sizes), [1.0, 25.0, 25.0, 9.0]);
        assert_eq!(buckets(Sizes { gradients: 0.5, ..sizes }), [0.5]);
        assert_eq!(buckets(Sizes { gradients: 26.0, ..sizes }), [1.0, 25.0]);
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
