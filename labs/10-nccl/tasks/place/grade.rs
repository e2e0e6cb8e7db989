//! Grades `place`: machines of six GPUs on which neither the numbers nor the nearest neighbour give the fastest ring.

use std::cmp::Reverse;
use std::sync::LazyLock;

use lockstep_grading::{Claim, Inputs, Runner, table};
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
    /// All orders.
    #[serde(skip)]
    rings: Vec<Ring>,
}

/// An order, with its hops from the slowest to the fastest.
#[derive(Clone)]
struct Ring {
    order: Vec<usize>,
    hops: [Link; GPUS],
    /// Without the link that closes the ring.
    chain: [Link; GPUS - 1],
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let machines: Vec<Machine> = (0..CASES).map(|number| draw(&mut random, number)).collect();
    let outputs = runner.call::<_, Vec<usize>>(1, &machines)?;
    let all: Vec<(&Machine, &Vec<usize>)> =
        machines.iter().enumerate().map(|(number, machine)| (machine, outputs.of(0, number))).collect();
    all.iter().try_for_each(|(machine, found)| check(machine, found, &all))
}

/// A machine on which common mistakes show. Which mistake gives a ring that no other gives depends on the machine's number.
fn draw(random: &mut Inputs, number: usize) -> Machine {
    loop {
        let mut links = vec![vec![Link::Nv; GPUS]; GPUS];
        for (one, other) in (0..GPUS).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let link = LINKS[random.below(0..LINKS.len())];
            (links[one][other], links[other][one]) = (link, link);
        }
        let machine = Machine::new(links);
        let best = machine.least(|ring| ring.hops);
        let shows = |ring: &Ring| ring.hops > best[0].hops;
        let plain = [&(0..GPUS).collect::<Vec<_>>(), &machine.nearest()].map(|order| machine.ring(order));
        // An open chain of the best hops must not happen to close well, whichever of them is found first.
        let chains = machine.least(|ring| ring.chain);
        if plain[0].order == plain[1].order || !plain.iter().chain(&chains).all(shows) {
            continue;
        }
        // Who goes through the orders one by one finds the first of these or the last.
        let ends = |rings: &[Ring]| [&rings[0], &rings[rings.len() - 1]].map(Ring::clone);
        let (fastest, sums) = (machine.least(Ring::fastest_first), machine.least(Ring::sum));
        let alone = |some: &[Ring], others: &[&[Ring]]| {
            let has = |rings: &[Ring], ring: &Ring| rings.iter().any(|other| other.order == ring.order);
            some.iter().all(|ring| shows(ring) && !others.iter().any(|rings| has(rings, ring)))
        };
        let is_drawn = match number {
            0 => {
                let right: Vec<Ring> = best.iter().filter(|ring| ring.order[0] == 0).cloned().collect();
                let inverses = ends(&right).map(|ring| machine.ring(&inverse(&ring.order)));
                inverses.iter().all(shows) && alone(&chains, &[&fastest, &sums, &plain])
            }
            1 => alone(&ends(&fastest), &[&chains, &sums, &plain]),
            2 => alone(&ends(&machine.least(Ring::slowest_and_count)), &[&chains, &fastest, &sums, &plain]),
            _ => alone(&ends(&sums), &[&chains, &fastest, &plain]),
        };
        if is_drawn {
            return machine;
        }
    }
}

impl Ring {
    fn fastest_first(&self) -> [Link; GPUS] {
        let mut hops = self.hops;
        hops.reverse();
        hops
    }

    fn slowest_and_count(&self) -> (Link, usize) {
        (self.hops[0], self.hops.iter().filter(|hop| **hop == self.hops[0]).count())
    }

    /// The sum of the hops' indices in the list of all kinds; some kinds are not drawn.
    fn sum(&self) -> usize {
        self.hops.iter().map(|hop| [0, 1, 3, 5][*hop as usize]).sum()
    }
}

impl Machine {
    fn new(links: Vec<Vec<Link>>) -> Self {
        static ALL: LazyLock<Vec<Vec<usize>>> = LazyLock::new(orders);
        let mut machine = Machine { links, rings: Vec::new() };
        machine.rings = ALL.iter().map(|order| machine.ring(order)).collect();
        machine
    }

    fn ring(&self, order: &[usize]) -> Ring {
        let hop = |at: usize| self.links[order[at]][order[(at + 1) % GPUS]];
        let (mut hops, mut chain) = (std::array::from_fn(hop), std::array::from_fn(hop));
        hops.sort_by(|one, other| other.cmp(one));
        chain.sort_by(|one, other| other.cmp(one));
        Ring { order: order.to_vec(), hops, chain }
    }

    /// The rings with the least of these.
    fn least<K: Ord>(&self, key: impl Fn(&Ring) -> K) -> Vec<Ring> {
        let least = self.rings.iter().map(&key).min();
        self.rings.iter().filter(|ring| Some(key(ring)) == least).cloned().collect()
    }

    fn has_least<K: Ord>(&self, order: &[usize], key: impl Fn(&Ring) -> K) -> bool {
        let own = key(&self.ring(order));
        self.rings.iter().all(|ring| own <= key(ring))
    }

    fn nearest(&self) -> Vec<usize> {
        let mut order = vec![0];
        while order.len() < GPUS {
            let last = order[order.len() - 1];
            order.extend((0..GPUS).filter(|gpu| !order.contains(gpu)).min_by_key(|gpu| self.links[last][*gpu]));
        }
        order
    }

    /// A row for each GPU.
    fn listed(&self) -> String {
        let cell = |gpu: usize, other: usize| {
            if gpu == other { "-".to_owned() } else { format!("{:?}", self.links[gpu][other]) }
        };
        let row = |gpu: usize| -> [String; GPUS + 1] {
            std::array::from_fn(|column| column.checked_sub(1).map_or(gpu.to_string(), |other| cell(gpu, other)))
        };
        table(["GPU", "0", "1", "2", "3", "4", "5"], &(0..GPUS).map(row).collect::<Vec<_>>())
    }
}

/// All orders of the GPUs, sorted.
fn orders() -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..GPUS {
        let longer = |order: Vec<usize>| {
            let left: Vec<usize> = (0..GPUS).filter(|gpu| !order.contains(gpu)).collect();
            left.into_iter().map(move |gpu| [&order[..], &[gpu]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

fn is_permutation(found: &[usize]) -> bool {
    let mut sorted = found.to_vec();
    sorted.sort_unstable();
    sorted.iter().copied().eq(0..GPUS)
}

/// The rank of each GPU.
fn inverse(order: &[usize]) -> Vec<usize> {
    (0..GPUS).filter_map(|gpu| order.iter().position(|of| *of == gpu)).collect()
}

/// `all` are the orders of all machines: a mistake shows on each of them.
fn check(machine: &Machine, found: &[usize], all: &[(&Machine, &Vec<usize>)]) -> anyhow::Result<()> {
    let best = machine.least(|ring| ring.hops)[0].hops;
    let given = machine.listed();
    Claim::that(is_permutation(found), format!("each of {GPUS} GPUs once"), format!("{found:?}"))
        .given(&*given)
        .or_fail("each rank needs its own GPU: NCCL refuses two ranks of a communicator on one device")?;
    let hops = machine.ring(found).hops;
    let always = |is: &dyn Fn(&Machine, &[usize]) -> bool| {
        all.iter().all(|(machine, found)| is_permutation(found) && is(machine, found))
    };
    Claim::that(hops == best, format!("a ring with the hops {best:?}"), format!("{found:?}, with the hops {hops:?}"))
        .given(given)
        .cause_if(
            always(&|_, found| found.iter().copied().eq(0..GPUS)),
            "the GPUs are in the order of their numbers, which say nothing about the links between them",
        )
        .cause_if(
            always(&|machine, found| found == machine.nearest()),
            "each step took the nearest GPU that was left: the last ones are then far from each other, and from the first",
        )
        .cause_if(
            always(&|machine, found| machine.has_least(found, |ring| ring.chain)),
            "from rank to rank the links are the best, but the ring closes: the hop from the last rank to the first is slow",
        )
        .cause_if(
            always(&|machine, found| machine.has_least(found, |ring| Reverse(ring.fastest_first())))
                || always(&|machine, found| machine.has_least(found, |ring| Reverse(ring.hops))),
            "these are the slowest links: NV is faster than PIX, PIX than PHB, PHB than SYS",
        )
        .cause_if(
            always(&|machine, found| machine.has_least(found, Ring::fastest_first)),
            "this ring has the most of the fastest hops: it is as fast as its slowest hop, so compare those first",
        )
        .cause_if(
            always(&|machine, found| machine.has_least(found, Ring::sum)),
            "the hops are the fastest on average, but a ring is as fast as its slowest hop: another order has fewer of these",
        )
        .cause_if(
            always(&|machine, found| machine.has_least(&inverse(found), |ring| ring.hops)),
            "this is the rank of each GPU: the GPU of each rank is asked for",
        )
        .diagnose_if(hops[0] > best[0], format!("another order has no hop as slow as {:?}", hops[0]))
        .diagnose_if(
            !machine.has_least(found, Ring::slowest_and_count),
            format!("another order has fewer {:?} hops, and none that is slower", hops[0]),
        )
        .or_fail(
            "no order has fewer of the slowest hops, but another has fewer of the next slowest: where two have equally many of the \
             slowest, compare the next",
        )
}
