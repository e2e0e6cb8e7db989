//! Grades `choose_layout`: on a cluster with a slow network, on one where copies do not fit, on one whose ranks do not divide the heads, and on
//! one where nothing fits.

use lockstep_cost::{Cluster, Job, Layout, Link};
use lockstep_grading::{Claim, Inputs, Runner};

const FAST: Link = Link { latency: 5e-6, bandwidth: 200e9 };
const NETWORK: Link = Link { latency: 20e-6, bandwidth: 10e9 };
const SLOW: Link = Link { latency: 100e-6, bandwidth: 0.5e9 };
const MEMORY: f64 = 40e9;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let cases = cases(&mut runner.random());
    let numbers = cases.map(|(job, cluster)| {
        let whole = [job.blocks, job.heads, job.micro_batches, cluster.nodes, cluster.per_node];
        let links = [cluster.inside, cluster.between].map(|link| [link.latency, link.bandwidth]);
        (whole, [job.parameters, job.activations, job.kept, job.compute, cluster.memory], links)
    });
    let outputs = runner.call::<_, Option<[usize; 3]>>(1, &numbers)?;
    for (number, (job, cluster)) in cases.iter().enumerate() {
        let layout = outputs.of(0, number).map(|[data, tensor, pipeline]| Layout { data, tensor, pipeline });
        check(job, cluster, layout)?;
    }
    Ok(())
}

/// Each has one best layout by far, whatever is drawn: the second takes at least 2 % longer.
fn cases(random: &mut Inputs) -> [(Job, Cluster); 4] {
    let mut between = |least: usize, most: usize| random.below(least..most) as f64;
    let mut job = |blocks, heads, parameters: (usize, usize), compute: (usize, usize)| Job {
        blocks,
        heads,
        parameters: between(parameters.0, parameters.1) * 1e6,
        activations: between(1000, 1200) * 1e6,
        kept: between(4000, 5000) * 1e6,
        compute: between(compute.0, compute.1) / 1e3,
        micro_batches: 8,
    };
    let cluster = |nodes, per_node, between| Cluster { nodes, per_node, memory: MEMORY, inside: FAST, between };
    [
        (job(24, 16, (1200, 1500), (2000, 3000)), cluster(4, 2, SLOW)),
        (job(30, 12, (6000, 7000), (30_000, 40_000)), cluster(1, 8, NETWORK)),
        (job(30, 12, (5000, 5500), (30_000, 40_000)), cluster(1, 5, NETWORK)),
        (job(24, 16, (40_000, 50_000), (30_000, 40_000)), cluster(2, 2, NETWORK)),
    ]
}

fn check(job: &Job, cluster: &Cluster, found: Option<Layout>) -> anyhow::Result<()> {
    let ranks = cluster.ranks();
    let numbers = 1..=ranks;
    let all = numbers.clone().flat_map(|data| {
        numbers.clone().map(move |tensor| Layout { data, tensor, pipeline: ranks / (data * tensor).min(ranks) })
    });
    let fits = |layout: &Layout| layout.memory(job) <= cluster.memory;
    let step = |layout: &Layout| layout.step(job, cluster);
    let best = all
        .filter(|layout| layout.ranks() == ranks && layout.divides(job) && fits(layout))
        .min_by(|one, other| step(one).total_cmp(&step(other)));
    let is = |condition: &dyn Fn(&Layout) -> bool| found.as_ref().is_some_and(condition);
    let described = |layout: Option<Layout>| match layout {
        Some(layout) => {
            format!("{layout:?}: {:.1} GB a rank, {:.3} s a step", layout.memory(job) / 1e9, step(&layout))
        }
        None => "None".to_owned(),
    };
    Claim::that(found == best, described(best), described(found))
        .given(format!("{job:?} on {cluster:?}"))
        .diagnose_if(is(&|layout| layout.ranks() != ranks), format!("all {ranks} ranks are to take part, each in one place"))
        .diagnose_if(
            is(&|layout| !layout.divides(job)),
            "a head or a block cannot be divided: the parts of a layer must divide the heads, the stages the blocks",
        )
        .diagnose_if(
            found.is_some() && best.is_none(),
            "no layout fits into this memory: the answer is None, and the cluster needs more ranks",
        )
        .diagnose_if(is(&|layout| !fits(layout)), "a step would be short, but a rank has less memory than it would hold")
        .diagnose_if(
            is(&|layout| layout.data == ranks),
            "copies fit, but all their gradients cross the network in each step: stages send activations only, and parts of a layer stay \
             within a node",
        )
        .diagnose_if(
            is(&|layout| best.is_some_and(|best| layout.memory(job) < best.memory(job))),
            "it holds less than it may, and takes longer: what fits need not be made smaller",
        )
        .or_fail("another layout that fits takes a shorter step")
}
