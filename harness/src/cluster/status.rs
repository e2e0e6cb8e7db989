//! `lockstep cluster status`: what the kernel and Slurm say of each machine.

use std::net::Ipv4Addr;

use clap::Args;
use serde::Serialize;

use super::running::{Cluster, State};
use super::spec::{Machine, Name, Spec};
use super::{network, slurm};
use crate::exit::Code;
use crate::report::{Screen, whole_words};

/// Show the machines, their addresses and faults, and what Slurm says of them
#[derive(Args)]
pub(super) struct Options {
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    address: Ipv4Addr,
    state: State,
    /// In words; empty for a lost node.
    faults: Vec<String>,
    /// The state that Slurm gives a node, if it runs.
    slurm: Option<String>,
}

impl Options {
    pub(super) fn exec(self, name: &Name) -> anyhow::Result<Code> {
        let cluster = Cluster::open(name)?;
        let rows = rows(&cluster)?;
        let screen = Screen::new(false);
        if self.json {
            let whole = serde_json::json!({
                "name": name.to_string(),
                "folder": cluster.folder.path(),
                "slurm": cluster.spec.slurm,
                "user_namespace": cluster.spec.user_namespace,
                "machines": rows,
            });
            screen.line(serde_json::to_string_pretty(&whole)?);
        } else {
            screen.line(title(name, &cluster.spec));
            screen.line(table(&screen, &rows));
        }
        Ok(Code::Success)
    }
}

/// The cluster in a line.
pub(super) fn title(name: &Name, spec: &Spec) -> String {
    let slurm = if spec.slurm { "under Slurm" } else { "without Slurm" };
    let nodes = if spec.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", spec.nodes) };
    format!("cluster `{name}`: {nodes} and the head node {}, {slurm}", Machine::Head)
}

fn rows(cluster: &Cluster) -> anyhow::Result<Vec<Row>> {
    let mut of_slurm = if cluster.spec.slurm { slurm::states(cluster) } else { Default::default() };
    // The head node is none of Slurm's nodes.
    let silent = |machine| (cluster.spec.slurm && machine != Machine::Head).then(|| "no answer".to_owned());
    let row = |machine: Machine| {
        let state = match machine {
            Machine::Head => State::Up,
            Machine::Node(node) => cluster.state(node),
        };
        let faults = if state == State::Lost { vec![] } else { network::faults(cluster, machine)? };
        let name = machine.to_string();
        Ok(Row {
            slurm: of_slurm.remove(&name).or_else(|| silent(machine)),
            name,
            address: machine.address(),
            state,
            faults,
        })
    };
    cluster.spec.machines().map(row).collect()
}

/// A heading, and what stands below it.
type Column = (&'static str, fn(&Row) -> String);

fn table(screen: &Screen, rows: &[Row]) -> String {
    let columns: [Column; 5] = [
        ("machine", |row| row.name.clone()),
        ("address", |row| row.address.to_string()),
        ("state", |row| row.state.to_string()),
        ("faults", |row| row.faults.join(", ")),
        ("Slurm", |row| row.slurm.clone().unwrap_or_default()),
    ];
    let says_something = |(_, text): &&Column| rows.iter().any(|row| !text(row).is_empty());
    let columns: Vec<_> = columns.iter().filter(says_something).collect();
    let mut table = screen.look().table(&columns.iter().map(|(heading, _)| *heading).collect::<Vec<_>>());
    table.add_rows(rows.iter().map(|row| columns.iter().map(|(_, text)| text(row)).collect::<Vec<_>>()));
    whole_words(table, screen.look())
}
