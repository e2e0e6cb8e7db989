//! What a rank would hold and a step would take in each layout of a transformer on a cluster.

use lockstep_cost::{Choice, ClusterFile, TransformerStep};

use crate::report::{Table, count};
use crate::results::Unit;

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

/// A row below [`headings`].
fn row(choice: &Choice, job: &TransformerStep, note: String) -> Vec<String> {
    let [held, step] = [Unit::Bytes.show(choice.memory), Unit::Seconds.show(choice.step)];
    choice.cells(job).into_iter().chain([held, step, note]).collect()
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
    let all = Choice::by_step(&job, &cluster);
    let limit = all.iter().find(|choice| choice.fits).map_or(f64::INFINITY, |choice| choice.step);
    let fewer = Choice::on_fewer(&job, &cluster).filter(|(_, choice)| choice.step < limit);
    let fewer = fewer.map(|(some, choice)| {
        let (ranks, nodes) = (count(some.ranks(), "rank"), count(some.nodes, "node"));
        row(&choice, &job, format!("faster than all: {ranks} on {nodes}"))
    });
    let shown = Choice::shown(&all);
    let rows = shown.iter().map(|(choice, note)| row(choice, &job, (*note).to_owned()));
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

#[cfg(test)]
mod tests {
    use lockstep_cost::SHOWN;

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
    fn says_when_fewer_ranks_are_faster() {
        // So little computation that messages between nodes take longer, and parameters that fit on one rank.
        let small = LAB.replace("13_000_000_000", "13_000_000").replace("step_s = 60", "step_s = 0.006");
        let small =
            ClusterFile::parse(&small.replace("_mb = 5_400", "_mb = 5").replace("_mb = 1_340", "_mb = 1")).unwrap();
        let [table] = &tables(&small, &[])[..] else { panic!() };
        assert!(table.rows[0][7].starts_with("faster than all: "), "{:?}", table.rows[0]);
        assert_eq!(table.rows[1][7], "the fastest that fits");
        let (_, fewer) = Choice::on_fewer(&small.job, &small.cluster).unwrap();
        assert!(fewer.step < Choice::by_step(&small.job, &small.cluster)[0].step);
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
