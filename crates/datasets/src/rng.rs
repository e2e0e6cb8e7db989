//! Random numbers that are keyed by a position and never depend on what was drawn before.

/// The odd constant that SplitMix64 adds at each step, the golden ratio's fraction times 2⁶⁴.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A generator that starts from a key such as `[seed, stream, index]`.
#[derive(Debug, Clone)]
pub struct KeyedRng {
    state: u64,
}

impl KeyedRng {
    /// The generator for this key. Keys that differ in any part, or in length, give unrelated streams.
    pub fn new(key: &[u64]) -> Self {
        let start = mix(GAMMA ^ key.len() as u64);
        Self { state: key.iter().fold(start, |state, &part| mix(state ^ part).wrapping_add(GAMMA)) }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// Uniform in `[0, 1)`, a multiple of 2⁻²⁴ as in PyTorch's `torch.rand`.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    /// Uniform in `[low, high)`, up to rounding.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform()
    }

    /// Uniform in `0..n`, off by less than `n`/2⁶⁴.
    ///
    /// # Panics
    /// Panics when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "n must be at least 1");
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// The numbers below `N` in random order (Fisher and Yates; Durstenfeld, 1964). `N` is at most 256.
    pub fn shuffled<const N: usize>(&mut self) -> [u8; N] {
        let mut order: [u8; N] = std::array::from_fn(|number| number as u8);
        (1..N).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }

    /// Near normal: mean 0, variance 1, never beyond ±6. The sum of twelve uniform numbers less 6 (Irwin–Hall),
    /// which, unlike Box–Muller, needs no logarithm.
    pub fn normal(&mut self) -> f32 {
        let sum: u64 = (0..6).map(|_| self.next_u64()).map(|bits| (bits >> 32) + (bits & 0xFFFF_FFFF)).sum();
        (sum as f64 / (1u64 << 32) as f64 - 6.0) as f32
    }
}

/// SplitMix64's output function: each input bit reaches each output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_published_stream_of_splitmix64() {
        let mut rng = KeyedRng { state: 1_234_567 };
        let drawn: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn keeps_the_stream_of_a_key_forever() {
        // From a second implementation, in Python.
        let mut rng = KeyedRng::new(&[42, 1, 7]);
        assert_eq!(rng.next_u64(), 5_330_824_984_377_125_378);
        assert_eq!(rng.uniform().to_bits(), 0x3eb9_4c56);
        assert_eq!(rng.normal().to_bits(), 0xbdb1_dd84);
    }

    #[test]
    fn separates_keys_by_part_order_and_length() {
        let keys: [&[u64]; 7] = [&[], &[0], &[0, 0], &[0, 1], &[1, 0], &[1], &[0, 0, 0]];
        let mut firsts: Vec<u64> = keys.iter().map(|key| KeyedRng::new(key).next_u64()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), keys.len());
    }

    #[test]
    fn has_the_moments_that_it_states() {
        let mut rng = KeyedRng::new(&[3]);
        let n = 100_000;
        let moments = |draw: &mut dyn FnMut() -> f32| {
            let values: Vec<f64> = (0..n).map(|_| f64::from(draw())).collect();
            let mean = values.iter().sum::<f64>() / f64::from(n);
            (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / f64::from(n))
        };
        let (mean, variance) = moments(&mut || rng.normal());
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
        let (mean, variance) = moments(&mut || rng.uniform());
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.002, "{mean} {variance}");
    }

    #[test]
    fn draws_each_number_below_n_with_equal_frequency() {
        let mut rng = KeyedRng::new(&[4]);
        let mut counts = [0u32; 7];
        (0..70_000).for_each(|_| counts[rng.below(7)] += 1);
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }
}
