//! Answers to `choose_layout`: wrong ones, and an unusual right one.

use std::path::Path;

use anyhow::Result;
use lockstep::parallel::{ClusterFile, Layout};
use lockstep_answers::{edit, given};

/// The given program: copies alone.
#[given]
pub fn only_data() {}

/// The layout that holds least.
#[edit(one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)) => one.memory(&job).total_cmp(&other.memory(&job)))]
pub fn least_memory() {}

/// Leaves ranks unused.
#[edit(Layout::all(cluster.ranks()) => (1..=cluster.ranks()).flat_map(Layout::all))]
pub fn fewer_ranks() {}

/// Forgets the memory.
#[edit(&& layout.memory(&job) <= cluster.memory => )]
pub fn forgets_memory() {}

/// Forgets that heads and blocks are whole.
#[edit(layout.divides(&job) && => )]
pub fn forgets_heads() {}

/// Where nothing fits, takes a layout that nearly does.
#[edit(let fit => let divided = Layout::all(cluster.ranks()).filter(|layout| layout.divides(&job)); let fit)]
#[edit(fit.min_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster))) =>
    fit.min_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)))
        .or_else(|| divided.min_by(|one, other| one.memory(&job).total_cmp(&other.memory(&job))))
)]
pub fn never_none() {}

/// Keeps the parts of a layer within a node, whatever the network.
#[edit(layout.divides(&job) && => layout.divides(&job) && layout.tensor <= cluster.per_node &&)]
pub fn tensor_in_node() {}

/// Looks at powers of two alone.
#[edit(layout.divides(&job) &&
    => [layout.data, layout.tensor, layout.pipeline].iter().all(|number| number.is_power_of_two()) && layout.divides(&job) &&)]
pub fn powers_of_two() {}

/// Takes the fastest of all, if it fits.
#[edit(&& layout.memory(&job) <= cluster.memory => )]
#[edit(fit.min_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster))) =>
    fit.min_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)))
        .filter(|layout| layout.memory(&job) <= cluster.memory)
)]
pub fn fastest_or_none() {}

/// Leaves the number of copies at 0.
#[edit(Ok(fit.min_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)))) =>
    let best = fit.min_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)));
    Ok(best.map(|best| Layout { data: 0, ..best }))
)]
pub fn no_copies() {}

/// Right: sorts all by the time of a step and takes the first that fits.
#[edit(Ok(fit.min_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)))) =>
    let mut fit: Vec<Layout> = fit.collect();
    fit.sort_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)));
    Ok(fit.into_iter().next())
)]
pub fn sorts() {}
