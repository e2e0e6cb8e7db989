//! `torch.randperm` on the CPU, without libtorch: the same permutation for the same seed.
//!
//! Sources: `randperm_cpu` in ATen/native/TensorFactories.cpp, ATen/core/MT19937RNGEngine.h and
//! aten/src/ATen/CPUGeneratorImpl.cpp of PyTorch 2.11.

use rand_mt::Mt;

/// From this length on, a draw takes 64 bits: `n % 2³²` would be visibly uneven. PyTorch's
/// `std::numeric_limits<uint32_t>::max() / 20`.
const WIDE_FROM: usize = (u32::MAX / 20) as usize;

/// A permutation of `0..n`, equal to `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`.
///
/// The generator is MT19937, which PyTorch seeds with the low 32 bits of `seed` only: seeds that differ by a multiple of 2³²
/// give the same permutation. The result takes `8 n` bytes.
///
/// ```no_run
/// assert_eq!(lockstep::sampler::randperm(10, 0), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
/// ```
pub fn randperm(n: usize, seed: u64) -> Vec<usize> {
    let mut generator = Mt::new(seed as u32); // the low half, as MT19937RNGEngine.h takes it
    if n < WIDE_FROM { shuffle(n, &mut generator) } else { shuffle_wide(n, &mut generator) }
}

/// Forward Fisher–Yates: position `i` swaps with a later one, or with itself.
fn shuffle(n: usize, generator: &mut Mt) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n.saturating_sub(1) {
        let offset = generator.next_u32() as usize % (n - i);
        order.swap(i, i + offset);
    }
    order
}

/// Inside-out Fisher–Yates: `i` goes to a position among the first `i + 1`, whose element moves to the end.
fn shuffle_wide(n: usize, generator: &mut Mt) -> Vec<usize> {
    let mut order = Vec::with_capacity(n);
    for i in 0..n {
        let place = (next_u64(generator) % (i as u64 + 1)) as usize;
        order.push(i);
        order[i] = order[place];
        order[place] = i;
    }
    order
}

/// Two draws as one number, the first in the high half: `CPUGeneratorImpl::random64`.
fn next_u64(generator: &mut Mt) -> u64 {
    let high = u64::from(generator.next_u32());
    let low = u64::from(generator.next_u32());
    high << 32 | low
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        wide_shuffle: Vec<Wide>,
    }

    #[derive(Deserialize)]
    struct Wide {
        n: usize,
        seed: u64,
        order: Vec<usize>,
    }

    #[test]
    fn shuffles_by_64_bits_as_pytorch_does() {
        let golden: Golden = serde_json::from_str(include_str!("../../golden/sampler.json")).unwrap();
        assert!(!golden.wide_shuffle.is_empty());
        for case in golden.wide_shuffle {
            let order = shuffle_wide(case.n, &mut Mt::new(case.seed as u32));
            assert_eq!(order, case.order, "n {}, seed {}", case.n, case.seed);
        }
    }

    #[test]
    fn switches_to_64_bits_at_pytorchs_length() {
        assert_eq!(WIDE_FROM, 214_748_364);
    }
}
