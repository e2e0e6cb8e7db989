//! The `lockstep` command. It does not link libtorch: it starts the labs as programs and reads the files that they write.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

mod author;
mod bench;
mod cargo;
mod cli;
mod exit;
mod labs;
mod learn;
mod prove;
mod report;
mod site;
mod stacks;

fn main() -> std::process::ExitCode {
    // Before anything else: building the command line takes time.
    if let Some(code) = lockstep_grading::learner::helper() {
        return code;
    }
    exit::main(|| cli::Cli::of_this_process().exec())
}
