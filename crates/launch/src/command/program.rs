//! The program `lockstep-agent`: `lockstep run` and nothing else.
//!
//! An agent lives as long as its job, and the whole `lockstep` command is several times as large in memory. So `lockstep run` becomes this
//! program, which is next to it.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

use super::Options;
use crate::exit;

/// The file name of the program.
pub const PROGRAM: &str = "lockstep-agent";
/// The subcommand that it has.
const RUN: &str = "run";

/// The part of the `lockstep` command's line that this program reads. It is called with all words of the whole command, so that help
/// and errors are the same.
#[derive(Parser)]
#[command(name = "lockstep")]
struct CommandLine {
    #[command(subcommand)]
    command: Only,
}

#[derive(Subcommand)]
enum Only {
    Run(Box<Options>),
}

/// The `main` of the program.
pub fn main() -> ExitCode {
    if let Some(code) = lockstep_process::helper_main() {
        return code;
    }
    // Who looks for `lockstep` in a list of processes finds it.
    let _ = rustix::thread::set_name(c"lockstep");
    exit::main(|| {
        let Only::Run(options) = CommandLine::parse().command;
        options.exec()
    })
}

/// Becomes the program if this process is `lockstep run`, with the same process id, arguments and environment. Returns if it is something
/// else, or if the program is not there: then this process must run the job itself.
pub fn become_program() {
    let mut args = std::env::args_os();
    let Some(own_name) = args.next() else { return };
    if args.next().is_none_or(|command| command != RUN) {
        return;
    }
    if let Some(program) = lockstep_process::program_beside(PROGRAM) {
        // If this fails, the job runs in this process.
        let _ = Command::new(program).arg0(own_name).arg(RUN).args(args).exec();
    }
}
