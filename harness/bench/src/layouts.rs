//! What a rank would hold and a step would take in each layout of a transformer on a cluster.

use lockstep_cost::{Cluster, ClusterFile, Layout, Sharding, TransformerStep};

use crate::report::{Table, count};
use crate::results::Unit;

/// Rows of a table of layouts, besides copies alone.
pub(super) const SHOWN: usize = 12;

/// Returns true if the text is that of a file with a transformer.
pub(super) fn are_asked_for(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("transformer"))
}

/// A table for each number of nodes; without one, for that of the file.
pub(super) fn tables(file: &ClusterFile, nodes: &[u32]) -> Vec<Table> {
    let of_file = [file.cluster.nodes];
    let nodes: Vec<usize> = nodes.iter().map(|nodes| *nodes as usize).collect();
    let nodes = if nodes.is_empty() { &of_file[..] } else { &nodes };
    nodes.iter().map(|nodes| table(file, *nodes)).collect()
}

/// A layout with the sharding that suits it best.
#[derive(Clone, Copy)]
struct Choice {
    layout: Layout,
    sharding: Sharding,
    /// In bytes, of a rank.
    memory: f64,
    /// In seconds.
    step: f64,
    fits: bool,
}

impl Choice {
    /// Divides what makes the fastest step that fits, and of equal ones the least; if nothing fits, what holds least.
    fn best(layout: Layout, job: &TransformerStep, cluster: &Cluster) -> Self {
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

    /// A row below [`headings`].
    fn row(&self, job: &TransformerStep, note: String) -> Vec<String> {
        let Layout { data, tensor, pipeline, context, expert } = self.layout;
        let sharded = match self.sharding {
            Sharding::None => "",
            Sharding::States => "states",
            Sharding::Full => "all",
        };
        let [held, step] = [Unit::Bytes.show(self.memory), Unit::Seconds.show(self.step)];
        let [data, tensor, pipeline, context, expert] =
            [data, tensor, pipeline, context, expert].map(|number| number.to_string());
        let experts = job.experts.map(|_| expert);
        [data, sharded.to_owned(), tensor, pipeline, context]
            .into_iter()
            .chain(experts)
            .chain([held, step, note])
            .collect()
    }

    /// Returns true if its ranks divide nothing but the batch, and experts.
    fn is_copies(&self) -> bool {
        self.layout.data == self.layout.ranks()
    }
}

fn headings(job: &TransformerStep) -> Vec<String> {
    let experts = job.experts.map(|_| "experts");
    let all = ["copies", "shards", "parts", "stages", "context"].into_iter().chain(experts);
    all.chain(["memory", "step", ""]).map(str::to_owned).collect()
}

/// Some layouts of all ranks, those with the shortest step first; before them the fastest that fits on fewer ranks, if it is faster.
fn table(file: &ClusterFile, nodes: usize) -> Table {
    let ClusterFile { job, mut cluster } = *file;
    cluster.nodes = nodes;
    let ranks = cluster.ranks();
    let all = by_step(&job, &cluster);
    let fastest = all.iter().position(|choice| choice.fits);
    let limit = fastest.map_or(f64::INFINITY, |at| all[at].step);
    let fewer = on_fewer(&job, &cluster).filter(|(_, choice)| choice.step < limit);
    let fewer = fewer.map(|(some, choice)| {
        let (ranks, nodes) = (count(some.ranks(), "rank"), count(some.nodes, "node"));
        choice.row(&job, format!("faster than all: {ranks} on {nodes}"))
    });
    let shown = shown(&all);
    let rows = shown.iter().map(|at| {
        let note = match all[*at].fits {
            true if Some(*at) == fastest => "the fastest that fits",
            true => "",
            false => "does not fit",
        };
        all[*at].row(&job, note.to_owned())
    });
    let (rank, node, memory) = (count(ranks, "rank"), count(nodes, "node"), Unit::Bytes.show(cluster.memory));
    let left_out = match all.len() - shown.len() {
        0 => String::new(),
        number => format!("; {} left out", count(number, "layout")),
    };
    Table {
        title: format!("{rank} on {node}, each with {memory}{left_out}"),
        headings: headings(&job),
        rows: fewer.into_iter().chain(rows).collect(),
    }
}

/// Which of all layouts a table shows, in their order: the fastest that fit, or if these are few others; and copies alone.
fn shown(all: &[Choice]) -> Vec<usize> {
    let (fitting, others): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|at| all[*at].fits);
    let mut shown: Vec<usize> = fitting.into_iter().chain(others).take(SHOWN).collect();
    shown.extend((0..all.len()).filter(|at| all[*at].is_copies()));
    shown.sort_unstable();
    shown.dedup();
    shown
}

/// The layouts of all ranks that divide the transformer equally, those with the shortest step first.
fn by_step(job: &TransformerStep, cluster: &Cluster) -> Vec<Choice> {
    let layouts = Layout::of_job(cluster.ranks(), *job);
    let mut choices: Vec<Choice> = layouts.map(|layout| Choice::best(layout, job, cluster)).collect();
    choices.sort_by(|one, other| one.step.total_cmp(&other.step));
    choices
}

/// The fastest layout that fits on a part of the ranks of one node, or on a part of the nodes, and that part of the cluster.
fn on_fewer(job: &TransformerStep, cluster: &Cluster) -> Option<(Cluster, Choice)> {
    let parts = |of: usize| (1..of).filter(move |part| of.is_multiple_of(*part));
    let nodes = parts(cluster.nodes).map(|nodes| Cluster { nodes, ..*cluster });
    let ranks = parts(cluster.per_node).map(|per_node| Cluster { nodes: 1, per_node, ..*cluster });
    let fitting = |some: Cluster| {
        let choice = by_step(job, &some).into_iter().find(|choice| choice.fits)?;
        Some((some, choice))
    };
    nodes.chain(ranks).filter_map(fitting).min_by(|(_, first), (_, second)| first.step.total_cmp(&second.step))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: &str = include_str!("../../../labs/12-parallelism/cluster.toml");

    /// The lab's table, with more lines at the end of its file, about the transformer.
    fn of_lab(lines: &str) -> Table {
        let file = ClusterFile::parse(&format!("{LAB}{lines}\n")).unwrap();
        tables(&file, &[]).remove(0)
    }

    #[test]
    fn the_fastest_layout_that_fits_is_marked() {
        let table = of_lab("");
        assert_eq!(table.title, "32 ranks on 4 nodes, each with 37.3 GiB; 35 layouts left out");
        assert_eq!(table.rows[0], ["1", "", "2", "4", "4", "25.8 GiB", "2.57 s", "the fastest that fits"]);
        let notes: Vec<_> = table.rows.iter().map(|row| row[7].as_str()).collect();
        assert_eq!(notes.iter().filter(|note| **note == "the fastest that fits").count(), 1);
        assert_eq!((table.headings[4].as_str(), table.headings[5].as_str()), ("context", "memory"));
    }

    #[test]
    fn shows_the_fastest_layouts_that_fit_and_copies() {
        let table = of_lab("");
        assert_eq!(table.rows.len(), SHOWN + 1);
        assert_eq!(table.rows[SHOWN][..5], ["32", "all", "1", "1", "1"]);
        // At most one copy of 16 micro-batches: 15 layouts.
        let table = of_lab("sequences = 16");
        assert!(table.title.ends_with("; 3 layouts left out"), "{}", table.title);
        assert!(table.rows.len() == SHOWN && table.rows.iter().all(|row| row[0] == "1"), "{:?}", table.rows);
        // If nothing fits, the fastest of all; if some do, they come before faster ones that do not.
        for (memory, fit) in [("6", 0), ("8", 13)] {
            let file = ClusterFile::parse(&LAB.replace("memory_gb = 40", &format!("memory_gb = {memory}"))).unwrap();
            let table = tables(&file, &[]).remove(0);
            let fitting = table.rows.iter().filter(|row| row[7] != "does not fit").count();
            assert_eq!((table.rows.len(), fitting), (13, fit), "{memory}");
        }
    }

    #[test]
    fn shows_experts_only_where_the_file_has_some() {
        let table = of_lab("experts = 16\nexpert_parameters = 9_000_000_000");
        assert_eq!(table.headings[5], "experts");
        let copies: Vec<_> = table.rows.iter().filter(|row| row[0] == "32").map(|row| row[5].as_str()).collect();
        assert_eq!(copies.len(), 5, "{copies:?}");
        assert!(!of_lab("").headings.contains(&"experts".to_owned()));
    }

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

    #[test]
    fn says_when_fewer_ranks_are_faster() {
        // So little computation that messages between nodes take longer, and parameters that fit on one rank.
        let small = LAB.replace("13_000_000_000", "13_000_000").replace("step_s = 60", "step_s = 0.006");
        let small =
            ClusterFile::parse(&small.replace("_mb = 5_400", "_mb = 5").replace("_mb = 1_340", "_mb = 1")).unwrap();
        let [table] = &tables(&small, &[])[..] else { panic!() };
        assert!(table.rows[0][7].starts_with("faster than all: "), "{:?}", table.rows[0]);
        assert_eq!(table.rows[1][7], "the fastest that fits");
        let (_, fewer) = on_fewer(&small.job, &small.cluster).unwrap();
        assert!(fewer.step < by_step(&small.job, &small.cluster)[0].step);
    }

    #[test]
    fn each_number_of_nodes_has_its_table() {
        let file = ClusterFile::parse(LAB).unwrap();
        let titles: Vec<_> = tables(&file, &[1, 8]).into_iter().map(|table| table.title).collect();
        let without_rest: Vec<_> = titles.iter().filter_map(|title| title.split(';').next()).collect();
        assert_eq!(without_rest, ["8 ranks on 1 node, each with 37.3 GiB", "64 ranks on 8 nodes, each with 37.3 GiB"]);
    }

    #[test]
    fn knows_the_two_files_apart() {
        assert!(are_asked_for(LAB));
        assert!(!are_asked_for(include_str!("cluster.toml")) && !are_asked_for("transformer = "));
    }
}
