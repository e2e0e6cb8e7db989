//! The `lockstep` command. It does not link libtorch: it starts the labs as programs and reads the files that they write.
//!
//! Its first build has only what the tour needs (`--no-default-features`), since everybody waits for it; that program becomes the whole
//! one when it is asked for more: [`first`].

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints
#![cfg_attr(not(feature = "whole"), allow(dead_code, unused_imports))] // what the tour leaves out uses it

#[cfg(feature = "whole")]
mod cli;
mod exit_codes;
#[cfg(not(feature = "whole"))]
mod first;
#[cfg(feature = "whole")]
mod reference;
mod stacks;
#[cfg(feature = "whole")]
mod variables;

#[cfg(feature = "whole")]
use {cli::Cli, lockstep_grading::learner::helper};
#[cfg(not(feature = "whole"))]
use {first::Cli, lockstep_process::internal_main as helper};

fn main() -> std::process::ExitCode {
    // Before anything else: building the command line takes time.
    if let Some(code) = helper() {
        return code;
    }
    lockstep_launch::exit::main(|| Cli::of_this_process().exec())
}
