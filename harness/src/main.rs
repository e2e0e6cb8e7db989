//! The `lockstep` command. It does not link libtorch: it starts the labs as programs and reads the files that they write.

mod bench;
mod cargo;
mod checks;
mod cli;
mod cluster;
mod course;
mod doctor;
mod exit;
mod history;
mod inject;
mod lab_run;
mod launch;
mod learn;
mod process;
mod render;
mod report;
mod runner;
mod stacks;
mod tour;
mod verify;

fn main() -> std::process::ExitCode {
    exit::main(|| <cli::Cli as clap::Parser>::parse().exec())
}
