//! Grades `choose_layout`: on a cluster with a slow network, on one where copies do not fit, on one whose ranks do not divide the heads, on
//! one where nothing fits, on one whose nodes are as near as ranks of a node, all of them drawn; and on the lab's own.

use anyhow::Context;
use lockstep_cost::{Cluster, ClusterFile, Layout, Link, TransformerStep};
use lockstep_grading::{Claim, Inputs, Runner, joined};

const LAB: &str = include_str!("../../cluster.toml");
/// Bandwidths of networks, in GB/s, with their latencies in µs.
const NETWORK: [f64; 2] = [10.0, 20.0];
const SLOW: [f64; 2] = [0.5, 100.0];
/// A switch between nodes that is as fast as the links within one.
const SWITCH: [f64; 2] = [400.0, 5.0];

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let files = files(&mut runner.random());
    let outputs = runner.call::<_, Option<[usize; 3]>>(1, &files)?;
    for (number, text) in files.iter().enumerate() {
        let ClusterFile { job, cluster } = ClusterFile::parse(text).context("the grader's file")?;
        let layout = outputs.of(0, number);
        let ranks = 1..=cluster.ranks();
        // A layout with a 0 has neither a memory nor a step.
        Claim::that(
            layout.is_none_or(|numbers| numbers.iter().all(|number| ranks.contains(number))),
            format!("three numbers from 1 to {}", ranks.end()),
            joined(&layout.unwrap_or_default(), ", "),
        )
        .given(listed(&job, &cluster))
        .or_fail("data, tensor and pipeline divide the number of ranks: 1 means that a dimension divides nothing")?;
        let layout = layout.map(|[data, tensor, pipeline]| Layout { data, tensor, pipeline, ..Layout::ONE });
        check(&job, &cluster, layout)?;
    }
    Ok(())
}

/// Each has one best layout by far, whatever is drawn: the second takes at least 2 % longer.
fn files(random: &mut Inputs) -> [String; 6] {
    let mut between = |(least, most): (usize, usize)| random.below(least..most);
    let mut file =
        |[nodes, ranks]: [usize; 2], [bandwidth, latency]: [f64; 2], [blocks, heads]: [usize; 2], millions, compute| {
            let (parameters, compute) = (between(millions), between(compute));
            let (activations, kept) = (between((1000, 1200)), between((4000, 5000)));
            format!(
                "nodes = {nodes}\n\n[node]\nranks = {ranks}\nmemory_gb = 40\nlatency_us = 5\nbandwidth_gb_s = 200\n\n\
             [network]\nlatency_us = {latency}\nbandwidth_gb_s = {bandwidth}\n\n\
             [transformer]\nblocks = {blocks}\nheads = {heads}\nparameters = {parameters}_000_000\n\
             activations_mb = {activations}\nkept_mb = {kept}\nstep_s = {}\nmicro_batches = 8\n",
                compute as f64 / 1e3
            )
        };
    [
        file([4, 2], SLOW, [24, 16], (1200, 1500), (2000, 3000)),
        file([1, 8], NETWORK, [30, 12], (6000, 7000), (30_000, 40_000)),
        file([1, 5], NETWORK, [30, 12], (5000, 5500), (30_000, 40_000)),
        file([2, 2], NETWORK, [24, 16], (40_000, 50_000), (30_000, 40_000)),
        file([4, 1], SWITCH, [24, 16], (5000, 5500), (30_000, 40_000)),
        LAB.to_owned(),
    ]
}

fn check(job: &TransformerStep, cluster: &Cluster, found: Option<Layout>) -> anyhow::Result<()> {
    let ranks = cluster.ranks();
    let fits = |layout: &Layout| layout.memory(job) <= cluster.memory;
    let step = |layout: &Layout| layout.step(job, cluster);
    let best = Layout::all(ranks)
        .filter(|layout| layout.divides(job) && fits(layout))
        .min_by(|one, other| step(one).total_cmp(&step(other)));
    let is = |condition: &dyn Fn(&Layout) -> bool| found.as_ref().is_some_and(condition);
    let described = |layout: Option<Layout>| match layout {
        Some(layout) => {
            let Layout { data, tensor, pipeline, .. } = layout;
            let held = layout.memory(job) / 1e9;
            format!(
                "data {data}, tensor {tensor}, pipeline {pipeline}: {held:.1} GB a rank, {:.3} s a step",
                step(&layout)
            )
        }
        None => "None".to_owned(),
    };
    Claim::that(found == best, described(best), described(found))
        .given(listed(job, cluster))
        .diagnose_if(is(&|layout| layout.ranks() != ranks), format!("all {ranks} ranks must take part"))
        .diagnose_if(
            is(&|layout| !layout.divides(job)),
            "a head or a block cannot be divided: the parts of a layer must divide the heads, the stages the blocks",
        )
        .diagnose_if(
            found.is_some() && best.is_none(),
            "no layout fits into this memory: the answer is None, and the cluster needs more ranks",
        )
        .diagnose_if(is(&|layout| !fits(layout)), "a step would be short, but a rank would have to hold more than its memory")
        .diagnose_if(
            is(&|layout| layout.data == ranks),
            "copies fit, but all their gradients cross the network in each step: stages send activations only, and parts of a layer stay \
             within a node",
        )
        .diagnose_if(
            is(&|layout| best.is_some_and(|best| layout.memory(job) < best.memory(job))),
            "this layout needs less memory and takes longer than another that fits: among those that fit, only the step's time counts",
        )
        .diagnose_if(
            is(&|layout| layout.tensor <= cluster.per_node) && best.is_some_and(|best| best.tensor > cluster.per_node),
            "the parts of a layer stay within a node, which is a rule for slow networks: this one is fast enough for parts on several \
             nodes. The model knows both links, so compare all layouts",
        )
        .diagnose_if(
            found.is_none() && !ranks.is_power_of_two(),
            "a layout fits, but was not considered: the three numbers must divide the number of ranks, but need not be powers of two",
        )
        .diagnose_if(
            found.is_none(),
            "a layout fits, although the fastest of all does not: choose the fastest of those that fit",
        )
        .or_fail("another layout that fits takes a shorter step")
}

fn listed(job: &TransformerStep, cluster: &Cluster) -> String {
    let link = |link: Link| format!("{:.0} µs and {} GB/s", link.latency * 1e6, link.bandwidth / 1e9);
    joined(
        &[
            format!("nodes: {} of {} ranks, each with {:.0} GB", cluster.nodes, cluster.per_node, cluster.memory / 1e9),
            format!("links: {} within a node, {} between nodes", link(cluster.inside), link(cluster.between)),
            format!(
                "transformer: {} blocks, {} heads, {:.0} million parameters",
                job.blocks,
                job.heads,
                job.parameters / 1e6
            ),
            format!(
                "activations: {:.0} MB between blocks, {:.0} MB kept in each",
                job.activations / 1e6,
                job.kept / 1e6
            ),
            format!("step: {} micro-batches, {:.3} s on one rank", job.micro_batches, job.compute),
        ],
        "\n",
    )
}
