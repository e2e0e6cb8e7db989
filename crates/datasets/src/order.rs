//! The order of samples in an epoch, and every rank's part of it.

use rand_mt::Mt;

/// From this length on, a draw takes 64 bits: `n % 2³²` would be visibly uneven. PyTorch's
/// `std::numeric_limits<uint32_t>::max() / 20`.
const WIDE_FROM: usize = (u32::MAX / 20) as usize;

/// A permutation of `0..n`, equal to `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`.
///
/// The generator is MT19937, which PyTorch seeds with the low 32 bits of `seed` only: seeds that differ by a multiple of 2³²
/// give the same permutation. The result takes `8 n` bytes.
pub fn randperm(n: usize, seed: u64) -> Vec<usize> {
    if n < WIDE_FROM { shuffle(n, &mut generator(seed)) } else { randperm_wide(n, seed) }
}

fn generator(seed: u64) -> Mt {
    Mt::new(seed as u32) // the low half, as MT19937RNGEngine.h takes it
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

/// What [`randperm`] does from the length on at which a draw takes 64 bits, for any length.
///
/// Inside-out Fisher–Yates: `i` goes to a position among the first `i + 1`, whose element moves to the end.
pub fn randperm_wide(n: usize, seed: u64) -> Vec<usize> {
    let generator = &mut generator(seed);
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

/// `count` samples of an order: each `step`-th from position `first` on, starting over at the front as often as necessary.
pub fn every(order: &[usize], first: usize, step: usize, count: usize) -> Vec<usize> {
    (0..count).map(|turn| order[(first + turn * step) % order.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_to_64_bits_at_pytorchs_length() {
        assert_eq!(WIDE_FROM, 214_748_364);
    }

    #[test]
    fn starts_over_at_the_front() {
        assert_eq!(every(&[5, 6, 7], 2, 2, 4), [7, 6, 5, 7]);
        assert_eq!(every(&[], 0, 2, 0), [0usize; 0]);
    }
}
