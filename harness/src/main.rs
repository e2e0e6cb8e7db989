//! The `lockstep` command. It does not link libtorch: it starts the labs as programs and reads the files that they write.

mod bench;
mod cargo;
mod checks;
mod cli;
mod cluster;
mod course;
mod data;
mod doctor;
mod exit;
mod history;
mod inject;
mod lab_run;
mod learn;
mod new;
mod render;
mod report;
mod runner;
mod stacks;
mod tour;
mod verify;

fn main() -> std::process::ExitCode {
    // Before anything else: building the command line takes time.
    if let Some(code) = lockstep_grading::learner::helper() {
        return code;
    }
    exit::main(|| cli::Cli::of_this_process().exec())
}
