//! `lockstep bench predict` for a file with a transformer: what a rank would hold and a step would take in each layout.
//! [`lockstep_cost::Layout`] has the model and what it leaves out.

use lockstep_cost::{ClusterFile, Layout};

use super::results::Unit;
use crate::report::{Table, count};

/// Returns true if the text is that of a file with a transformer.
pub(super) fn asks_for_layouts(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("transformer"))
}

/// A table for each number of nodes; without one, for that of the file.
pub(super) fn tables(file: &ClusterFile, nodes: &[u32]) -> Vec<Table> {
    let of_file = [file.cluster.nodes];
    let nodes: Vec<usize> = nodes.iter().map(|nodes| *nodes as usize).collect();
    let nodes = if nodes.is_empty() { &of_file[..] } else { &nodes };
    nodes.iter().map(|nodes| table(file, *nodes)).collect()
}

/// The layouts that divide heads and blocks equally, those with the shortest step first.
fn table(file: &ClusterFile, nodes: usize) -> Table {
    let ClusterFile { job, mut cluster } = *file;
    cluster.nodes = nodes;
    let ranks = cluster.ranks();
    let mut layouts: Vec<Layout> = Layout::all(ranks).filter(|layout| layout.divides(&job)).collect();
    layouts.sort_by(|one, other| one.step(&job, &cluster).total_cmp(&other.step(&job, &cluster)));
    let fits = |layout: &Layout| layout.memory(&job) <= cluster.memory;
    let fastest = layouts.iter().find(|layout| fits(layout)).copied();
    let row = |layout: &Layout| {
        let note = match layout {
            layout if Some(*layout) == fastest => "the fastest that fits",
            layout if fits(layout) => "",
            _ => "does not fit",
        };
        let numbers = [layout.data, layout.tensor, layout.pipeline].map(|number| number.to_string());
        let [held, step] = [Unit::Bytes.show(layout.memory(&job)), Unit::Seconds.show(layout.step(&job, &cluster))];
        numbers.into_iter().chain([held, step, note.to_owned()]).collect()
    };
    let headings = ["copies", "parts of a layer", "stages", "a rank holds", "step", ""].map(str::to_owned);
    Table {
        title: format!(
            "{} on {}, each with {}",
            count(ranks, "rank"),
            count(nodes, "node"),
            Unit::Bytes.show(cluster.memory)
        ),
        headings: headings.to_vec(),
        rows: layouts.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: &str = include_str!("../../../labs/12-parallelism/cluster.toml");

    #[test]
    fn the_fastest_layout_that_fits_is_marked() {
        let file = ClusterFile::parse(LAB).unwrap();
        let [table] = &tables(&file, &[])[..] else { panic!() };
        assert_eq!(table.title, "32 ranks on 4 nodes, each with 37.3 GiB");
        assert_eq!(table.rows[0], ["2", "4", "4", "13.7 GiB", "2.97 s", "the fastest that fits"]);
        let notes: Vec<_> = table.rows.iter().map(|row| row[5].as_str()).collect();
        assert_eq!(notes.iter().filter(|note| **note == "the fastest that fits").count(), 1);
        assert_eq!(table.rows.last().unwrap()[..3], ["32", "1", "1"]);
        assert_eq!(notes.last(), Some(&"does not fit"));
    }

    #[test]
    fn each_number_of_nodes_has_its_table() {
        let file = ClusterFile::parse(LAB).unwrap();
        let titles: Vec<_> = tables(&file, &[1, 8]).into_iter().map(|table| table.title).collect();
        assert_eq!(titles, ["8 ranks on 1 node, each with 37.3 GiB", "64 ranks on 8 nodes, each with 37.3 GiB"]);
    }

    #[test]
    fn knows_the_two_files_apart() {
        assert!(asks_for_layouts(LAB));
        assert!(!asks_for_layouts(include_str!("cluster.toml")) && !asks_for_layouts("transformer = "));
    }
}
