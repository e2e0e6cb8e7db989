//! `lockstep tied-exec`: becomes another program that the kernel kills when the process that asked for it dies.
//!
//! The kernel keeps a parent-death signal over `exec`, so it is asked for here, between the start of the process and the
//! start of the program, where no unsafe code is needed for it. Not for people, hence hidden.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::exit::Code;

/// The name of the subcommand.
pub(crate) const TIED: &str = "tied-exec";

/// Becomes another program that dies with the process that asked for it
#[derive(Args)]
pub(crate) struct Tied {
    /// Process that asked for it
    parent: i32,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// The command that starts `program` tied to the life of **this thread**, which must therefore be the main one. Arguments
/// and environment are added as to any other command.
pub(crate) fn tied(program: &OsStr) -> Command {
    // The kernel's link to this very executable: right even if its file was replaced meanwhile, as a rebuild does.
    let mut command = Command::new("/proc/self/exe");
    command.arg(TIED).arg(getpid().as_raw_nonzero().to_string()).arg(program);
    command
}

impl Tied {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.become_program()? {}
    }

    fn become_program(self) -> anyhow::Result<Infallible> {
        set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask for a signal at the parent's death")?;
        // The parent may have died before that: then no signal will ever come.
        anyhow::ensure!(Pid::as_raw(getppid()) == self.parent, "the process that started this one has ended");
        let (program, args) = self.command.split_first().context("no program was named")?;
        Err(Command::new(program).args(args).exec())
            .with_context(|| format!("cannot start {}", program.to_string_lossy()))
    }
}
