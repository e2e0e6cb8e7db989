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
    // <answer>
    //~ todo!("try the orders of the GPUs; the ring closes at its end")
    /// The hops of a ring, the slowest first.
    fn hops(machine: &Machine, order: &[usize]) -> Vec<Link> {
        let next = |at: usize| order[(at + 1) % order.len()];
        let mut hops: Vec<Link> = (0..order.len()).map(|at| machine.links[order[at]][next(at)]).collect();
        hops.sort_by(|one, other| other.cmp(one));
        hops
    }
    fn try_all(machine: &Machine, order: &mut Vec<usize>, best: &mut Option<(Vec<Link>, Vec<usize>)>) {
        if order.len() == machine.links.len() {
            let hops = hops(machine, order);
            if best.as_ref().is_none_or(|(least, _)| hops < *least) {
                *best = Some((hops, order.clone()));
            }
            return;
        }
        for gpu in 0..machine.links.len() {
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
