//! The `lockstep` command. It links no libtorch: it starts the labs as programs and reads the files that they leave.

mod cargo;
mod checks;
mod cli;
mod course;
mod exit;
mod history;
mod inject;
mod launch;
mod learn;
mod process;
mod render;
mod report;
mod run;
mod runner;
mod tour;
mod verify;

fn main() -> std::process::ExitCode {
    exit::main(|| <cli::Cli as clap::Parser>::parse().exec())
}
