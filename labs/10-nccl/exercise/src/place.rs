//! Task 6: ranks and GPUs.
//!
//! A ring is as fast as its slowest hop. Which links the ring uses depends on which rank gets which GPU.

use serde::Deserialize;

/// The link between two GPUs, as `nvidia-smi topo -m` names it. The later in this list, the slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Link {
    Nv,
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

/// `links[a][b]` is the link from GPU a to GPU b. `links[a][a]` has no meaning.
#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    pub links: Vec<Vec<Link>>,
}

/// Returns the GPU of each rank, all GPUs once. The hops of the ring (rank to rank + 1, and the last to the first) are as fast as
/// possible: the fewest hops of the slowest kind, then of the next.
pub fn place(machine: &Machine) -> Vec<usize> {
    todo!("try the orders of the GPUs; the ring closes at its end")
}
