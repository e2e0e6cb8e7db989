//! Answers to `choose_layout`: wrong ones, and an unusual right one.

use std::path::Path;

use anyhow::Result;
use lockstep::parallel::{Cluster, ClusterFile, Layout, TransformerStep};

type Choice = Result<Option<Layout>>;

fn layouts(ranks: usize) -> impl Iterator<Item = Layout> {
    let pairs = (1..=ranks).flat_map(move |data| (1..=ranks).map(move |tensor| (data, tensor)));
    pairs.flat_map(move |(data, tensor)| {
        (1..=ranks).map(move |pipeline| Layout { data, tensor, pipeline, ..Layout::ONE })
    })
}

fn fastest(layouts: impl Iterator<Item = Layout>, job: &TransformerStep, cluster: &Cluster) -> Option<Layout> {
    layouts.min_by(|one, other| one.step(job, cluster).total_cmp(&other.step(job, cluster)))
}

fn all(cluster: &Cluster) -> impl Iterator<Item = Layout> + use<> {
    let ranks = cluster.ranks();
    layouts(ranks).filter(move |layout| layout.ranks() == ranks)
}

/// What `choose` says of a file.
fn of_file(file: &Path, choose: impl Fn(&TransformerStep, &Cluster) -> Option<Layout>) -> Choice {
    let ClusterFile { job, cluster } = ClusterFile::read(file)?;
    Ok(choose(&job, &cluster))
}

/// The given program: copies alone.
pub fn only_data(file: &Path) -> Choice {
    of_file(file, |_, cluster| Some(Layout { data: cluster.ranks(), ..Layout::ONE }))
}

/// The layout that holds least.
pub fn least_memory(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        let fit = all(cluster).filter(|layout| layout.divides(job) && layout.memory(job) <= cluster.memory);
        fit.min_by(|one, other| one.memory(job).total_cmp(&other.memory(job)))
    })
}

/// Leaves ranks unused.
pub fn fewer_ranks(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        let some = layouts(cluster.ranks()).filter(|layout| layout.ranks() <= cluster.ranks());
        fastest(some.filter(|layout| layout.divides(job) && layout.memory(job) <= cluster.memory), job, cluster)
    })
}

/// Forgets the memory.
pub fn forgets_memory(file: &Path) -> Choice {
    of_file(file, |job, cluster| fastest(all(cluster).filter(|layout| layout.divides(job)), job, cluster))
}

/// Forgets that heads and blocks are whole.
pub fn forgets_heads(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        fastest(all(cluster).filter(|layout| layout.memory(job) <= cluster.memory), job, cluster)
    })
}

/// Where nothing fits, takes a layout that nearly does.
pub fn never_none(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        let divide = || all(cluster).filter(|layout| layout.divides(job));
        let fit = fastest(divide().filter(|layout| layout.memory(job) <= cluster.memory), job, cluster);
        fit.or_else(|| divide().min_by(|one, other| one.memory(job).total_cmp(&other.memory(job))))
    })
}

/// Keeps the parts of a layer within a node, whatever the network.
pub fn tensor_in_node(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        let fit = all(cluster).filter(|layout| layout.divides(job) && layout.memory(job) <= cluster.memory);
        fastest(fit.filter(|layout| layout.tensor <= cluster.per_node), job, cluster)
    })
}

/// Looks at powers of two alone.
pub fn powers_of_two(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        let fit = all(cluster).filter(|layout| layout.divides(job) && layout.memory(job) <= cluster.memory);
        let are_powers = |layout: &Layout| {
            [layout.data, layout.tensor, layout.pipeline].iter().all(|number| number.is_power_of_two())
        };
        fastest(fit.filter(are_powers), job, cluster)
    })
}

/// Takes the fastest of all, if it fits.
pub fn fastest_or_none(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        let best = fastest(all(cluster).filter(|layout| layout.divides(job)), job, cluster);
        best.filter(|layout| layout.memory(job) <= cluster.memory)
    })
}

/// Right: sorts all by the time of a step and takes the first that fits.
pub fn sorts(file: &Path) -> Choice {
    of_file(file, |job, cluster| {
        let mut all: Vec<Layout> = all(cluster).collect();
        all.sort_by(|one, other| one.step(job, cluster).total_cmp(&other.step(job, cluster)));
        all.into_iter().find(|layout| layout.divides(job) && layout.memory(job) <= cluster.memory)
    })
}
