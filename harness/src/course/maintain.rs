//! `lockstep course`: for maintainers. Writes the learner's files from the solutions, and tells what the course lacks.

use clap::{Args, Subcommand};
use lockstep_grading::package;

use super::{check, checkout, find_all};
use crate::exit::Code;

/// For maintainers: keeps exercises in step with their solutions
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Write the exercises of these labs anew, from their solutions; what stood there is lost
    Skeleton {
        /// Labs by number or name; all, if none is named
        #[arg(value_name = "LAB")]
        labs: Vec<String>,
    },
    /// Tell what these labs lack: files that are out of step, hints, mutants, sections of the chapter
    Check {
        /// Labs by number or name; all, if none is named
        #[arg(value_name = "LAB")]
        labs: Vec<String>,
    },
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let root = checkout()?;
        match self.what {
            What::Skeleton { labs } => {
                for lab in find_all(&labs)? {
                    package::write(&root, &lab, &package::files(&root, &lab)?)?;
                    println!("labs/{}/exercise is as its solution says", lab.name);
                }
                Ok(Code::Success)
            }
            What::Check { labs } => {
                let labs = find_all(&labs)?;
                let lacks: Vec<String> = labs.iter().flat_map(|lab| check::lacks(&root, lab)).collect();
                lacks.iter().for_each(|lack| println!("{lack}"));
                println!("{} labs: {} faults", labs.len(), lacks.len());
                Ok(if lacks.is_empty() { Code::Success } else { Code::Failure })
            }
        }
    }
}
