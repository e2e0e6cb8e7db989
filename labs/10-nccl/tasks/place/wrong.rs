//! Answers to `place`: wrong ones, and an unusual right one.

use lockstep_answers::edit;

use crate::place::{Link, Machine};

/// Takes them by their numbers.
pub fn by_number(machine: &Machine) -> Vec<usize> {
    (0..machine.links.len()).collect()
}

/// Goes on to the nearest GPU that is left.
pub fn nearest(machine: &Machine) -> Vec<usize> {
    let mut order = vec![0];
    while order.len() < machine.links.len() {
        let last = order[order.len() - 1];
        let left = (0..machine.links.len()).filter(|gpu| !order.contains(gpu));
        order.extend(left.min_by_key(|gpu| machine.links[last][*gpu]));
    }
    order
}

fn best(machine: &Machine, order: &mut Vec<usize>, hops: &dyn Fn(&[usize]) -> Vec<Link>) -> (Vec<Link>, Vec<usize>) {
    let count = machine.links.len();
    if order.len() == count {
        return (hops(order), order.clone());
    }
    let mut found: Option<(Vec<Link>, Vec<usize>)> = None;
    for gpu in (0..count).filter(|gpu| !order.contains(gpu)).collect::<Vec<_>>() {
        order.push(gpu);
        let other = best(machine, order, hops);
        order.pop();
        if found.as_ref().is_none_or(|found| other.0 < found.0) {
            found = Some(other);
        }
    }
    found.unwrap_or_default()
}

/// Forgets that the ring closes.
pub fn open_end(machine: &Machine) -> Vec<usize> {
    let hops = |order: &[usize]| {
        let mut hops: Vec<Link> = order.windows(2).map(|pair| machine.links[pair[0]][pair[1]]).collect();
        hops.sort_by(|one, other| other.cmp(one));
        hops
    };
    let starts = (0..machine.links.len()).map(|gpu| best(machine, &mut vec![gpu], &hops));
    starts.min().map(|(_, order)| order).unwrap_or_default()
}

/// Takes the slowest links.
pub fn slowest(machine: &Machine) -> Vec<usize> {
    let hops = |order: &[usize]| {
        let mut hops: Vec<Link> =
            (0..order.len()).map(|at| machine.links[order[at]][order[(at + 1) % order.len()]]).collect();
        hops.sort();
        let slow = |link: &Link| [Link::Sys, Link::Node, Link::Phb, Link::Pxb, Link::Pix, Link::Nv][*link as usize];
        hops.iter().map(slow).collect()
    };
    best(machine, &mut vec![0], &hops).1
}

/// Leaves out a GPU and gives another to two ranks.
pub fn twice(machine: &Machine) -> Vec<usize> {
    let mut order = nearest(machine);
    order[1] = order[0];
    order
}

fn all_orders(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count {
        let longer = |order: Vec<usize>| {
            let left: Vec<usize> = (0..count).filter(|gpu| !order.contains(gpu)).collect();
            left.into_iter().map(move |gpu| [&order[..], &[gpu]].concat()).collect::<Vec<_>>()
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

fn slowest_first(machine: &Machine, order: &[usize]) -> Vec<Link> {
    let mut hops: Vec<Link> =
        (0..order.len()).map(|at| machine.links[order[at]][order[(at + 1) % order.len()]]).collect();
    hops.sort_by(|one, other| other.cmp(one));
    hops
}

/// Counts the slowest hops, and looks at no others.
pub fn counts_slowest(machine: &Machine) -> Vec<usize> {
    let key = |order: &Vec<usize>| {
        let hops = slowest_first(machine, order);
        (hops[0], hops.iter().filter(|hop| **hop == hops[0]).count())
    };
    all_orders(machine.links.len()).into_iter().min_by_key(key).unwrap_or_default()
}

/// Adds up the hops, each by its place in the list of kinds.
pub fn sum_of_hops(machine: &Machine) -> Vec<usize> {
    let sum = |order: &Vec<usize>| slowest_first(machine, order).into_iter().map(|link| link as usize).sum::<usize>();
    all_orders(machine.links.len()).into_iter().min_by_key(sum).unwrap_or_default()
}

/// Compares the fastest hops first.
#[edit(hops.sort_by(|one, other| other.cmp(one)) => hops.sort())]
pub fn fastest_first() {}

/// Takes the slowest ring.
#[edit(hops < *least => hops > *least)]
pub fn slowest_ring() {}

/// Returns the rank of each GPU.
pub fn rank_of_gpu(machine: &Machine) -> Vec<usize> {
    let order = crate::place::place(machine);
    (0..order.len()).filter_map(|gpu| order.iter().position(|of| *of == gpu)).collect()
}

/// Takes the GPUs by their numbers if that ring has no slowest link.
pub fn number_if_fast(machine: &Machine) -> Vec<usize> {
    let order = by_number(machine);
    if slowest_first(machine, &order)[0] == Link::Sys { nearest(machine) } else { order }
}

/// Right: weights in place of lists, and the shortest way through each set of GPUs (Held and Karp, 1962).
pub fn held_karp(machine: &Machine) -> Vec<usize> {
    let count = machine.links.len();
    // A hop of one kind costs more than all hops of faster kinds together.
    let cost = |one: usize, other: usize| 100_u64.pow(machine.links[one][other] as u32);
    let full = (1_usize << count) - 1;
    // For each set of GPUs with GPU 0 and each last one of it: the cost, and the way.
    let mut best: Vec<Vec<Option<(u64, Vec<usize>)>>> = vec![vec![None; count]; full + 1];
    best[1][0] = Some((0, vec![0]));
    for set in 1..=full {
        for last in 0..count {
            let Some((so_far, way)) = best[set][last].clone() else { continue };
            for next in (0..count).filter(|gpu| set & (1 << gpu) == 0) {
                let total = so_far + cost(last, next);
                let place = &mut best[set | (1 << next)][next];
                if place.as_ref().is_none_or(|(other, _)| total < *other) {
                    *place = Some((total, [&way[..], &[next]].concat()));
                }
            }
        }
    }
    let closed = best[full].iter().enumerate().filter_map(|(last, found)| {
        let (total, way) = found.as_ref()?;
        Some((total + cost(last, 0), way.clone()))
    });
    closed.min().map(|(_, way)| way).unwrap_or_default()
}
