//! Task 5: choose a layout for a cluster.
//!
//! A file describes a cluster and a transformer, as `labs/12-parallelism/cluster.toml` does. A layout says how many copies there are, into
//! how many parts a layer is divided, and into how many stages the blocks. A model of costs (`crates/cost/src/layout.rs`) says what a rank
//! then holds and what a step takes; `lockstep bench predict` shows it for such a file. Which layout is the fastest that fits? Layouts of
//! this task do not divide sequences or experts: `context` and `expert` are 1.

use std::path::Path;

use anyhow::Result;
use lockstep::parallel::{ClusterFile, Layout};

/// Returns the layout with the shortest step among those that use all ranks of the cluster, divide heads and blocks equally, and fit into a
/// rank's memory; `None` if none does.
pub fn choose_layout(file: &Path) -> Result<Option<Layout>> {
    let ClusterFile { job, cluster } = ClusterFile::read(file)?;
    // `Layout` has `divides(&job)`, `memory(&job)` in bytes, and `step(&job, &cluster)` in seconds.
    Ok(Some(Layout { data: cluster.ranks(), ..Layout::ONE }))
}
