//! Starts ranks of the learner's program and watches them to their end.
//!
//! Every rank is a process of its own, in a private folder, with a store on a free port that lives here: a crash or a hang of
//! the answer cannot take the grader along. What the ranks start ends with them.

mod bounds;
mod confine;
mod desync_report;
mod judge;
mod patience;
mod printed;
mod scene;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use lockstep_contract::exercise::{Answer, Call};
use lockstep_process::{Exit, Workers};
use rand_mt::Mt64;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Fault, Options};
use judge::{died, first_fault, leak, misunderstood};
use scene::{Played, Scene};

pub use bounds::Bounds;
pub(crate) use confine::exec as confined;
pub use confine::{CONFINED, writes_are_confined};

/// Where one task of one learner is graded.
pub struct Stage {
    program: PathBuf,
    /// The task, or a slash and one of the course's own answers behind it.
    task: String,
    options: Options,
    workers: Option<Workers>,
}

/// What is different about a call.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// How many ranks; 0 means 1.
    pub ranks: usize,
    /// Variables of all ranks, beside those of a launcher.
    pub env: Vec<(String, String)>,
    /// The folder that ranks start in; a private one if none is named.
    pub folder: Option<PathBuf>,
}

/// How a rank's part in a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// It left an answer.
    Answered(Answer),
    /// Its process ended without one.
    Died(Exit),
    /// It was still at work when the call was over.
    Stopped,
}

/// The results of all ranks.
#[derive(Clone, Debug)]
pub struct Outputs<O>(Vec<Vec<O>>);

impl Stage {
    /// For `task` of the learner's `program`.
    pub fn new(program: &Path, task: &str, options: &Options) -> Self {
        Stage { program: program.into(), task: task.into(), options: *options, workers: None }
    }

    /// Random numbers for inputs: the same for the same seed.
    pub fn random(&self) -> Inputs {
        Inputs(Mt64::new(self.options.seed))
    }

    /// Applies the answer on `ranks` ranks to each input, one after the other.
    ///
    /// # Errors
    /// A [`Fault`], when a rank did not get through; a fault of the machine or the course.
    pub fn call<I: Serialize, O: DeserializeOwned>(
        &mut self,
        ranks: usize,
        inputs: &[I],
    ) -> anyhow::Result<Outputs<O>> {
        self.call_with(&Setting { ranks, ..Setting::default() }, inputs)
    }

    /// The same in another setting.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_with<I, O>(&mut self, setting: &Setting, inputs: &[I]) -> anyhow::Result<Outputs<O>>
    where
        I: Serialize,
        O: DeserializeOwned,
    {
        let (ends, printed) = self.judged(setting, inputs)?;
        let death = ends.iter().enumerate().find_map(|(rank, end)| match end {
            End::Died(exit) => Some(died(exit).on_rank(rank)),
            _ => None,
        });
        if let Some(death) = death {
            return Err(Fault { printed, ..death }.into());
        }
        ends.into_iter().map(|end| outputs(end, inputs.len())).collect::<anyhow::Result<_>>().map(Outputs)
    }

    /// The same for calls in which ranks are meant to die: how each ended.
    ///
    /// # Errors
    /// A [`Fault`] for a hang, a panic, an error, and processes that were left behind; not for a death.
    pub fn play<I: Serialize>(&mut self, setting: &Setting, inputs: &[I]) -> anyhow::Result<Vec<End>> {
        self.judged(setting, inputs).map(|(ends, _)| ends)
    }

    /// How each rank ended, and what they printed.
    fn judged<I: Serialize>(&mut self, setting: &Setting, inputs: &[I]) -> anyhow::Result<(Vec<End>, Vec<String>)> {
        let inputs = inputs.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        let played = self.run(setting, &Call { task: self.task.clone(), inputs })?;
        if let Some(why) = played.ends.iter().find_map(misunderstood) {
            bail!("the task {} does not fit its grading: {why}", self.task);
        }
        match played.fault.or_else(|| first_fault(&played.ends)).or_else(|| leak(&played.orphans)) {
            Some(fault) => Err(Fault { printed: played.printed, ..fault }.into()),
            None => Ok((played.ends, played.printed)),
        }
    }

    fn run(&mut self, setting: &Setting, call: &Call) -> anyhow::Result<Played> {
        let folder = tempfile::Builder::new().prefix("lockstep-grade-").tempdir().context("cannot make a folder")?;
        let ranks = setting.ranks.max(1);
        let workers = match &mut self.workers {
            Some(workers) => workers,
            none => none.insert(Workers::new().context("cannot start processes")?),
        };
        workers.register_cleanup(folder.path());
        let scene = Scene::set(&self.program, self.options.confined, &folder, setting, call)?;
        let pids = (0..ranks).map(|rank| workers.start(rank, scene.spec(rank)?)).collect::<Result<Vec<_>, _>>();
        let played = pids.map_err(Into::into).and_then(|pids| scene.watch(workers, &pids, &self.options));
        if played.is_err() {
            workers.kill();
        }
        workers.unregister_cleanup(folder.path());
        played.with_context(|| format!("cannot run {}", self.program.display()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.close();
        }
    }
}

impl<O> Outputs<O> {
    /// What `rank` made of input `case`.
    pub fn of(&self, rank: usize, case: usize) -> &O {
        &self.0[rank][case]
    }

    /// All ranks' results for input `case`, by rank.
    pub fn all(&self, case: usize) -> impl Iterator<Item = &O> {
        self.0.iter().map(move |outputs| &outputs[case])
    }

    /// How many ranks there were.
    pub fn ranks(&self) -> usize {
        self.0.len()
    }
}

/// Random inputs.
pub struct Inputs(Mt64);

impl Inputs {
    /// From `range.start` to below `range.end`.
    pub fn below(&mut self, range: std::ops::Range<usize>) -> usize {
        range.start + (self.0.next_u64() % range.len().max(1) as u64) as usize
    }

    /// Numbers between -4 and 4 in steps of 1/8: sums of some are exact, in single precision too.
    pub fn numbers(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.below(0..65) as f64 / 8.0 - 4.0).collect()
    }

    /// A seed for something else.
    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }
}

fn outputs<O: DeserializeOwned>(end: End, inputs: usize) -> anyhow::Result<Vec<O>> {
    match end {
        End::Answered(Answer::Done { outputs }) => {
            anyhow::ensure!(outputs.len() == inputs, "{} results for {inputs} inputs", outputs.len());
            let outputs: Result<_, _> = outputs.into_iter().map(serde_json::from_value).collect();
            outputs.context("a result is not of the task's type")
        }
        other => bail!("a call ended with {other:?}"),
    }
}
