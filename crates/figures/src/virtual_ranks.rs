//! The tree along which the gradients of virtual ranks are added up: what each rank adds alone, what it sends, and what is added then.

use std::collections::HashMap;
use std::ops::Range;

use crate::scene::{Controls, Frame, Scene, is_narrow, shown};
use crate::tree::{halves, part, subtrees, total};

/// Virtual ranks next to each other.
type Node = Range<usize>;

#[derive(Clone, Copy)]
enum Moment {
    /// Each rank has added up its nodes to this height.
    Own(usize),
    /// The ranks' largest sums are on their way.
    Sent,
    /// All nodes are added up to this height.
    All(usize),
}

struct Tree {
    count: usize,
    ranks: usize,
    /// Each after its halves.
    nodes: Vec<Node>,
    width: f64,
}

/// Halvings down to one virtual rank.
fn height(node: &Node) -> usize {
    node.len().next_power_of_two().trailing_zeros() as usize
}

impl Tree {
    const ROW: f64 = 44.0;
    const CELL: f64 = 24.0;

    fn new(count: usize, ranks: usize, width: f64) -> Self {
        fn collect(node: Node, nodes: &mut Vec<Node>) {
            if node.len() > 1 {
                halves(&node).into_iter().for_each(|half| collect(half, nodes));
            }
            nodes.push(node);
        }
        let mut nodes = Vec::new();
        collect(0..count, &mut nodes);
        Tree { count, ranks, nodes, width }
    }

    fn subtrees(&self, rank: usize) -> Vec<Node> {
        subtrees(&part(rank, self.ranks, self.count), self.count)
    }

    /// The rank that has all of the node's virtual ranks.
    fn owner(&self, node: &Node) -> Option<usize> {
        let has = |rank: &usize| {
            let part = part(*rank, self.ranks, self.count);
            part.start <= node.start && node.end <= part.end
        };
        (0..self.ranks).find(has)
    }

    fn moments(&self) -> Vec<Moment> {
        let own = self.nodes.iter().filter(|node| self.owner(node).is_some()).map(height).max().unwrap_or(0);
        let mut rest: Vec<usize> = self.nodes.iter().filter(|node| self.owner(node).is_none()).map(height).collect();
        rest.sort_unstable();
        rest.dedup();
        let sent = (self.ranks > 1).then_some(Moment::Sent);
        (0..=own).map(Moment::Own).chain(sent).chain(rest.into_iter().map(Moment::All)).collect()
    }

    fn says(&self, moment: Moment) -> String {
        match moment {
            Moment::Own(0) => {
                "Each rank has the gradients of its virtual ranks, which it has trained one after the other.".to_owned()
            }
            Moment::Own(_) if self.ranks == 1 => {
                "One rank has both halves of every node, and adds all of them.".to_owned()
            }
            Moment::Own(_) => "Each rank adds the halves of a node where it has both. Nothing is sent.".to_owned(),
            Moment::Sent => {
                let sums: Vec<String> = (0..self.ranks).map(|rank| self.subtrees(rank).len().to_string()).collect();
                format!("What is left is sent to all ranks. Sums of each rank: {}.", sums.join(", "))
            }
            Moment::All(at) if at == height(&(0..self.count)) => {
                "The sum over all, by the same additions on any number of ranks.".to_owned()
            }
            Moment::All(_) => "Now all halves are there: the rest of the tree is added up.".to_owned(),
        }
    }

    /// Where a node's box is.
    fn place(&self, node: &Node) -> [f64; 4] {
        let column = self.width / self.count as f64;
        let wide = (column * node.len() as f64 - 4.0).min(if node.len() == 1 { 34.0 } else { 52.0 });
        let middle = column * (node.start + node.end) as f64 / 2.0;
        let row = height(&(0..self.count)) - height(node);
        [middle - wide / 2.0, 2.0 + row as f64 * Self::ROW, wide, Self::CELL]
    }

    fn class(&self, node: &Node, moment: Moment) -> &'static str {
        let of_rank = |rank: usize| if rank.is_multiple_of(2) { "compute" } else { "partial" };
        match (self.owner(node), moment) {
            (Some(rank), Moment::Own(to)) if height(node) <= to => of_rank(rank),
            (Some(rank), Moment::Sent) if self.subtrees(rank).contains(node) => "moving",
            (Some(rank), Moment::Sent | Moment::All(_)) => of_rank(rank),
            (None, Moment::All(to)) if height(node) <= to => "done",
            _ => "empty",
        }
    }

    fn bottom(&self) -> f64 {
        let [_, y, _, high] = self.place(&(0..1));
        y + high
    }

    fn frame(&self, moment: Moment) -> Frame {
        let mut frame = Frame::new(self.says(moment));
        for node in self.nodes.iter().filter(|node| node.len() > 1) {
            let [x, y, wide, high] = self.place(node);
            for half in halves(node) {
                let [to, below, half_wide, _] = self.place(&half);
                let from = x + wide / 2.0;
                let line = [from, y + high, to + half_wide / 2.0 - from, below - y - high];
                frame.line(format!("from {half:?}"), line, "dotted");
            }
        }
        for node in &self.nodes {
            let words = match node.len() {
                1 => node.start.to_string(),
                _ => format!("{}–{}", node.start, node.end - 1),
            };
            frame.cell(format!("{node:?}"), self.place(node), self.class(node, moment), words);
        }
        let column = self.width / self.count as f64;
        for rank in 0..self.ranks {
            let part = part(rank, self.ranks, self.count);
            let (x, wide) = (column * part.start as f64 + 3.0, column * part.len() as f64 - 6.0);
            let y = self.bottom() + 8.0;
            frame.line(format!("part {rank}"), [x, y, wide, 0.0], "plain");
            let name = if wide < 44.0 { format!("r. {rank}") } else { format!("rank {rank}") };
            frame.cell(format!("name {rank}"), [x, y + 3.0, wide, 18.0], "plain", name);
        }
        frame
    }

    /// The additions, as they are written.
    fn order(&self) -> String {
        let mut leaves: HashMap<Node, String> = (0..self.count).map(|v| (v..v + 1, v.to_string())).collect();
        let sum = total(0..self.count, &mut leaves, &mut |left, right| format!("({left} + {right})"));
        sum.strip_prefix('(').and_then(|sum| sum.strip_suffix(')')).map_or(sum.clone(), str::to_owned)
    }
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let count = controls.count("virtual_ranks", "virtual ranks", [1, if is_narrow(width) { 10 } else { 16 }], 6);
    let asked_for = controls.count("ranks", "ranks", [1, 8], 3);
    let ranks = asked_for.min(count);
    let tree = Tree::new(count, ranks, width);
    let frames = tree.moments().into_iter().map(|moment| tree.frame(moment)).collect();
    let mut scene = Scene::new([width, tree.bottom() + 32.0], frames).starting_at_the_end();
    if ranks < asked_for {
        scene.tell("ranks", format!("{ranks}: no more than virtual ranks"));
    }
    let most = (0..ranks).map(|rank| tree.subtrees(rank).len()).max().unwrap_or(0);
    let leaves = (ranks - 1) as f64 / ranks as f64;
    scene.tell("order of additions", tree.order());
    scene.tell("sums that a rank sends, at most", if ranks == 1 { 0 } else { most }.to_string());
    scene.tell("bytes that a rank sends, at most", format!("{} × the gradient", shown((most + 1) as f64 * leaves, "")));
    scene.tell("in a ring all-reduce", format!("{} × the gradient", shown(2.0 * leaves, "")));
    Ok(scene)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every node is added up once, by its owner or, after the exchange, from the ranks' sums.
    #[test]
    fn every_node_is_added_up_by_the_end_and_sums_that_are_sent_cover_all() {
        for (count, ranks) in (1..=16).flat_map(|count| (1..=count.min(8)).map(move |ranks| (count, ranks))) {
            let tree = Tree::new(count, ranks, 720.0);
            let moments = tree.moments();
            let last = *moments.last().unwrap();
            assert!(tree.nodes.iter().all(|node| tree.class(node, last) != "empty"), "{ranks} of {count}");
            let sent: Vec<Node> = (0..ranks).flat_map(|rank| tree.subtrees(rank)).collect();
            assert!(sent.iter().cloned().flatten().eq(0..count), "{ranks} of {count}");
            let own = moments.iter().rev().find(|moment| matches!(moment, Moment::Own(_))).unwrap();
            assert!(sent.iter().all(|node| tree.class(node, *own) != "empty"), "{ranks} of {count}");
        }
        assert_eq!(Tree::new(6, 3, 720.0).order(), "(0 + (1 + 2)) + (3 + (4 + 5))");
    }
}
