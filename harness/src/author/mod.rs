//! For authors: labs and the book's reference pages (`lockstep course`), packages of one's own (`lockstep new`), and the files of data
//! sets (`lockstep data`).

pub(crate) mod course;
mod course_check;
mod data;
mod data_check;
mod data_make;
mod data_text;
pub(crate) mod new;
mod new_lab;
pub(crate) mod reference;
mod variables;

use clap::{Args, Subcommand};

use crate::exit::Code;

/// Make, look at and check the files of data sets
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct DataOptions {
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
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Make(options) => options.exec(),
            Command::Look(options) => options.exec(),
            Command::Check(options) => options.exec(),
        }
    }
}
