//! `lockstep course`: for maintainers. Writes the exercises from the solutions, and reports what the course lacks.

use std::path::Path;

use clap::{Args, Subcommand};
use lockstep_grading::{Lab, package};

use super::{answers, begin, check, checkout, find, in_checkout, new, reference};
use crate::exit::Code;

/// For maintainers: keeps exercises in step with their solutions
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make a lab with one task: a program that runs, an exercise that is graded, a stub of a chapter
    New {
        /// Its number and its name, as its folder is called: 09-name
        #[arg(value_name = "NN-NAME")]
        name: String,
    },
    /// Write the exercises of these labs anew, from their solutions; what stood there is lost
    Skeleton {
        /// Labs by number or name; all, if none is named
        #[arg(value_name = "LAB")]
        labs: Vec<String>,
    },
    /// Grade answers that the course itself keeps: of one the finding, as a learner reads it; of several a table
    Try {
        /// The lab, by number or name
        lab: String,
        /// A task's own answer (TASK) or one of its mutants (TASK/NAME); all wrong ones, if none is named
        #[arg(value_name = "ANSWER")]
        answers: Vec<String>,
        /// Draw the inputs from this number
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Write the book's reference pages anew, from the program itself
    Reference,
    /// Tell what these labs lack: files that are out of step, hints, mutants, sections of the chapter
    Check {
        /// Labs by number or name; all, if none is named
        #[arg(value_name = "LAB")]
        labs: Vec<String>,
        /// Also build the exercises, and see that each task is found to be not started
        #[arg(long)]
        build: bool,
    },
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let root = checkout()?;
        match self.what {
            What::New { name } => {
                new::make(&root, &name)?;
                Ok(Code::Success)
            }
            What::Skeleton { labs } => {
                for lab in in_checkout(&root, &labs)? {
                    package::write(&root, &lab, &package::files(&root, &lab)?)?;
                    println!("labs/{}/exercise is as its solution says", lab.name);
                }
                Ok(Code::Success)
            }
            What::Try { lab, answers, seed } => {
                answers::try_out(&find(&lab)?, &answers, &lockstep_grading::Options::seeded(seed))
            }
            What::Reference => {
                reference::write(&root)?;
                Ok(Code::Success)
            }
            What::Check { labs, build } => check(&root, &in_checkout(&root, &labs)?, build),
        }
    }
}

fn check(root: &Path, labs: &[Lab], build: bool) -> anyhow::Result<Code> {
    let mut faults: Vec<String> = labs.iter().flat_map(|lab| check::lacks(root, lab)).collect();
    faults.extend(reference::stale(root));
    if build {
        let found = begin::look(root, labs)?;
        faults.extend(found.faults);
        found.not_verified.iter().for_each(|what| println!("not verified here: {what}"));
    }
    faults.iter().for_each(|fault| println!("{fault}"));
    println!("{} labs: {} faults", labs.len(), faults.len());
    Ok(if faults.is_empty() { Code::Success } else { Code::Failure })
}
