//! Grades `place`: machines of six GPUs on which neither the numbers nor the nearest neighbour give the fastest ring.

use lockstep_grading::{Claim, Inputs, Runner};
use serde::Serialize;

/// In the order of speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Link {
    Nv,
    Pix,
    Phb,
    Sys,
}

const LINKS: [Link; 4] = [Link::Nv, Link::Pix, Link::Phb, Link::Sys];
const GPUS: usize = 6;
const CASES: usize = 4;

#[derive(Serialize)]
struct Machine {
    links: Vec<Vec<Link>>,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let machines: Vec<Machine> = (0..CASES).map(|number| draw(&mut random, number % 2 == 0)).collect();
    let outputs = runner.call::<_, Vec<usize>>(1, &machines)?;
    machines.iter().enumerate().try_for_each(|(number, machine)| check(machine, outputs.of(0, number)))
}

/// A machine on which common mistakes show: counting only the slowest hops, or adding up all hops.
fn draw(random: &mut Inputs, counts_slowest: bool) -> Machine {
    loop {
        let mut links = vec![vec![Link::Nv; GPUS]; GPUS];
        for (one, other) in (0..GPUS).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let link = LINKS[random.below(0..LINKS.len())];
            (links[one][other], links[other][one]) = (link, link);
        }
        let machine = Machine { links };
        let best = machine.best();
        let shows = |order: &[usize]| machine.hops(order) > best;
        // An open chain of the best hops must not happen to close well either, whichever of them is found first.
        let chain = machine.all().map(|order| machine.chain(&order)).min();
        let chains = || machine.all().filter(|order| Some(machine.chain(order)) == chain);
        let by_number: Vec<usize> = (0..GPUS).collect();
        // Each mistake is seen, and taken for no other one.
        let worst = machine.all().map(|order| machine.fastest_first(&order)).max();
        let is_worst = |order: &[usize]| Some(machine.fastest_first(order)) == worst;
        let is_own = |order: &[usize]| shows(order) && !is_worst(order) && Some(machine.chain(order)) != chain;
        let nearest = machine.nearest();
        let apart = nearest != by_number && is_own(&by_number) && is_own(&nearest);
        let is_plain = |order: &[usize]| order == by_number || order == nearest;
        let fits = |order: &Vec<usize>| !shows(order) || is_own(order) && !is_plain(order);
        // Who goes through the orders one by one finds the first of these or the last.
        let counts = machine.least(|order| machine.slowest_and_count(order));
        let sums = machine.least(|order| machine.sum(order));
        let is_apart = |order: &Vec<usize>| !shows(order) || !counts.contains(order);
        let ends = |orders: &[Vec<usize>]| orders.first().into_iter().chain(orders.last()).cloned().collect::<Vec<_>>();
        let is_mixed = !ends(&counts).iter().chain(&ends(&sums)).all(fits) || !ends(&sums).iter().all(is_apart);
        if is_mixed || !ends(if counts_slowest { &counts } else { &sums }).iter().all(|order| shows(order)) {
            continue;
        }
        if apart && chains().all(|order| shows(&order) && !is_worst(&order)) {
            return machine;
        }
    }
}

impl Machine {
    /// The slowest first.
    fn sorted(mut hops: Vec<Link>) -> Vec<Link> {
        hops.sort_by(|one, other| other.cmp(one));
        hops
    }

    fn hops(&self, order: &[usize]) -> Vec<Link> {
        Machine::sorted((0..GPUS).map(|at| self.links[order[at]][order[(at + 1) % GPUS]]).collect())
    }

    fn fastest_first(&self, order: &[usize]) -> Vec<Link> {
        let mut hops = self.hops(order);
        hops.reverse();
        hops
    }

    /// All orders with the least of these, sorted.
    fn least<K: Ord>(&self, key: impl Fn(&[usize]) -> K) -> Vec<Vec<usize>> {
        let keys: Vec<(K, Vec<usize>)> = self.all().map(|order| (key(&order), order)).collect();
        let Some(least) = keys.iter().map(|(key, _)| key).min() else { return Vec::new() };
        let mut found: Vec<Vec<usize>> =
            keys.iter().filter(|(key, _)| key == least).map(|(_, order)| order.clone()).collect();
        found.sort();
        found
    }

    fn slowest_and_count(&self, order: &[usize]) -> (Link, usize) {
        let hops = self.hops(order);
        (hops[0], hops.iter().filter(|hop| **hop == hops[0]).count())
    }

    /// Of the places in the list of all kinds, of which some are not drawn.
    fn sum(&self, order: &[usize]) -> usize {
        self.hops(order).into_iter().map(|hop| [0, 1, 3, 5][hop as usize]).sum()
    }

    fn chain(&self, order: &[usize]) -> Vec<Link> {
        Machine::sorted(order.windows(2).map(|pair| self.links[pair[0]][pair[1]]).collect())
    }

    fn best(&self) -> Vec<Link> {
        self.all().filter(|order| order[0] == 0).map(|order| self.hops(&order)).min().unwrap_or_default()
    }

    fn nearest(&self) -> Vec<usize> {
        let mut order = vec![0];
        while order.len() < GPUS {
            let last = order[order.len() - 1];
            order.extend((0..GPUS).filter(|gpu| !order.contains(gpu)).min_by_key(|gpu| self.links[last][*gpu]));
        }
        order
    }

    /// All orders of the GPUs.
    fn all(&self) -> impl Iterator<Item = Vec<usize>> {
        (0..(1..=GPUS).product::<usize>()).map(|mut number| {
            let mut left: Vec<usize> = (0..GPUS).collect();
            (1..=GPUS)
                .rev()
                .map(|count| {
                    let gpu = left.remove(number % count);
                    number /= count;
                    gpu
                })
                .collect()
        })
    }
}

fn check(machine: &Machine, found: &[usize]) -> anyhow::Result<()> {
    let rows: Vec<String> = machine.links.iter().enumerate().map(|(gpu, row)| format!("{gpu}: {row:?}")).collect();
    let mut sorted = found.to_vec();
    sorted.sort_unstable();
    let all = sorted.iter().copied().eq(0..GPUS);
    let best = machine.best();
    let given = format!("links from each GPU to the others: {}", rows.join("; "));
    Claim::that(all, format!("each of {GPUS} GPUs once"), format!("{found:?}"))
        .given(&*given)
        .or_fail("each rank needs its own GPU: NCCL refuses two ranks of a communicator on one device")?;
    let hops = machine.hops(found);
    Claim::that(hops == best, format!("a ring with the hops {best:?}"), format!("{found:?}, with the hops {hops:?}"))
        .given(given)
        .diagnose_if(
            found.iter().copied().eq(0..GPUS),
            "the GPUs are in the order of their numbers, which say nothing about the links between them",
        )
        .diagnose_if(
            found == machine.nearest(),
            "each step took the nearest GPU that was left: the last ones are then far from each other, and from the first",
        )
        .diagnose_if(
            Some(machine.chain(found)) == machine.all().map(|order| machine.chain(&order)).min(),
            "from rank to rank the links are the best, but the ring closes: the hop from the last rank to the first is slow",
        )
        .diagnose_if(
            machine.all().map(|order| machine.fastest_first(&order)).max() == Some(machine.fastest_first(found)),
            "these are the slowest links: NV is faster than PIX, PIX than PHB, PHB than SYS",
        )
        .diagnose_if(
            (hops[0], hops.iter().filter(|hop| **hop == hops[0]).count())
                == (best[0], best.iter().filter(|hop| **hop == best[0]).count()),
            "no order has fewer of the slowest hops, but another has fewer of the next slowest: where two have equally many of the \
             slowest, compare the next",
        )
        .diagnose_if(
            Some(machine.sum(found)) == machine.all().map(|order| machine.sum(&order)).min(),
            "the hops are the fastest on average, but a ring is as fast as its slowest hop: another order has fewer of these",
        )
        .or_fail("another order has fewer of the slowest hops")
}
