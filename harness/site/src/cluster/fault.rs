//! `lockstep cluster fault`: what goes wrong with clusters, done on purpose, and undone.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use lockstep_process::Signals;

use super::lifecycle::boot;
use super::network::{self, Rate};
use super::running::{Cluster, NodeState};
use super::{ClusterName, Machine, Node, slurm};
use crate::exit::{Code, Refused};
use crate::report::Screen;

/// How long the kernel may take to end all processes of a node.
const END: Duration = Duration::from_secs(60);
/// How often to look: the node's processes are not this process's to wait for.
const LOOK: Duration = Duration::from_millis(5);

/// Break something, or take faults away
#[derive(Args)]
pub(super) struct Fault {
    #[command(subcommand)]
    change: Change,
}

#[derive(Subcommand)]
enum Change {
    /// Drop all packets between two machines
    Cut {
        #[arg(value_parser = str::parse::<Machine>)]
        one: Machine,
        #[arg(value_parser = str::parse::<Machine>)]
        other: Machine,
    },
    /// Limit the rate of a node's link, in both directions
    Slow {
        node: Node,
        /// For example 500kbit, 10mbit, 1gbit
        #[arg(long)]
        rate: Rate,
    },
    /// Drop some of the packets that a node receives, by chance
    Drop {
        node: Node,
        /// How many of a hundred
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
        percent: u8,
    },
    /// Close a TCP port of a node, as a firewall does
    Block {
        node: Node,
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        /// Answer with a reset, instead of nothing
        #[arg(long)]
        reject: bool,
    },
    /// Pull a node's cable
    Unplug { node: Node },
    /// Plug a node's cable in
    Plug { node: Node },
    /// Stop all processes of a node; its kernel still answers
    Pause { node: Node },
    /// Let the processes of a paused node go on
    Resume { node: Node },
    /// Kill all processes of a node, as if it had lost its power
    Lose { node: Node },
    /// Start a lost node again; its /tmp is as it was
    Boot { node: Node },
    /// Take all faults away and resume paused nodes; lost nodes stay lost
    Heal,
}

impl Fault {
    pub(super) fn exec(self, name: &ClusterName) -> anyhow::Result<Code> {
        let cluster = Cluster::open(name)?;
        let now = self.change.inflict(&cluster)?;
        Screen::new(false).line(now);
        Ok(Code::Success)
    }
}

impl Change {
    /// Returns what is now so.
    fn inflict(&self, cluster: &Cluster) -> anyhow::Result<String> {
        match self {
            Change::Cut { one, other } => {
                if one == other {
                    return Err(Refused(format!("a cut needs two different machines, not {one} twice")).into());
                }
                // Both must exist before either is changed.
                [one, other].into_iter().try_for_each(|machine| cluster.root(*machine).map(|_| ()))?;
                network::cut(cluster, [*one, *other])?;
                Ok(format!("no packet passes between {one} and {other}"))
            }
            Change::Slow { node, rate } => {
                network::slow(cluster, *node, rate)?;
                Ok(format!("the link of {node} is slow"))
            }
            Change::Drop { node, percent } => {
                network::drop_some(cluster, *node, *percent)?;
                Ok(format!("{node} drops {percent} % of the packets that it receives"))
            }
            Change::Block { node, port, reject } => {
                network::block(cluster, *node, *port, *reject)?;
                Ok(format!("port {port} of {node} is {}", if *reject { "rejected" } else { "blocked" }))
            }
            Change::Unplug { node } => {
                cluster.root(Machine::Node(*node))?;
                network::set_link(cluster, *node, false)?;
                Ok(format!("{node} is unplugged"))
            }
            Change::Plug { node } => {
                cluster.root(Machine::Node(*node))?;
                network::set_link(cluster, *node, true)?;
                Ok(format!("{node} is plugged in"))
            }
            Change::Pause { node } => pause(cluster, *node),
            Change::Resume { node } => resume(cluster, *node),
            Change::Lose { node } => lose(cluster, *node),
            Change::Boot { node } => boot_again(cluster, *node),
            Change::Heal => heal(cluster),
        }
    }
}

/// Signals a node's first process from the head node: from within the node the signal would be ignored.
fn signal_init(cluster: &Cluster, node: Node, signal: &str) -> anyhow::Result<()> {
    let init = cluster.init_of(node).with_context(|| format!("{node} is lost"))?;
    cluster.run(Machine::Head, &["sh", "-c", &format!("kill -s {signal} {}", init.pid)]).map(|_| ())
}

/// Signals all other processes of a node. It fails when there is none.
fn signal_others(cluster: &Cluster, node: Node, signal: &str) -> anyhow::Result<()> {
    let script = format!("kill -s {signal} -- -1 2>/dev/null || :");
    cluster.run(Machine::Node(node), &["sh", "-c", &script]).map(|_| ())
}

fn pause(cluster: &Cluster, node: Node) -> anyhow::Result<String> {
    signal_others(cluster, node, "STOP")?;
    signal_init(cluster, node, "STOP")?;
    Ok(format!("{node} is paused"))
}

fn resume(cluster: &Cluster, node: Node) -> anyhow::Result<String> {
    signal_others(cluster, node, "CONT")?;
    signal_init(cluster, node, "CONT")?;
    Ok(format!("{node} runs again"))
}

fn lose(cluster: &Cluster, node: Node) -> anyhow::Result<String> {
    cluster.root(Machine::Node(node))?;
    signal_init(cluster, node, "KILL")?;
    let begin = Instant::now();
    while cluster.init_of(node).is_some() {
        anyhow::ensure!(begin.elapsed() < END, "the processes of {node} have not ended within {} s", END.as_secs());
        thread::sleep(LOOK);
    }
    Ok(format!("{node} is lost"))
}

fn boot_again(cluster: &Cluster, node: Node) -> anyhow::Result<String> {
    cluster.check(Machine::Node(node))?;
    if cluster.state(node) != NodeState::Lost {
        return Err(Refused(format!("{node} is up: only a lost node boots")).into());
    }
    let signals = Signals::listen().context("cannot listen to signals")?;
    if let Err(error) = boot_and_wait(cluster, node, &signals) {
        // A node is up or lost, with nothing in between.
        let error = error.context(format!("{node} did not boot"));
        if cluster.init_of(node).is_some() {
            lose(cluster, node).with_context(|| format!("after a boot that had failed ({error:#})"))?;
        }
        return Err(error);
    }
    Ok(format!("{node} is up"))
}

fn boot_and_wait(cluster: &Cluster, node: Node, signals: &Signals) -> anyhow::Result<()> {
    boot(cluster, node, signals)?;
    if cluster.spec.slurm { slurm::wait(cluster, &[node], signals) } else { Ok(()) }
}

fn heal(cluster: &Cluster) -> anyhow::Result<String> {
    network::heal(cluster, Machine::Head)?;
    for node in cluster.living() {
        if cluster.state(node) == NodeState::Paused {
            resume(cluster, node)?;
        }
        network::heal(cluster, Machine::Node(node))?;
    }
    let lost: Vec<String> = cluster
        .spec
        .nodes()
        .filter(|node| cluster.state(*node) == NodeState::Lost)
        .map(|node| node.to_string())
        .collect();
    Ok(if lost.is_empty() {
        "no faults are left".into()
    } else {
        format!("no faults are left, except lost nodes: {}", lost.join(", "))
    })
}
