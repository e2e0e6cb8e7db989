//! Grades `interface`: nodes with a loopback, a dead link, a container bridge, a slow network and a fast one.

use std::net::Ipv4Addr;

use lockstep_grading::{Claim, Runner, joined, table};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
struct Interface {
    name: String,
    up: bool,
    carrier: bool,
    loopback: bool,
    address: Option<Ipv4Addr>,
    prefix: u8,
    speed: u32,
}

impl Interface {
    fn network(&self) -> Option<(u32, u8)> {
        let bits = u32::from(self.address?);
        Some((bits & u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0), self.prefix))
    }
}

type Nodes = Vec<Vec<Interface>>;
type Found = Result<Vec<String>, String>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let count = random.below(3..6);
    let net = random.below(1..100) as u8;
    let node = |number: usize| {
        let host = number as u8 + 1;
        let modem = of("wwan0", [0; 4], 0, 900_000, true, true, false);
        vec![
            of("lo", [127, 0, 0, 1], 8, 1_000_000, true, true, true),
            Interface { address: None, ..modem },
            of("docker0", [172, 17, 0, 1], 16, 400_000, true, true, false),
            of("ib0", [10, net, 8, host], 24, 200_000, true, false, false),
            of("eno1", [10, net, 0, host], 20, 1000, true, true, false),
            // The system of some nodes names it otherwise.
            of(
                if number % 2 == 1 { "ens3" } else { "hsn0" },
                [10, net, 32 + host, host],
                20,
                100_000,
                true,
                true,
                false,
            ),
            of("hsn1", [10, net, 48, host], 20, 150_000, number.is_multiple_of(2), true, false),
        ]
    };
    let several: Nodes = (0..count).map(node).collect();
    let fast = |number: usize| if number % 2 == 1 { "ens3" } else { "hsn0" }.to_owned();
    let fast: Vec<String> = (0..count).map(fast).collect();
    let turned: Nodes = several.iter().map(|node| node.iter().rev().cloned().collect()).collect();
    let without = |names: &[&str]| -> Nodes {
        several.iter().map(|node| node.iter().filter(|one| !names.contains(&&*one.name)).cloned().collect()).collect()
    };
    let slow = without(&["hsn0", "ens3"]);
    let none = without(&["hsn0", "ens3", "eno1"]);
    // With a network more, whose fastest interface, and the sum of all, are faster than those of the others, and which is slow on all nodes
    // but one.
    let uneven = |fastest: usize| {
        let mut nodes = several.clone();
        for (number, node) in nodes.iter_mut().enumerate() {
            let speed = if number == fastest { 800_000 } else { 10_000 };
            node.insert(0, of("ib1", [10, net, 64, number as u8 + 1], 20, speed, true, true, false));
        }
        nodes
    };
    // With the bridge of virtual machines, which has another name and address than that of containers.
    let mut bridge = several.clone();
    bridge.iter_mut().for_each(|node| node.push(of("virbr0", [192, 168, 122, 1], 24, 400_000, true, true, false)));
    // With a network in which the last node has got the address of this one, and the others have addresses of their own.
    let twice = |of_last: usize| {
        let mut nodes = several.clone();
        for (number, node) in nodes.iter_mut().enumerate() {
            let host = if number == count - 1 { of_last } else { number } as u8 + 1;
            node.insert(0, of("ib2", [10, net, 80, host], 20, 700_000, true, true, false));
        }
        nodes
    };
    // With an interface more that has all but one of what it needs.
    let lacking = |lacks: fn(Interface) -> Interface| {
        let mut nodes = several.clone();
        for (number, node) in nodes.iter_mut().enumerate() {
            node.insert(0, lacks(of("eth7", [10, net, 112, number as u8 + 1], 20, 500_000, true, true, false)));
        }
        nodes
    };
    // With a network more that is the fastest, and whose addresses are alike, but which the prefix divides between the first node and the
    // others. Its addresses and prefixes are `of_first` on the first node.
    let divided = |of_first: (u8, u8, u8), of_others: (u8, u8, u8)| {
        let mut nodes = several.clone();
        for (number, node) in nodes.iter_mut().enumerate() {
            let (third, fourth, prefix) = if number == 0 { of_first } else { of_others };
            node.insert(0, of("ib3", [10, net, third, fourth + number as u8 + 1], prefix, 600_000, true, true, false));
        }
        nodes
    };
    let cases: [(Nodes, Option<Vec<String>>); 17] = [
        (several.clone(), Some(fast.clone())),
        (turned, Some(fast.clone())),
        (slow, Some(vec!["eno1".into(); count])),
        (none, None),
        (uneven(0), Some(fast.clone())),
        (uneven(count - 1), Some(fast.clone())),
        (bridge, Some(fast.clone())),
        (twice(count - 2), Some(fast.clone())),
        (twice(0), Some(fast.clone())),
        // No prefix that is the same for all interfaces tells these halves of a network apart and does not divide the right one.
        (divided((96, 0, 26), (96, 64, 26)), Some(fast.clone())),
        // With one prefix for all nodes, that of any of them, these are in one network.
        (divided((96, 0, 20), (97, 0, 24)), Some(fast.clone())),
        (divided((97, 0, 24), (96, 0, 20)), Some(fast.clone())),
        // The leading bits are equal, and only their number differs.
        (divided((96, 0, 20), (96, 0, 24)), Some(fast.clone())),
        (divided((96, 0, 24), (96, 0, 20)), Some(fast.clone())),
        (lacking(|one| Interface { up: false, ..one }), Some(fast.clone())),
        (lacking(|one| Interface { carrier: false, ..one }), Some(fast.clone())),
        (lacking(|one| Interface { loopback: true, ..one }), Some(fast)),
    ];
    let inputs: Vec<&Nodes> = cases.iter().map(|(nodes, _)| nodes).collect();
    let outputs = runner.call::<_, Found>(1, &inputs)?;
    cases.iter().enumerate().try_for_each(|(case, (nodes, right))| check(nodes, right.as_deref(), outputs.of(0, case)))
}

fn of(name: &str, address: [u8; 4], prefix: u8, speed: u32, up: bool, carrier: bool, loopback: bool) -> Interface {
    Interface { name: name.into(), up, carrier: carrier && up, loopback, address: Some(address.into()), prefix, speed }
}

fn check(nodes: &Nodes, right: Option<&[String]>, found: &Found) -> anyhow::Result<()> {
    let interfaces =
        nodes.iter().enumerate().flat_map(|(number, node)| node.iter().map(move |one| listed(number, one)));
    let given = table(["node", "interface", "address", "state", "Mbit/s"], &interfaces.collect::<Vec<_>>());
    let Some(right) = right else {
        return Claim::that(found.is_err(), "an error", described(found)).given(given).or_fail(
            "no network connects all nodes, but one was chosen: the ranks would wait for each other until a timeout",
        );
    };
    let holds = found.as_deref() == Ok(right);
    let claim = Claim::that(holds, joined(right, ", "), described(found)).given(given);
    let Ok(names) = found else { return claim.or_fail("an error, although a network connects all nodes") };
    let chosen: Vec<Option<&Interface>> =
        nodes.iter().zip(names).map(|(node, name)| node.iter().find(|one| one.name == *name)).collect();
    let any = |what: fn(&Interface) -> bool| chosen.iter().flatten().any(|one| what(one));
    let fast = right.iter().zip(nodes).filter_map(|(name, node)| node.iter().find(|one| one.name == *name));
    let fast = fast.map(|one| one.speed).min().unwrap_or_default();
    let network = |one: &Option<&Interface>| one.and_then(Interface::network);
    let connected = chosen.iter().all(|one| network(one) == network(&chosen[0]));
    let addresses: Vec<_> = chosen.iter().flatten().map(|one| one.address).collect();
    let same = addresses.iter().enumerate().any(|(at, one)| addresses[..at].contains(one));
    claim
        .diagnose_if(
            names.len() != nodes.len(),
            format!("there are {} nodes, so return {0} names, one of each node; these are {}", nodes.len(), names.len()),
        )
        .diagnose_if(
            chosen.iter().any(Option::is_none),
            "a node has no interface of that name: names differ between nodes. What they share is the network",
        )
        .diagnose_if(any(|one| one.loopback), "a loopback leads only to its own node: every rank would look for the others there")
        .diagnose_if(any(|one| !one.up), "an interface that is switched off (`up` is false) leads nowhere")
        .diagnose_if(
            any(|one| !one.carrier),
            "an interface without a carrier: it is switched on, but nothing answers at its other end",
        )
        .diagnose_if(any(|one| one.address.is_none()), "an interface without an address is in no network: no rank can connect to it")
        .diagnose_if(
            same && addresses.iter().all(|one| *one == addresses[0]),
            "the same address on all nodes: it is the bridge of a container runtime or of virtual machines, which exists on each node. A \
             rank that connects to it reaches its own node",
        )
        .diagnose_if(
            same,
            "the same address on two nodes: a rank that connects to one of the two reaches the other, or itself. All addresses must differ",
        )
        .diagnose_if(
            !connected && alike(&chosen),
            "the addresses look alike, but are in different networks: compare what `network()` returns, the prefix included. Each \
             interface's own `prefix` says how many leading bits of its address name its network",
        )
        .diagnose_if(
            !connected,
            "these are in different networks, so they do not connect the nodes: `network()` is the network of an interface",
        )
        .diagnose_if(
            chosen.iter().flatten().any(|one| one.speed > fast),
            "a network is as fast as its slowest interface: every step waits for the slowest node, however fast the others are",
        )
        .or_fail(
            "these connect the nodes, but a faster network does, too: `network()` shows which interfaces are in the same network, whatever \
             their names",
        )
}

/// Returns true if the addresses have their first 20 bits in common: what a look at them takes for one network.
fn alike(chosen: &[Option<&Interface>]) -> bool {
    let bits = |one: &&Interface| one.address.map(|address| u32::from(address) >> 12);
    let mut all = chosen.iter().flatten().map(bits);
    let first = all.next();
    all.all(|one| Some(one) == first)
}

fn described(found: &Found) -> String {
    match found {
        Ok(names) => joined(names, ", "),
        Err(error) => format!("an error: {error}"),
    }
}

fn listed(node: usize, one: &Interface) -> [String; 5] {
    let state = match (one.up, one.carrier) {
        (false, _) => "down",
        (true, false) => "no carrier",
        (true, true) if one.loopback => "loopback",
        (true, true) => "up",
    };
    let address = one.address.map_or_else(|| "none".to_owned(), |address| format!("{address}/{}", one.prefix));
    [node.to_string(), one.name.clone(), address, state.to_owned(), one.speed.to_string()]
}
