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
    // <answer>
    //~ todo!("try the orders of the GPUs; the ring closes at its end")
    /// The hops of a ring, the slowest first.
    fn hops(machine: &Machine, order: &[usize]) -> Vec<Way> {
        let next = |at: usize| order[(at + 1) % order.len()];
        let mut hops: Vec<Way> = (0..order.len()).map(|at| machine.ways[order[at]][next(at)]).collect();
        hops.sort_by(|one, other| other.cmp(one));
        hops
    }
    fn try_all(machine: &Machine, order: &mut Vec<usize>, best: &mut Option<(Vec<Way>, Vec<usize>)>) {
        if order.len() == machine.ways.len() {
            let hops = hops(machine, order);
            if best.as_ref().is_none_or(|(least, _)| hops < *least) {
                *best = Some((hops, order.clone()));
            }
            return;
        }
        for gpu in 0..machine.ways.len() {
            if !order.contains(&gpu) {
                order.push(gpu);
                try_all(machine, order, best);
                order.pop();
            }
        }
    }
    let mut best = None;
    // A ring has no beginning: GPU 0 is rank 0's.
    try_all(machine, &mut vec![0], &mut best);
    best.map(|(_, order)| order).unwrap_or_default()
    // </answer>
}
