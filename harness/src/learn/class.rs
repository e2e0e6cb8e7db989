//! `lockstep grade --class`: grades the answers of many learners, and writes a report on all.
//!
//! The class's folder has one folder per learner. It holds a checkout, or only the submitted files:
//! `labs/02-spawn-ddp/exercise/src`, `ex-02/src` or `02-spawn-ddp/src`. Only the tasks' files are taken from it; manifests,
//! build scripts and the program around the answers are the course's. They are compiled and run one after the other, with
//! timeouts and limits. The running program can write only to its own private folder, if the kernel has Landlock.
//!
//! Nothing prevents an answer from reading this account's files or using the network: grade untrusted work under a separate
//! account.

mod submission;
mod workspace;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_grading::exercise::Task;
use lockstep_grading::grade::grade;
use lockstep_grading::runner::{Bounds, writes_are_confined};
use lockstep_grading::{Lab, Options, Runner};

use self::submission::Handed;
use self::workspace::ClassWorkspace;
use crate::exit::{Code, Refused};
use crate::report::{Case, Finding, Screen, Target, Verdict, counts};
use crate::runner::report;

/// Time limit of a call: in any class, some answers hang.
const DEADLINE: Duration = Duration::from_secs(15);

/// The work of many learners.
pub(super) struct Class {
    labs: Vec<Lab>,
    learners: Vec<PathBuf>,
    workspace: ClassWorkspace,
}

impl Class {
    /// The class in `folder`, graded with the course in `root`.
    ///
    /// # Errors
    /// [`Refused`] when the folder holds no learner's work.
    pub(super) fn open(root: PathBuf, folder: PathBuf, labs: Vec<Lab>) -> anyhow::Result<Self> {
        let refused =
            |error: std::io::Error| Refused(format!("cannot read the class in {}: {error}", foreign::path(&folder)));
        let mut learners = Vec::new();
        for entry in fs::read_dir(&folder).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden {
                learners.push(path);
            }
        }
        learners.sort();
        if learners.is_empty() {
            return Err(Refused(format!("{} holds no folder of a learner", foreign::path(&folder))).into());
        }
        Ok(Class { workspace: ClassWorkspace::open(root, &labs)?, labs, learners })
    }

    /// Grades all, prints progress, and writes the reports.
    pub(super) fn grade(self, options: Options, targets: &[Target]) -> anyhow::Result<Code> {
        let screen = Screen::new(targets.iter().any(Target::is_stdout));
        let bounds = Bounds { memory: 4 << 30, ..options.bounds };
        let options = Options { deadline: DEADLINE, bounds, confined: true, ..options };
        let (begin, started) = (Instant::now(), SystemTime::now());
        let mut cases = Vec::new();
        for learner in &self.learners {
            let mut handed = self.cases_of(learner, &options)?;
            handed.iter().for_each(|case| screen.line(line(case)));
            cases.append(&mut handed);
        }
        let verdicts: Vec<Verdict> = cases.iter().map(Case::verdict).collect();
        let title = format!("Lockstep grade: a class of {}", self.learners.len());
        let mut report = report(&title, started, begin.elapsed(), cases);
        if !writes_are_confined() {
            let text = "answers could write outside their folders: this kernel has no Landlock (Linux 5.13)";
            report.not_verified.push(text.into());
            screen.line(format!("warning: {text}"));
        }
        screen.line(format!("{} in {:.0} s, seed {}", counts(&verdicts), report.took.as_secs_f64(), options.seed));
        targets.iter().try_for_each(|target| report.write(target))?;
        Ok(if report.verdict() == Verdict::Failed { Code::Failure } else { Code::Success })
    }

    /// A case for each lab that the learner submitted.
    fn cases_of(&self, learner: &Path, options: &Options) -> anyhow::Result<Vec<Case>> {
        let name = learner.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut cases = Vec::new();
        for lab in &self.labs {
            if let Some(handed) = Handed::find(learner, lab) {
                let text = || format!("cannot grade lab {} of {name}", lab.number());
                cases.push(self.case(&name, lab, &handed, options).with_context(text)?);
            }
        }
        if cases.is_empty() {
            let labs: Vec<_> = self.labs.iter().map(|lab| format!("labs/{}/exercise/src", lab.name)).collect();
            let evidence = format!("none of {} is there", labs.join(", "));
            let finding = Finding { claim: "Answers were handed in".into(), verdict: Verdict::Failed, evidence };
            cases.push(Case {
                name,
                shows: "nothing was handed in".into(),
                findings: vec![finding],
                ..Case::default()
            });
        }
        Ok(cases)
    }

    fn case(&self, name: &str, lab: &Lab, handed: &Handed, options: &Options) -> anyhow::Result<Case> {
        let begin = Instant::now();
        let tasks = lab.tasks()?;
        let built = self.workspace.build(lab, &tasks, handed)?;
        let mut findings = Vec::new();
        for task in &tasks.tasks {
            let (verdict, evidence) = match built.refused.get(&task.name) {
                Some(why) => (Verdict::Failed, why.clone()),
                None => graded(lab, task, &built.submission, options)?,
            };
            findings.push(Finding { claim: format!("{}: {}", task.name, task.title), verdict, evidence });
        }
        let done = findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count();
        Ok(Case {
            name: format!("{name}/{}", lab.number()),
            shows: format!("{done} of {} tasks of lab {} are done", findings.len(), lab.number()),
            findings,
            took: begin.elapsed(),
            seed: Some(options.seed),
            replay: Some(format!("lockstep grade {} --seed {}", lab.number(), options.seed)),
            ..Case::default()
        })
    }
}

fn graded(
    lab: &Lab,
    task: &Task,
    submission: &lockstep_grading::grade::Submission,
    options: &Options,
) -> anyhow::Result<(Verdict, String)> {
    let graded = grade(lab, task, submission, options, &mut Runner::new(&submission.program, options))?;
    Ok(match graded.found {
        Ok(()) => (Verdict::Passed, format!("in {:.1} s", graded.took.as_secs_f64())),
        Err(fault) => {
            let lines = fault.lines().into_iter().filter(|(field, _)| *field != "diagnosis");
            let details: String = lines.map(|(field, text)| format!("; {field} {text}")).collect();
            (Verdict::Failed, format!("{fault}{details}"))
        }
    })
}

fn line(case: &Case) -> String {
    let signs: Vec<String> = case
        .findings
        .iter()
        .map(|finding| {
            let name = finding.claim.split(':').next().unwrap_or(&finding.claim);
            format!("{} {name}", finding.verdict.symbol())
        })
        .collect();
    format!("{:24} {}  ({:.1} s)", case.name, signs.join("  "), case.took.as_secs_f64())
}
