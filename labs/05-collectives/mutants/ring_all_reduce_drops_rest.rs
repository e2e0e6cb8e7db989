//! Cuts chunks of one length, and forgets what is left over.

use anyhow::Result;
use tch::Tensor;

use crate::ring::Ring;

pub fn ring_all_reduce(ring: &Ring<'_>, tensor: &mut Tensor) -> Result<()> {
    let (me, size) = (ring.rank(), ring.size());
    let each = tensor.size()[0] / size as i64;
    let mut chunks: Vec<Tensor> = (0..size as i64).map(|chunk| tensor.narrow(0, chunk * each, each)).collect();
    let of = |behind: usize| (me + 2 * size - behind) % size;
    for step in 0..size - 1 {
        let arrived = ring.exchange(&chunks[of(step)])?;
        let _ = chunks[of(step + 1)].g_add_(&arrived);
    }
    for step in 0..size - 1 {
        let arrived = ring.exchange(&chunks[of(step + size - 1)])?;
        chunks[of(step)].copy_(&arrived);
    }
    Ok(())
}
