//! Answers to `interface`: wrong ones, and an unusual right one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use crate::interface::Interface;

/// On each node the first interface for which `fits` is true.
fn first(nodes: &[Vec<Interface>], fits: impl Fn(&Interface) -> bool) -> Result<Vec<String>> {
    let one = |node: &Vec<Interface>| node.iter().find(|one| fits(one)).map(|one| one.name.clone());
    nodes.iter().map(one).collect::<Option<_>>().context("a node has none")
}

/// The networks that all nodes share, of interfaces for which `fits` is true.
fn networks(nodes: &[Vec<Interface>], fits: impl Fn(&Interface) -> bool) -> Vec<Vec<&Interface>> {
    let mut all: BTreeMap<(u32, u8), Vec<&Interface>> = BTreeMap::new();
    for node in nodes {
        for one in node.iter().filter(|one| fits(one)) {
            all.entry(one.network().unwrap_or_default()).or_default().push(one);
        }
    }
    all.into_values().filter(|found| found.len() == nodes.len()).collect()
}

fn names(chosen: &[&Interface]) -> Vec<String> {
    chosen.iter().map(|one| one.name.clone()).collect()
}

fn differ(chosen: &[&Interface]) -> bool {
    chosen.iter().map(|one| one.address).collect::<BTreeSet<_>>().len() == chosen.len()
}

fn works(one: &Interface) -> bool {
    one.up && one.carrier && !one.loopback && one.address.is_some()
}

fn fastest<'a>(all: Vec<Vec<&'a Interface>>) -> Result<Vec<&'a Interface>> {
    all.into_iter().max_by_key(|chosen| chosen.iter().map(|one| one.speed).min()).context("no network")
}

/// Takes the first that is switched on.
pub fn first_up(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    first(nodes, |one| one.up)
}

/// Trusts an interface that is switched on but has no carrier.
pub fn no_carrier(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let on = |one: &Interface| one.up && !one.loopback && one.address.is_some();
    fastest(networks(nodes, on).into_iter().filter(|chosen| differ(chosen)).collect()).map(|chosen| names(&chosen))
}

/// Does not see that all nodes have the same address there.
pub fn same_address(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    fastest(networks(nodes, works)).map(|chosen| names(&chosen))
}

/// Takes the first network that connects all nodes.
pub fn slow(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let all = networks(nodes, works).into_iter().filter(|chosen| differ(chosen));
    all.min_by_key(|chosen| chosen.iter().map(|one| one.speed).min()).map(|chosen| names(&chosen)).context("no network")
}

/// Judges a network by the first node's interface.
pub fn first_speed(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let all = networks(nodes, works).into_iter().filter(|chosen| differ(chosen));
    all.max_by_key(|chosen| chosen[0].speed).map(|chosen| names(&chosen)).context("no network")
}

/// Adds the speeds of all nodes.
pub fn sum_of_speeds(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let all = networks(nodes, works).into_iter().filter(|chosen| differ(chosen));
    let speed = |chosen: &Vec<&Interface>| chosen.iter().map(|one| one.speed).sum::<u32>();
    all.max_by_key(speed).map(|chosen| names(&chosen)).context("no network")
}

/// Reads the first three numbers of an address as its network.
pub fn three_numbers(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let mut of_24_bits = nodes.to_vec();
    of_24_bits.iter_mut().flatten().for_each(|one| one.prefix = 24);
    by_network(&of_24_bits)
}

/// Takes all prefixes for 20.
pub fn fixed_prefix(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let mut of_20_bits = nodes.to_vec();
    of_20_bits.iter_mut().flatten().for_each(|one| one.prefix = 20);
    by_network(&of_20_bits)
}

/// Searches each node for addresses in the first node's networks, whatever the prefixes there.
pub fn prefix_of_the_first(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let choose = |first: &Interface| {
        let same = |one: &&Interface| Interface { prefix: first.prefix, ..(*one).clone() }.network() == first.network();
        nodes.iter().map(|node| node.iter().find(|one| works(one) && same(one))).collect::<Option<Vec<&Interface>>>()
    };
    let all = nodes[0].iter().filter(|one| works(one)).filter_map(choose).filter(|chosen| differ(chosen));
    fastest(all.collect()).map(|chosen| names(&chosen))
}

/// Does so from the last node's.
pub fn prefix_of_the_last(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let mut turned = nodes.to_vec();
    turned.reverse();
    let mut chosen = prefix_of_the_first(&turned)?;
    chosen.reverse();
    Ok(chosen)
}

/// Takes interfaces without an address for those of one network.
pub fn no_address(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let on = |one: &Interface| one.up && one.carrier && !one.loopback;
    let different = |chosen: &Vec<&Interface>| chosen.iter().all(|one| one.address.is_none()) || differ(chosen);
    fastest(networks(nodes, on).into_iter().filter(different).collect()).map(|chosen| names(&chosen))
}

/// Takes the fastest interface of each node.
pub fn fastest_of_each(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let bridge = |one: &Interface| one.name == "docker0";
    let one = |node: &Vec<Interface>| {
        node.iter().filter(|one| works(one) && !bridge(one)).max_by_key(|one| one.speed).cloned()
    };
    let chosen: Option<Vec<Interface>> = nodes.iter().map(one).collect();
    Ok(names(&chosen.context("a node has none")?.iter().collect::<Vec<_>>()))
}

/// Gives all nodes the name that the first one has.
pub fn one_name(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let chosen = by_network(nodes)?;
    Ok(vec![chosen[0].clone(); nodes.len()])
}

/// Falls back to an interface that does not connect them.
pub fn falls_back(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    by_network(nodes).or_else(|_| first(nodes, |one| one.up))
}

/// Knows a bridge by its name, and does not compare addresses.
pub fn bridge_by_name(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let bridge = |one: &Interface| ["docker", "br-", "cni", "podman"].iter().any(|name| one.name.starts_with(name));
    fastest(networks(nodes, |one| works(one) && !bridge(one))).map(|chosen| names(&chosen))
}

/// Compares each address with the first node's only.
pub fn not_the_first(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let other = |chosen: &Vec<&Interface>| chosen[1..].iter().all(|one| one.address != chosen[0].address);
    fastest(networks(nodes, works).into_iter().filter(other).collect()).map(|chosen| names(&chosen))
}

/// Looks for interfaces with the same name that are in one network.
pub fn network_of_a_name(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let all = networks(nodes, works).into_iter().filter(|chosen| differ(chosen));
    fastest(all.filter(|chosen| chosen.iter().all(|one| one.name == chosen[0].name)).collect())
        .map(|chosen| names(&chosen))
}

/// Compares each address with the next node's only.
pub fn not_the_next(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let other = |chosen: &Vec<&Interface>| chosen.windows(2).all(|pair| pair[0].address != pair[1].address);
    fastest(networks(nodes, works).into_iter().filter(other).collect()).map(|chosen| names(&chosen))
}

/// Compares the leading bits, and not how many they are.
pub fn bits_alone(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let bits = |one: &Interface| one.network().map(|(bits, _)| bits);
    let choose = |first: &Interface| {
        let same = |one: &&Interface| works(one) && bits(one) == bits(first);
        nodes.iter().map(|node| node.iter().find(same)).collect::<Option<Vec<&Interface>>>()
    };
    let all = nodes[0].iter().filter(|one| works(one)).filter_map(choose).filter(|chosen| differ(chosen));
    fastest(all.collect()).map(|chosen| names(&chosen))
}

fn without(nodes: &[Vec<Interface>], lacks: impl Fn(&Interface) -> bool) -> Result<Vec<String>> {
    let all = networks(nodes, |one| one.address.is_some() && !lacks(one)).into_iter().filter(|chosen| differ(chosen));
    fastest(all.collect()).map(|chosen| names(&chosen))
}

/// Does not ask whether an interface is switched on.
pub fn switched_off(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    without(nodes, |one| !one.carrier || one.loopback)
}

/// Knows loopbacks by their addresses, which are the same on all nodes.
pub fn loopback(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    without(nodes, |one| !one.up || !one.carrier)
}

/// Right: sorts all interfaces by their network.
pub fn by_network(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    let all = networks(nodes, works).into_iter().filter(|chosen| differ(chosen)).collect();
    fastest(all).map(|chosen| names(&chosen))
}
