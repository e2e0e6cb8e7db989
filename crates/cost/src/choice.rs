//! Which layout suits a transformer and a cluster: all layouts with their memory and their step, the fastest first.

use crate::layout::{Cluster, Layout, Sharding, TransformerStep};

/// Layouts that a table shows, besides copies alone.
pub const SHOWN: usize = 12;

/// The note of the fastest layout that fits.
pub const FASTEST: &str = "the fastest that fits";

/// A layout with the sharding that suits it best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub layout: Layout,
    pub sharding: Sharding,
    /// In bytes, of a rank.
    pub memory: f64,
    /// In seconds.
    pub step: f64,
    /// Whether a rank of the cluster has that memory.
    pub fits: bool,
}

impl Choice {
    /// Divides what makes the fastest step that fits, and of equal ones the least; if nothing fits, what holds least.
    pub fn best(layout: Layout, job: &TransformerStep, cluster: &Cluster) -> Self {
        let shardings = layout.shardings().iter().map(|sharding| {
            let memory = layout.memory_sharded(*sharding, job);
            let step = layout.step_sharded(*sharding, job, cluster);
            Choice { layout, sharding: *sharding, memory, step, fits: memory <= cluster.memory }
        });
        let fitting = shardings.clone().filter(|choice| choice.fits);
        let fastest = fitting.min_by(|one, other| one.step.total_cmp(&other.step));
        let smallest = || shardings.min_by(|one, other| one.memory.total_cmp(&other.memory));
        fastest.or_else(smallest).expect("a layout has a sharding")
    }

    /// The layouts of all ranks that divide the transformer equally, those with the shortest step first.
    pub fn by_step(job: &TransformerStep, cluster: &Cluster) -> Vec<Choice> {
        let layouts = Layout::of_job(cluster.ranks(), *job);
        let mut choices: Vec<Choice> = layouts.map(|layout| Choice::best(layout, job, cluster)).collect();
        choices.sort_by(|one, other| one.step.total_cmp(&other.step));
        choices
    }

    /// The fastest layout that fits on a part of the ranks of one node, or on a part of the nodes, and that part of the cluster.
    pub fn on_fewer(job: &TransformerStep, cluster: &Cluster) -> Option<(Cluster, Choice)> {
        let parts = |of: usize| (1..of).filter(move |part| of.is_multiple_of(*part));
        let nodes = parts(cluster.nodes).map(|nodes| Cluster { nodes, ..*cluster });
        let ranks = parts(cluster.per_node).map(|per_node| Cluster { nodes: 1, per_node, ..*cluster });
        let fitting = |some: Cluster| {
            let choice = Choice::by_step(job, &some).into_iter().find(|choice| choice.fits)?;
            Some((some, choice))
        };
        nodes.chain(ranks).filter_map(fitting).min_by(|(_, first), (_, second)| first.step.total_cmp(&second.step))
    }

    /// What a table shows of all layouts, in their order: the [`SHOWN`] fastest that fit, or if these are fewer others; and copies alone. Each
    /// with a note, which may be empty.
    pub fn shown(all: &[Choice]) -> Vec<(Choice, &'static str)> {
        let (fitting, others): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|at| all[*at].fits);
        let fastest = fitting.first().copied();
        let mut shown: Vec<usize> = fitting.into_iter().chain(others).take(SHOWN).collect();
        shown.extend((0..all.len()).filter(|at| all[*at].is_copies()));
        shown.sort_unstable();
        shown.dedup();
        let note = |at: usize| match all[at].fits {
            true if Some(at) == fastest => FASTEST,
            true => "",
            false => "does not fit",
        };
        shown.into_iter().map(|at| (all[at], note(at))).collect()
    }

    /// The layout in a table: copies, what they shard, parts, stages, context, and experts if the transformer has some.
    pub fn cells(&self, job: &TransformerStep) -> Vec<String> {
        let Layout { data, tensor, pipeline, context, expert } = self.layout;
        let sharded = match self.sharding {
            Sharding::None => "",
            Sharding::States => "states",
            Sharding::Full => "all",
        };
        let [data, tensor, pipeline, context, expert] =
            [data, tensor, pipeline, context, expert].map(|number| number.to_string());
        let experts = job.experts.map(|_| expert);
        [data, sharded.to_owned(), tensor, pipeline, context].into_iter().chain(experts).collect()
    }

    /// Returns true if its ranks divide nothing but the batch, and experts.
    fn is_copies(&self) -> bool {
        self.layout.data == self.layout.ranks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterFile;

    const LAB: &str = include_str!("../../../labs/12-parallelism/cluster.toml");

    #[test]
    fn copies_divide_no_more_than_they_must() {
        // 13 · 10^9 parameters in 4 parts on 8 copies: 52 GB whole, 29 GB with divided states, 6.5 GB fully sharded, and what blocks keep.
        let of_8 = Layout { data: 8, tensor: 4, ..Layout::ONE };
        for (memory, sharding, fits) in [
            (80, Sharding::None, true),
            (40, Sharding::States, true),
            (20, Sharding::Full, true),
            (6, Sharding::Full, false),
        ] {
            let file = ClusterFile::parse(&LAB.replace("memory_gb = 40", &format!("memory_gb = {memory}"))).unwrap();
            let choice = Choice::best(of_8, &file.job, &file.cluster);
            assert_eq!((choice.sharding, choice.fits), (sharding, fits), "{memory}");
        }
    }
}
