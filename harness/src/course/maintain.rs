//! `lockstep course`: for maintainers. Writes the learner's files from the solutions, and tells what the course lacks.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::{Args, Subcommand};
use lockstep_grading::{Lab, package};

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
                    write(&root, &lab)?;
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

/// Writes a lab's exercise.
fn write(root: &Path, lab: &Lab) -> anyhow::Result<()> {
    let folder = root.join("labs").join(lab.name).join("exercise");
    let files = package::files(root, lab)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    for (path, text) in files {
        let path = folder.join(path);
        let told = || format!("cannot write {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(&folder)).with_context(told)?;
        fs::write(&path, text).with_context(told)?;
    }
    Ok(())
}
