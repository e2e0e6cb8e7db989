//! Grades `interface`: nodes with a loopback, a dead link, a container bridge, a slow network and a fast one.

use std::net::Ipv4Addr;

use lockstep_grading::{Claim, Runner};
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
        vec![
            of("lo", [127, 0, 0, 1], 8, 1_000_000, true, true, true),
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
    // With a network in which the last two nodes have got the same address, and the others have not.
    let mut twice = several.clone();
    for (number, node) in twice.iter_mut().enumerate() {
        let host = number.min(count - 2) as u8 + 1;
        node.insert(0, of("ib2", [10, net, 80, host], 20, 700_000, true, true, false));
    }
    let cases: [(Nodes, Option<Vec<String>>); 8] = [
        (several.clone(), Some(fast.clone())),
        (turned, Some(fast.clone())),
        (slow, Some(vec!["eno1".into(); count])),
        (none, None),
        (uneven(0), Some(fast.clone())),
        (uneven(count - 1), Some(fast.clone())),
        (bridge, Some(fast.clone())),
        (twice, Some(fast)),
    ];
    let inputs: Vec<&Nodes> = cases.iter().map(|(nodes, _)| nodes).collect();
    let outputs = runner.call::<_, Found>(1, &inputs)?;
    cases.iter().enumerate().try_for_each(|(case, (nodes, right))| check(nodes, right.as_deref(), outputs.of(0, case)))
}

fn of(name: &str, address: [u8; 4], prefix: u8, speed: u32, up: bool, carrier: bool, loopback: bool) -> Interface {
    Interface { name: name.into(), up, carrier: carrier && up, loopback, address: Some(address.into()), prefix, speed }
}

fn check(nodes: &Nodes, right: Option<&[String]>, found: &Found) -> anyhow::Result<()> {
    let given = nodes.iter().enumerate().map(|(number, node)| listed(number, node)).collect::<Vec<_>>().join("; ");
    let Some(right) = right else {
        return Claim::that(found.is_err(), "an error", format!("{found:?}")).given(given).or_fail(
            "no network connects all nodes, but one was chosen: the ranks would wait for each other until a timeout",
        );
    };
    let claim = Claim::equal(&Ok::<_, String>(right.to_vec()), found).given(given);
    let Ok(names) = found else { return claim.or_fail("an error, although a network connects all nodes") };
    let chosen: Vec<Option<&Interface>> =
        nodes.iter().zip(names).map(|(node, name)| node.iter().find(|one| one.name == *name)).collect();
    let any = |what: fn(&Interface) -> bool| chosen.iter().flatten().any(|one| what(one));
    let fast = right.iter().zip(nodes).filter_map(|(name, node)| node.iter().find(|one| one.name == *name));
    let fast = fast.map(|one| one.speed).min().unwrap_or_default();
    let absent = names.len() != nodes.len() || chosen.iter().any(Option::is_none);
    let addresses: Vec<_> = chosen.iter().flatten().map(|one| one.address).collect();
    let same = addresses.iter().enumerate().any(|(at, one)| addresses[..at].contains(one));
    claim
        .diagnose_if(
            absent,
            "a node has no interface of that name: names differ between nodes. What they share is the network",
        )
        .diagnose_if(any(|one| one.loopback), "a loopback leads only to its own node: every rank would look for the others there")
        .diagnose_if(
            any(|one| !one.carrier),
            "an interface without a carrier: it is switched on, but nothing answers at its other end",
        )
        .diagnose_if(
            same && addresses.iter().all(|one| *one == addresses[0]),
            "the same address on all nodes: the bridge of a container runtime or of virtual machines, whatever its name, exists on each \
             node. A rank that connects to it reaches its own node",
        )
        .diagnose_if(
            same,
            "the same address on two nodes, and others on the rest: each address must differ from every other, or a rank that connects to \
             one of the two reaches the other, or itself",
        )
        .diagnose_if(
            chosen.iter().flatten().any(|one| one.network() != chosen[0].and_then(Interface::network)),
            "these are in different networks, so they do not connect the nodes: `network()` is the network of an interface",
        )
        .diagnose_if(
            chosen.iter().flatten().any(|one| one.speed > fast),
            "a network is as fast as its slowest interface: every step waits for the slowest node, however fast the others are",
        )
        .or_fail(
            "these connect the nodes, but a faster network does, too: `network()` says which interfaces are in the same network, whatever \
             their names",
        )
}

fn listed(number: usize, node: &[Interface]) -> String {
    let one = |one: &Interface| {
        let state = if !one.up {
            "down"
        } else if one.carrier {
            "up"
        } else {
            "no carrier"
        };
        let address = one.address.map_or_else(String::new, |address| format!("{address}/{} ", one.prefix));
        format!("{} {address}{state} {} Mbit/s", one.name, one.speed)
    };
    format!("node {number}: {}", node.iter().map(one).collect::<Vec<_>>().join(", "))
}
