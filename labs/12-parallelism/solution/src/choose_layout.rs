//! Task 4: choose a layout for a cluster.
//!
//! A model of costs (`crates/cost/src/layout.rs`) says what a rank holds and what a step takes if so many ranks each divide the data, the
//! layers and the blocks. Which layout is the fastest that fits?

use lockstep::parallel::{Cluster, Job, Layout};

/// Returns the layout with the shortest step of those that take all ranks of the cluster, divide heads and blocks equally, and fit into a rank's
/// memory; `None` if there is none.
pub fn choose_layout(job: &Job, cluster: &Cluster) -> Option<Layout> {
    // <answer>
    //~ // `Layout` has `divides(job)`, `memory(job)` in bytes, and `step(job, cluster)` in seconds.
    //~ Some(Layout { data: cluster.ranks(), tensor: 1, pipeline: 1 })
    let ranks = cluster.ranks();
    let mut best: Option<Layout> = None;
    for data in 1..=ranks {
        for tensor in 1..=ranks / data {
            let layout = Layout { data, tensor, pipeline: ranks / data / tensor };
            let fits = layout.ranks() == ranks && layout.divides(job) && layout.memory(job) <= cluster.memory;
            if fits && best.is_none_or(|best| layout.step(job, cluster) < best.step(job, cluster)) {
                best = Some(layout);
            }
        }
    }
    best
    // </answer>
}
