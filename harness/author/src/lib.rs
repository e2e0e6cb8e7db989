//! For authors: labs (`lockstep course`), packages of one's own (`lockstep new`), and the files of data
//! sets (`lockstep data`).

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

pub mod course;
mod course_check;
mod data;
mod data_check;
mod data_make;
mod data_text;
mod labs;
pub mod new;
mod new_lab;
pub mod quiz;

use clap::{Args, Subcommand};
use lockstep_checkout::{self as checkout, cargo};
use lockstep_launch::exit;
use lockstep_report as report;

use crate::exit::Code;

pub use course::Page;

/// Make, look at and check the files of data sets
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct DataOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Make(data_make::MakeData),
    Look(data_check::LookAtData),
    Check(data_check::CheckData),
}

impl DataOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Make(options) => options.exec(),
            Command::Look(options) => options.exec(),
            Command::Check(options) => options.exec(),
        }
    }
}
