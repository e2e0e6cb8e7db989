//! Task 6: ranks and GPUs.
//!
//! A ring is as fast as its slowest hop. Which rank gets which GPU decides which ways the ring takes.

use serde::Deserialize;

/// The way between two GPUs, as `nvidia-smi topo -m` names it. The later in this list, the slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Way {
    Nv,
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

/// `ways[a][b]` is the way from GPU a to GPU b. `ways[a][a]` means nothing.
#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    pub ways: Vec<Vec<Way>>,
}

/// Returns the GPU of each rank, all GPUs once. The hops of the ring (rank to rank + 1, and the last to the first) are as fast as they can
/// be: the fewest hops of the slowest kind, then of the next.
pub fn place(machine: &Machine) -> Vec<usize> {
    todo!("try the orders of the GPUs; the ring closes at its end")
}
