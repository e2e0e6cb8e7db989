//! `lockstep course`, for maintainers: makes labs, writes exercises from their solutions, and reports what the course lacks.

use std::path::Path;

use clap::{Args, Subcommand};
use lockstep_grading::{Lab, Language, package};

use crate::checkout::checkout;
use crate::exit::Code;
use crate::labs::{find, in_checkout};
use crate::report::{Screen, count};
use crate::{course_check, new_lab, quiz};

/// Keep exercises in step with their solutions, and make labs
#[derive(Args)]
pub struct CourseOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Create a lab with one task: a program that runs, an exercise that is graded, a stub of a chapter
    New {
        /// Its number and name, which name its folder: 09-name
        #[arg(value_name = "NN-NAME")]
        name: String,
    },
    /// Regenerate the exercises of these labs from their solutions; the current files are lost
    Skeleton {
        /// Labs by number or name [default: all]
        #[arg(value_name = "LAB")]
        labs: Vec<String>,
    },
    /// Grade the course's own answers: prints the finding of a single one, or a table of several
    Try {
        /// The lab, by number or name
        lab: String,
        /// A task's own answer (TASK) or another of its answers (TASK/NAME) [default: all wrong ones]
        #[arg(value_name = "ANSWER")]
        answers: Vec<String>,
        /// Seed of the inputs
        #[arg(long)]
        seed: Option<u64>,
        /// Grade these answers with the inputs of the seeds 1 to N, and print whether each was judged rightly
        #[arg(long, value_name = "N", conflicts_with = "seed", requires = "answers")]
        seeds: Option<u64>,
        /// The answers in Python
        #[arg(long)]
        python: bool,
    },
    /// Print a reference page of the book as Markdown; the built book has them all
    Reference { page: Page },
    /// Print multiple-choice questions, with the reasons for each choice, in GIFT: Moodle imports it
    Quiz {
        /// Only those of this route through the course: morning, half-day, day or whole
        #[arg(long, value_name = "NAME")]
        route: Option<String>,
    },
    /// List what these labs lack: files that are out of date, hints, wrong answers, sections of the chapter
    Check {
        /// Labs by number or name [default: all]
        #[arg(value_name = "LAB")]
        labs: Vec<String>,
        /// Also build the exercises, and check that each task is graded as not started
        #[arg(long)]
        build: bool,
        /// Also grade all answers, wrong and right, with the inputs of the seeds 1 to N
        #[arg(long, value_name = "N")]
        seeds: Option<u64>,
        /// With --seeds: only the answers to this task
        #[arg(long, value_name = "TASK", requires = "seeds")]
        task: Option<String>,
        /// With --seeds: the answers in Python
        #[arg(long, requires = "seeds")]
        python: bool,
    },
}

/// A reference page of the book, by its name.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Page {
    /// The help of every command
    Commands,
    ExitCodes,
    /// What lockstep doctor finds
    Faults,
    /// What the verdict on a failed run names
    FailureCauses,
    /// What lockstep render --check finds
    ScriptMistakes,
    /// Multiple-choice questions for each route, with their answers
    Questions,
    /// The fields of a site profile
    SiteProfiles,
    /// The exercises' tasks, with their minutes
    Tasks,
    /// Environment variables
    Variables,
}

impl CourseOptions {
    /// `text` is that of a reference page, as the whole program writes it.
    pub fn exec(self, text: impl FnOnce(Page) -> anyhow::Result<String>) -> anyhow::Result<Code> {
        let printed = match &self.what {
            What::Reference { page } => Some(text(*page)?),
            What::Quiz { route } => Some(quiz::gift(route.as_deref())?),
            _ => None,
        };
        if let Some(text) = printed {
            Screen::new(false).line(text.trim_end());
            return Ok(Code::Success);
        }
        let root = checkout()?;
        match self.what {
            What::Reference { .. } | What::Quiz { .. } => unreachable!("printed above, since they need no checkout"),
            What::New { name } => {
                new_lab::make(&root, &name)?;
                Ok(Code::Success)
            }
            What::Skeleton { labs } => {
                let screen = Screen::new(false);
                for lab in in_checkout(&root, &labs)? {
                    package::write_all(&root, &lab)?;
                    screen.line(format_args!("wrote labs/{}/exercise from its solution", lab.name));
                }
                Ok(Code::Success)
            }
            What::Try { lab, answers, seeds: Some(seeds), python, .. } => {
                course_check::try_at_seeds(&root, &find(&lab)?, &answers, chosen(python), seeds)
            }
            What::Try { lab, answers, seed, python, .. } => course_check::try_out(
                &root,
                &find(&lab)?,
                &answers,
                chosen(python),
                &lockstep_grading::Options::seeded(seed),
            ),
            What::Check { labs, build, seeds, task, python } => {
                let seeds = seeds.map(|seeds| (seeds, task, chosen(python)));
                check(&root, &in_checkout(&root, &labs)?, build, seeds)
            }
        }
    }
}

fn chosen(python: bool) -> Language {
    if python { Language::Python } else { Language::Rust }
}

fn check(
    root: &Path,
    labs: &[Lab],
    build: bool,
    seeds: Option<(u64, Option<String>, Language)>,
) -> anyhow::Result<Code> {
    let screen = Screen::new(false);
    let mut faults: Vec<String> = labs.iter().flat_map(|lab| course_check::lacks(root, lab)).collect();
    if build {
        let found = course_check::beginning(root, labs)?;
        faults.extend(found.faults);
        found.not_verified.iter().for_each(|what| screen.line(format_args!("not verified here: {what}")));
    }
    if let Some((seeds, task, language)) = seeds {
        faults.extend(course_check::all_at_seeds(root, labs, seeds, task.as_deref(), language, &screen)?);
    }
    faults.iter().for_each(|fault| screen.line(fault));
    screen.line(format_args!("{}: {}", count(labs.len(), "lab"), count(faults.len(), "fault")));
    Ok(if faults.is_empty() { Code::Success } else { Code::Failure })
}
