//! `lockstep cluster exec`: becomes a command on a machine of the cluster.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::Context;
use clap::Args;

use super::running::{Cluster, joined};
use super::spec::{Machine, Name};
use crate::exit::{Code, Refused};

/// Run a command on a machine of the cluster, in the current folder; ends with the command's exit code
#[derive(Args)]
pub(super) struct Options {
    /// The head node `ctl`, or a node: `n1`, `n2`, …
    #[arg(value_name = "MACHINE", value_parser = str::parse::<Machine>)]
    machine: Machine,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

impl Options {
    pub(super) fn exec(self, name: &Name) -> anyhow::Result<Code> {
        let cluster = Cluster::open(name)?;
        let folder = std::env::current_dir().context("cannot find the current folder")?;
        if !is_same(&folder, &joined(&cluster.root(self.machine)?, &folder)) {
            let message = format!(
                "{} has no folder {}, since /tmp and /dev/shm are each node's own: go elsewhere, or share the folder (`up --share`)",
                self.machine,
                folder.display()
            );
            return Err(Refused(message).into());
        }
        let mut command = cluster.session(self.machine, &folder, &self.command[0])?;
        Err(command.args(&self.command[1..]).exec()).context("cannot run nsenter")
    }
}

/// They are one folder, seen from here and from the machine.
fn is_same(here: &Path, there: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    id(here).is_some() && id(here) == id(there)
}
