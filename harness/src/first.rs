//! The command line of the first build, which has the tour and the launcher that it runs on. Asked for anything else, the program
//! compiles the whole of itself, which takes its place in cargo's output folder, and becomes it. The next call starts the whole at once.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use clap::{Parser, Subcommand};
use lockstep_checkout::cargo::{TASKS, plain_command};
use lockstep_checkout::checkout_around;
use lockstep_launch::exit::{Code, Refused};
use lockstep_process::check_room;
use lockstep_prove::tour;
use lockstep_report::Screen;

use crate::stacks;

/// What `--version` adds, by which `scripts/run.sh` tells that another tour needs no more.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (first build)");

#[derive(Parser)]
#[command(name = "lockstep", version = VERSION, disable_help_flag = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Built>,
}

/// What the first build has.
#[derive(Subcommand)]
enum Built {
    Run(Box<lockstep_launch::command::RunOptions>),
    Stacks(stacks::StacksOptions),
    Tour(tour::TourOptions),
}

impl Cli {
    /// The command line of this process; without a command if it asks for what the first build lacks.
    pub(crate) fn of_this_process() -> Self {
        let first = std::env::args().nth(1);
        match first.as_deref() {
            Some("run" | "stacks" | "tour" | "--version" | "-V") => Self::parse(),
            _ => Cli { command: None },
        }
    }

    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Some(Built::Run(options)) => options.exec(become_whole), // it asks for all subcommands where a shell completes them
            Some(Built::Stacks(options)) => options.exec(),
            Some(Built::Tour(options)) => options.exec(),
            None => become_whole(),
        }
    }
}

/// Compiles the whole program and becomes it, with the same arguments.
///
/// Errors: [`Refused`] if it cannot be compiled, with the command to try; the system has no room for cargo's processes, or cannot start it.
fn become_whole<T>() -> anyhow::Result<T> {
    let this = std::env::current_exe().context("cannot find this program's own path")?;
    let lacks = "this is the first build of lockstep, with `tour`, `run` and `stacks`";
    let [Some(checkout), Some(output)] = [checkout_around(&this), this.ancestors().nth(2)] else {
        return Err(Refused(format!("{lacks}: build the rest with `cargo build` in the course's checkout")).into());
    };
    Screen::new(true).line(format!("lockstep: {lacks}; compiling the rest, once: a minute or two"));
    check_room(TASKS)?; // without it, rustup's cargo panics
    let running = identity(Path::new("/proc/self/exe"));
    let mut cargo = plain_command(checkout, &["build", "--package", env!("CARGO_PKG_NAME")]);
    let status = cargo.env("CARGO_TARGET_DIR", output).status().context("cannot start cargo: is it on PATH?")?;
    if !status.success() || identity(&this) == running {
        let advice = format!("run `cargo build` in {}", checkout.display());
        return Err(Refused(format!("the rest of lockstep was not built (see cargo's output above): {advice}")).into());
    }
    Err(Command::new(&this).args(std::env::args_os().skip(1)).exec())
        .context("cannot start the program that was just built")
}

/// Tells a file from the one that replaces it.
fn identity(file: &Path) -> Option<(u64, i64, i64)> {
    file.metadata().ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec()))
}
