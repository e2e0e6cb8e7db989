//! `lockstep cluster`: a cluster on this machine. Each node is a set of Linux namespaces: it has an address, a host name, process ids,
//! `/dev/shm` and `/tmp` of its own, and a port on a bridge that nobody outside can reach. Where Slurm is installed, its daemons run.
//!
//! - [`up`] makes it, [`down`] takes it away, [`exec`] runs a command on a node, [`status`] shows it, [`fault`] breaks it.
//! - One process holds it all: the first process of the head node ([`init`]). When it ends, the kernel ends everything else.
//! - Nothing runs in between. What a command needs to know is in the cluster's folder ([`folder`]) or asked of the kernel.

mod boot;
mod down;
mod exec;
mod fault;
mod folder;
mod init;
mod log;
mod means;
mod network;
mod process;
mod running;
mod slurm;
mod spec;
mod status;
mod up;

use clap::{Args, Subcommand};

use crate::exit::Code;

pub(crate) use init::{INIT, Init};
use spec::Name;

/// Why there is no cluster with Slurm on this machine, in words; `None` if there can be one.
pub(crate) fn why_no_slurm() -> Option<String> {
    match means::needs_user_namespace() {
        Ok(user_namespace) => means::why_no_slurm(user_namespace),
        Err(refused) => Some(refused.to_string()),
    }
}

/// Make a cluster on this machine, with Slurm where it is installed, and break it on purpose
#[derive(Args)]
pub(crate) struct Options {
    /// The cluster's name, for several next to each other
    #[arg(long, global = true, value_name = "NAME", default_value = "main")]
    name: Name,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Options),
    Exec(exec::Options),
    Status(status::Options),
    Fault(fault::Options),
    Down(down::Options),
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let Options { name, command } = self;
        match command {
            Command::Up(options) => options.exec(name),
            Command::Exec(options) => options.exec(&name),
            Command::Status(options) => options.exec(&name),
            Command::Fault(options) => options.exec(&name),
            Command::Down(options) => options.exec(&name),
        }
    }
}
