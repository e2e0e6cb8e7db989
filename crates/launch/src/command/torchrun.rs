//! A program that is the launcher and nothing else. Its command line is torchrun's, without a subcommand.

use std::process::ExitCode;

use clap::Parser;

use super::Options;
use crate::exit;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
}

/// The `main` of a launcher: reads this process's arguments, runs the job, prints an error if there is one, and returns
/// the exit code, as `--help` lists them.
///
/// Call it on the main thread, before anything else: the executable starts itself again to tie the workers' lives to
/// its own, and the kernel ends workers with the thread that started them.
pub fn torchrun() -> ExitCode {
    lockstep_process::helper_main().unwrap_or_else(|| exit::main(|| CommandLine::parse().options.exec()))
}
