//! The cluster's network: a bridge on the head node with a port for each node, and what can go wrong with it.
//!
//! Packets are dropped by nftables where they arrive: dropped where they are sent, they would give the sender an error, as no broken
//! cable does. Rates are limited by the kernel's token bucket filter at both ends of a node's link. All of it is in
//! namespaces, and ends with them.

use std::collections::BTreeSet;
use std::str::FromStr;

use regex::Regex;

use super::running::Cluster;
use super::{Machine, Node};

/// The bridge, an interface of the head node.
const BRIDGE: &str = "br0";
/// A node's end of its link.
const LINK: &str = "eth0";
/// The table, and its chain, that hold all packet faults of a machine.
const TABLE: &str =
    "add table inet lockstep\nadd chain inet lockstep arriving { type filter hook input priority 0; }\n";
/// How long the token bucket holds a packet before it drops it.
const LATENCY: &str = "400ms";

/// A rate as `tc` takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    text: String,
    bits: u64,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
        let found = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?.parse::<u64>().ok()?, bits)));
        let bits = found.and_then(|(number, unit)| number.checked_mul(*unit)).filter(|bits| *bits >= 8_000);
        let message =
            || "a rate is a number with its unit, such as 500kbit, 10mbit or 1gbit, and at least 8kbit".to_owned();
        Ok(Rate { text: text.to_owned(), bits: bits.ok_or_else(message)? })
    }
}

impl Rate {
    /// Bytes that may pass at once: as many as in 10 ms, but at least some whole packets.
    fn burst(&self) -> u64 {
        (self.bits / 8 / 100).max(16 << 10)
    }
}

/// Makes the bridge.
pub(super) fn make_bridge(cluster: &Cluster) -> anyhow::Result<()> {
    let address = Machine::Head.address();
    ip(
        cluster,
        Machine::Head,
        &format!(
            "link set lo up\nlink add {BRIDGE} address {} type bridge\naddr add {address}/24 dev {BRIDGE}\nlink set {BRIDGE} up\n",
            hardware(Machine::Head)
        ),
    )
}

/// Links a node whose first process has this number on the head node to the bridge.
pub(super) fn plug_in(cluster: &Cluster, node: Node, init: i32) -> anyhow::Result<()> {
    let machine = Machine::Node(node);
    let (port, address, hardware) = (node.port(), machine.address(), hardware(machine));
    // The kernel removes the port of a lost node, but it may take a while.
    let _ = cluster.run(Machine::Head, &["ip", "link", "del", &port]);
    ip(
        cluster,
        Machine::Head,
        &format!(
            "link add {port} type veth peer name {LINK} address {hardware} netns {init}\nlink set {port} master {BRIDGE}\nlink set {port} \
             up\n"
        ),
    )?;
    ip(cluster, Machine::Node(node), &format!("link set lo up\naddr add {address}/24 dev {LINK}\nlink set {LINK} up\n"))
}

/// Drops all packets between two machines.
pub(super) fn cut(cluster: &Cluster, ends: [Machine; 2]) -> anyhow::Result<()> {
    let [one, other] = ends;
    for (here, there) in [(one, other), (other, one)] {
        filter(cluster, here, &format!("ip saddr {} drop comment \"cut from {there}\"", there.address()))?;
    }
    Ok(())
}

/// Closes a TCP port of a node: packets to it vanish, or are answered by a reset.
pub(super) fn block(cluster: &Cluster, node: Node, port: u16, reject: bool) -> anyhow::Result<()> {
    let (verdict, word) = if reject { ("reject with tcp reset", "rejected") } else { ("drop", "blocked") };
    let rule = format!("iifname {LINK} tcp dport {port} {verdict} comment \"port {port} {word}\"");
    filter(cluster, Machine::Node(node), &rule)
}

/// Drops some of the packets that a node receives, by chance.
pub(super) fn drop_some(cluster: &Cluster, node: Node, percent: u8) -> anyhow::Result<()> {
    // nft refuses a comparison that always holds.
    let chance = if percent < 100 { format!("numgen random mod 100 < {percent} ") } else { String::new() };
    let rule = format!("iifname {LINK} {chance}drop comment \"{percent} % dropped\"");
    filter(cluster, Machine::Node(node), &rule)
}

/// Limits a node's link in both directions.
pub(super) fn slow(cluster: &Cluster, node: Node, rate: &Rate) -> anyhow::Result<()> {
    let burst = format!("{}b", rate.burst());
    for (machine, device) in ends(node) {
        let words = ["tc", "qdisc", "replace", "dev", &device, "root", "tbf"];
        cluster.run(machine, &[&words[..], &["rate", &rate.text, "burst", &burst, "latency", LATENCY]].concat())?;
    }
    Ok(())
}

/// Pulls a node's cable, or plugs it in again.
pub(super) fn set_link(cluster: &Cluster, node: Node, up: bool) -> anyhow::Result<()> {
    let state = if up { "up" } else { "down" };
    cluster.run(Machine::Head, &["ip", "link", "set", &node.port(), state]).map(|_| ())
}

/// Takes away all that was done to a machine's network.
pub(super) fn heal(cluster: &Cluster, machine: Machine) -> anyhow::Result<()> {
    if super::packet_filter().is_ok() {
        let script = "add table inet lockstep\ndelete table inet lockstep\n";
        cluster.feed(machine, &["nft", "-f", "-"], script)?;
    }
    let Machine::Node(node) = machine else { return Ok(()) };
    set_link(cluster, node, true)?;
    for (machine, device) in ends(node) {
        if rate(cluster, machine, &device)?.is_some() {
            cluster.run(machine, &["tc", "qdisc", "del", "dev", &device, "root"])?;
        }
    }
    Ok(())
}

/// What was done to a machine's network, in words, asked of the kernel.
pub(super) fn faults(cluster: &Cluster, machine: Machine) -> anyhow::Result<Vec<String>> {
    let mut faults = Vec::new();
    if let Machine::Node(node) = machine {
        let link = cluster.run(Machine::Head, &["ip", "-o", "link", "show", &node.port()])?;
        faults.extend((!is_up(&link)).then(|| "unplugged".to_owned()));
        faults.extend(rate(cluster, machine, LINK)?.map(|rate| format!("limited to {rate}")));
    }
    if super::packet_filter().is_ok() {
        faults.extend(comments(&cluster.run(machine, &["nft", "list", "ruleset"])?));
    }
    Ok(faults)
}

/// A machine's hardware address, made from its address on the network. With a random one, a node that boots would
/// have a new address, and so would the bridge, which takes a port's; the others would send to the old one until they
/// ask again.
fn hardware(machine: Machine) -> String {
    let [a, b, c, d] = machine.address().octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Both ends of a node's link.
fn ends(node: Node) -> [(Machine, String); 2] {
    [(Machine::Node(node), LINK.to_owned()), (Machine::Head, node.port())]
}

/// Runs lines of `ip`.
fn ip(cluster: &Cluster, machine: Machine, lines: &str) -> anyhow::Result<()> {
    cluster.feed(machine, &["ip", "-batch", "-"], lines).map(|_| ())
}

/// Adds a rule to the faults of a machine.
fn filter(cluster: &Cluster, machine: Machine, rule: &str) -> anyhow::Result<()> {
    super::packet_filter()?;
    let script = format!("{TABLE}add rule inet lockstep arriving {rule}\n");
    cluster.feed(machine, &["nft", "-f", "-"], &script).map(|_| ())
}

/// To what a device is limited.
fn rate(cluster: &Cluster, machine: Machine, device: &str) -> anyhow::Result<Option<String>> {
    Ok(limit(&cluster.run(machine, &["tc", "qdisc", "show", "dev", device])?))
}

/// The rate in the line that `tc` prints for a token bucket filter.
fn limit(shown: &str) -> Option<String> {
    let words = shown.lines().find(|line| line.starts_with("qdisc tbf "))?.split_whitespace();
    words.skip_while(|word| *word != "rate").nth(1).map(str::to_lowercase)
}

/// The flag UP stands among others between angle brackets.
fn is_up(shown: &str) -> bool {
    let flags = shown.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    flags.is_some_and(|(flags, _)| flags.split(',').any(|flag| flag == "UP"))
}

/// The comment of each rule says what it does; a fault that was asked for twice is one.
fn comments(rules: &str) -> BTreeSet<String> {
    let comment = Regex::new("comment \"([^\"]*)\"");
    comment.iter().flat_map(|comment| comment.captures_iter(rules)).map(|found| found[1].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_rates_with_a_unit_and_lets_some_packets_pass_at_once() {
        let burst = |rate: &str| rate.parse::<Rate>().map(|rate| rate.burst());
        assert_eq!([burst("8kbit"), burst("10mbit"), burst("1gbit")], [Ok(16_384), Ok(16_384), Ok(1_250_000)]);
        for rate in ["", "10", "mbit", "7kbit", "-1mbit", "10 mbit", "10MB", "99999999999999gbit"] {
            assert!(rate.parse::<Rate>().is_err(), "{rate}");
        }
    }

    #[test]
    fn reads_what_the_tools_show() {
        let tbf = "qdisc tbf 8001: root refcnt 5 rate 10Mbit burst 16Kb lat 400ms \n";
        assert_eq!((limit(tbf), limit("qdisc noqueue 0: root refcnt 2\n")), (Some("10mbit".into()), None));
        assert!(is_up("3: vn1@if2: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500"));
        assert!(!is_up("3: vn1@if2: <BROADCAST,MULTICAST,M-DOWN> mtu 1500 state DOWN") && !is_up(""));
        let rules =
            "ip saddr 10.88.0.2 drop comment \"cut from n2\"\nip saddr 10.88.0.2 drop comment \"cut from n2\"\n";
        assert_eq!(comments(rules).into_iter().collect::<Vec<_>>(), ["cut from n2"]);
    }
}
