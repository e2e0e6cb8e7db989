//! The order of additions: one binary tree over the virtual ranks, whatever the number of ranks is.
//!
//! A node is a range of virtual ranks; it is split in the middle, rounded down. So V = 6 gives ((0 + (1 + 2)) + (3 + (4 + 5))). Ranks own
//! contiguous parts. Within its part a rank adds up the largest subtrees; the rest of the tree is added up from all ranks' subtrees.
//! The memory transport adds the ranks' numbers along the same tree (`shim/shm/reduce.cpp` in `c10d`).

use std::collections::HashMap;
use std::ops::Range;

/// The virtual ranks of a rank: contiguous, and nearly as many as any other rank's.
pub(super) fn part(rank: usize, world: usize, total: usize) -> Range<usize> {
    rank * total / world..(rank + 1) * total / world
}

pub(super) fn halves(node: &Range<usize>) -> [Range<usize>; 2] {
    let middle = usize::midpoint(node.start, node.end);
    [node.start..middle, middle..node.end]
}

/// The largest nodes of the tree over `0..total` within `part`, in order: at most 2 log₂ `total`; one if there are 1, 2 or 4 ranks, as many as
/// virtual ones, or a power of two of them that divides `total`.
pub(super) fn subtrees(part: &Range<usize>, total: usize) -> Vec<Range<usize>> {
    fn collect(node: Range<usize>, part: &Range<usize>, found: &mut Vec<Range<usize>>) {
        if part.start <= node.start && node.end <= part.end {
            found.push(node);
        } else if node.start < part.end && part.start < node.end {
            halves(&node).into_iter().for_each(|half| collect(half, part, found));
        }
    }
    let mut found = Vec::new();
    collect(0..total, part, &mut found);
    found
}

/// The other child of the parent, if `right` is a right child in the tree over `0..total`.
pub(super) fn left_sibling(right: &Range<usize>, total: usize) -> Option<Range<usize>> {
    let mut node = 0..total;
    while node.len() > right.len() {
        let [left, other] = halves(&node);
        if other == *right {
            return Some(left);
        }
        node = if right.end <= left.end { left } else { other };
    }
    None
}

/// Adds up `node` from the subtrees in `sums`, which cover it.
pub(super) fn total<T>(node: Range<usize>, sums: &mut HashMap<Range<usize>, T>, add: &mut impl FnMut(T, T) -> T) -> T {
    if let Some(sum) = sums.remove(&node) {
        return sum;
    }
    assert!(node.len() > 1, "the sums cover the virtual rank {}", node.start);
    let [left, right] = halves(&node).map(|half| total(half, sums, add));
    add(left, right)
}

/// Returns true if each rank has one subtree, and the tree above the ranks' subtrees is the tree over the ranks: then a sum over the ranks in
/// their own tree's order is the sum in this one.
pub(super) fn is_the_ranks_tree(world: usize, total: usize) -> bool {
    fn same(ranks: Range<usize>, node: &Range<usize>, world: usize, total: usize) -> bool {
        let owned = part(ranks.start, world, total).start..part(ranks.end - 1, world, total).end;
        owned == *node
            && (ranks.len() == 1
                || halves(&ranks).into_iter().zip(halves(node)).all(|(ranks, node)| same(ranks, &node, world, total)))
    }
    world == 1 || same(0..world, &(0..total), world, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order as text, from the sums of `world` ranks.
    fn order(world: usize, total_ranks: usize) -> String {
        let mut sums = HashMap::new();
        let add = |a: String, b: String| format!("({a}+{b})");
        for rank in 0..world {
            let own = part(rank, world, total_ranks);
            let mut leaves: HashMap<_, _> = own.clone().map(|v| (v..v + 1, v.to_string())).collect();
            for node in subtrees(&own, total_ranks) {
                sums.insert(node.clone(), total(node, &mut leaves, &mut { add }));
            }
            assert!(leaves.is_empty(), "the subtrees cover the part");
        }
        total(0..total_ranks, &mut sums, &mut { add })
    }

    #[test]
    fn adds_in_one_order_for_any_number_of_ranks() {
        assert_eq!(order(1, 6), "((0+(1+2))+(3+(4+5)))");
        for total in 1..=33 {
            for world in 2..=total {
                assert_eq!(order(world, total), order(1, total), "{world} ranks of {total}");
            }
        }
    }

    fn is_even_split(world: usize, total: usize) -> bool {
        [1, 2, 4, total].contains(&world) || world.is_power_of_two() && total.is_multiple_of(world)
    }

    #[test]
    fn needs_few_partial_sums() {
        for total in 1..=64_usize {
            for world in 1..=total {
                let most = (0..world).map(|rank| subtrees(&part(rank, world, total), total).len()).max().unwrap();
                assert!(most <= (2 * total.ilog2() as usize).max(1), "{most} for {world} of {total}");
                assert!(!is_even_split(world, total) || most == 1, "{most} for {world} of {total}");
                let sizes = (0..world).map(|rank| part(rank, world, total).len());
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn knows_where_the_ranks_own_tree_has_the_order() {
        for total in 1..=33_usize {
            for world in 1..=total {
                let one = (0..world).all(|rank| subtrees(&part(rank, world, total), total).len() == 1);
                let alike = is_the_ranks_tree(world, total);
                assert!(!alike || one, "{world} of {total}");
                assert!(alike || !is_even_split(world, total), "{world} of {total}");
            }
        }
        assert!(!is_the_ranks_tree(3, 8));
    }

    #[test]
    fn finds_left_siblings() {
        let found: Vec<_> = (0..6).map(|v| left_sibling(&(v..v + 1), 6)).collect();
        assert_eq!(found, [None, None, Some(1..2), None, None, Some(4..5)]);
        assert_eq!(left_sibling(&(1..3), 6), Some(0..1));
        assert_eq!(left_sibling(&(3..6), 6), Some(0..3));
        assert_eq!(left_sibling(&(0..1), 1), None);
    }
}
