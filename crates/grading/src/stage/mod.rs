//! Starts ranks of the learner's program and watches them to their end.
//!
//! Every rank is a process of its own, in a private folder, with a store on a free port that lives here: a crash or a hang of
//! the answer cannot take the grader along. What the ranks start ends with them.

mod bounds;
mod confine;
mod printed;
mod roll;
mod stillness;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lockstep_contract::exercise::{ANSWERS, Answer, Answers, CALL, Call};
use lockstep_launch::process::{Died, Exit, Sink, Spec, Stdin, Stray, Workers};
use rand_mt::Mt64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{Fault, Options, Verdict};
use stillness::{STILL, Stillness};

pub use bounds::Bounds;
pub(crate) use confine::exec as confined;
pub use confine::{CONFINED, writes_are_confined};

/// How often the ranks' answers are looked for.
const LOOK: Duration = Duration::from_millis(5);
/// How often the ranks' bounds are looked at.
const MEASURE: Duration = Duration::from_millis(100);
/// After one rank has failed, how long another may take to tell that it had not even been started.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How long ranks may take to end that were let go or killed.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a launcher, or the developer's own shell, may have set.
const FOREIGN: [&str; 7] = [
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCH_DISTRIBUTED_DEBUG",
    "RUST_BACKTRACE",
    "LOCKSTEP_EVENTS",
    "LOCKSTEP_FAULTS",
];

/// Where one task of one learner is graded.
pub struct Stage {
    program: PathBuf,
    /// The task, or a slash and one of the course's own answers behind it.
    task: String,
    options: Options,
    runtime: Runtime,
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

/// How a call ended.
struct Played {
    ends: Vec<End>,
    /// A fault of the whole: too late, too much.
    fault: Option<Fault>,
    strays: Vec<Stray>,
    printed: Vec<String>,
}

impl Stage {
    /// For `task` of the learner's `program`.
    ///
    /// # Errors
    /// The system's own.
    pub fn new(program: &Path, task: &str, options: &Options) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Stage { program: program.into(), task: task.into(), options: *options, runtime, workers: None })
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
        match played.fault.or_else(|| first_fault(&played.ends)).or_else(|| leak(&played.strays)) {
            Some(fault) => Err(Fault { printed: played.printed, ..fault }.into()),
            None => Ok((played.ends, played.printed)),
        }
    }

    fn run(&mut self, setting: &Setting, call: &Call) -> anyhow::Result<Played> {
        let folder = tempfile::Builder::new().prefix("lockstep-grade-").tempdir().context("cannot make a folder")?;
        let ranks = setting.ranks.max(1);
        let Stage { runtime, workers, .. } = self;
        let _inside = runtime.enter();
        let workers = match workers {
            Some(workers) => workers,
            none => none.insert(Workers::new().context("cannot start processes")?),
        };
        workers.entrust(folder.path());
        let scene = Scene::set(&self.program, self.options.confined, &folder, setting, call)?;
        let played = runtime.block_on(async {
            let mut pids = Vec::new();
            for rank in 0..ranks {
                pids.push(workers.start(rank, scene.spec(rank)?)?);
            }
            scene.watch(workers, &pids, &self.options).await
        });
        if played.is_err() {
            workers.kill();
        }
        workers.release(folder.path());
        played.with_context(|| format!("cannot run {}", self.program.display()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        if let Some(workers) = self.workers.take() {
            workers.close();
        }
    }
}

/// One call: its files and its store.
struct Scene<'a> {
    program: &'a Path,
    folder: &'a Path,
    setting: &'a Setting,
    confined: bool,
    ranks: usize,
    answers: Answers,
    store: tcpstore::Server,
}

impl<'a> Scene<'a> {
    fn set(
        program: &'a Path,
        confined: bool,
        folder: &'a TempDir,
        setting: &'a Setting,
        call: &Call,
    ) -> io::Result<Self> {
        let folder = folder.path();
        let answers = Answers(folder.join("answers"));
        std::fs::create_dir(&answers.0)?;
        std::fs::create_dir(folder.join("work"))?;
        call.write(&folder.join("call"))?;
        let store = tcpstore::Server::start(TcpListener::bind("127.0.0.1:0")?, tcpstore::Options::default())?;
        Ok(Scene { program, folder, setting, confined, ranks: setting.ranks.max(1), answers, store })
    }

    fn spec(&self, rank: usize) -> io::Result<Spec> {
        let printed = File::create(printed::file(self.folder, rank))?;
        let own = |name: &str, value: &dyn ToString| (name.into(), Some(value.to_string().into()));
        let mut env: Vec<(OsString, Option<OsString>)> = FOREIGN.map(|name| (name.into(), None)).into();
        env.extend([
            own("RANK", &rank),
            own("LOCAL_RANK", &rank),
            own("WORLD_SIZE", &self.ranks),
            own("LOCAL_WORLD_SIZE", &self.ranks),
            own("MASTER_ADDR", &"127.0.0.1"),
            own("MASTER_PORT", &self.store.local_addr().port()),
            own("TORCHELASTIC_USE_AGENT_STORE", &"True"),
            own("GLOO_SOCKET_IFNAME", &"lo"),
            own("OMP_NUM_THREADS", &1),
            (CALL.into(), Some(self.folder.join("call").into())),
            (ANSWERS.into(), Some(self.answers.0.clone().into())),
        ]);
        env.extend(self.setting.env.iter().map(|(name, value)| (name.into(), Some(value.into()))));
        let folder = self.setting.folder.clone().unwrap_or_else(|| self.folder.join("work"));
        let (program, args) = self.command()?;
        Ok(Spec {
            program,
            args,
            env,
            folder: Some(folder),
            stdin: Stdin::Null,
            stdout: Sink::Fd(printed.try_clone()?.into()),
            stderr: Sink::Fd(printed.into()),
        })
    }

    /// The program itself, or this executable that confines it.
    fn command(&self) -> io::Result<(OsString, Vec<OsString>)> {
        if !self.confined {
            return Ok((self.program.into(), Vec::new()));
        }
        let mut args: Vec<OsString> =
            confine::words([self.folder, self.setting.folder.as_deref().unwrap_or(self.folder)]).into();
        args.push(self.program.into());
        Ok((std::env::current_exe()?.into(), args))
    }

    async fn watch(&self, workers: &mut Workers, pids: &[u32], options: &Options) -> anyhow::Result<Played> {
        let (begin, mut measured) = (Instant::now(), Instant::now());
        let mut ends: Vec<Option<End>> = vec![None; self.ranks];
        let mut failed: Option<Instant> = None;
        let (mut fault, mut still) = (None, Stillness::default());
        while ends.iter().any(Option::is_none) && fault.is_none() {
            self.look(&mut ends, workers).await?;
            let now = Instant::now();
            if failed.is_none() && ends.iter().flatten().any(|end| !is_done(end)) {
                failed = Some(now);
            }
            if failed.is_some_and(|failed| now - failed >= AFTERMATH) {
                break;
            }
            if now - begin >= options.deadline {
                fault = Some(self.hang(&ends, &format!("not finished after {} s", options.deadline.as_secs())));
            } else if now - measured >= MEASURE {
                (measured, fault) = (now, options.bounds.broken(self.folder));
                // A rank that is done only waits for the others.
                let busy: Vec<u32> =
                    pids.iter().zip(&ends).filter(|(_, end)| end.is_none()).map(|(pid, _)| *pid).collect();
                if fault.is_none() && still.lasts(&busy, now) {
                    fault = Some(self.hang(&ends, &format!("nobody has done anything for {} s", STILL.as_secs())));
                }
            }
        }
        if ends.iter().any(Option::is_none) {
            // Nobody waits for them any more, and they would not go by themselves.
            workers.kill();
        }
        let strays = self.end(workers).await?;
        let ends = ends.into_iter().map(|end| end.unwrap_or(End::Stopped)).collect();
        Ok(Played { ends, fault, strays, printed: printed::last_lines(self.folder, self.ranks) })
    }

    /// Takes note of answers, and of deaths before one.
    async fn look(&self, ends: &mut [Option<End>], workers: &mut Workers) -> anyhow::Result<()> {
        // Looked for before the deaths: an answer was left before its process died.
        let died = tokio::time::timeout(LOOK, workers.next()).await;
        for (rank, end) in ends.iter_mut().enumerate().filter(|(_, end)| end.is_none()) {
            *end = self.answers.read(rank)?.map(End::Answered);
        }
        if let Ok(died) = died {
            let Died { index, exit, .. } = died?;
            ends[index].get_or_insert(End::Died(exit));
        }
        Ok(())
    }

    /// Lets all ranks go and ends those that do not; what they left behind.
    async fn end(&self, workers: &mut Workers) -> anyhow::Result<Vec<Stray>> {
        self.answers.dismiss()?;
        let all_done = |workers: &Workers| workers.alive().is_empty();
        let mut until = Instant::now() + FAREWELL;
        let mut killed = false;
        while !all_done(workers) {
            match tokio::time::timeout(LOOK, workers.next()).await {
                Ok(died) => drop(died?),
                Err(_) if Instant::now() < until => {}
                Err(_) if killed => bail!("a rank did not die within {} s of a kill", FAREWELL.as_secs()),
                Err(_) => {
                    workers.kill();
                    (killed, until) = (true, Instant::now() + FAREWELL);
                }
            }
        }
        Ok(workers.sweep(FAREWELL).await.killed)
    }

    fn hang(&self, ends: &[Option<End>], what: &str) -> Fault {
        let told = roll::call(&self.store, self.ranks);
        let line = |(rank, end): (usize, &Option<End>)| match end {
            Some(End::Answered(_)) => format!("rank {rank}: has finished"),
            Some(_) => format!("rank {rank}: has died"),
            None => format!("rank {rank}: {}", told.get(&rank).map_or("does not answer", String::as_str)),
        };
        let diagnosis = format!("{what}; where each rank was stands below");
        Fault { table: ends.iter().enumerate().map(line).collect(), ..Fault::new(Verdict::Hang, diagnosis) }
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

fn is_done(end: &End) -> bool {
    matches!(end, End::Answered(Answer::Done { .. }))
}

fn misunderstood(end: &End) -> Option<String> {
    match end {
        End::Answered(Answer::Misunderstood { why }) => Some(why.clone()),
        _ => None,
    }
}

/// What the ranks' own words show: a `todo!()` before a panic or an error, since it explains those of other ranks.
fn first_fault(ends: &[End]) -> Option<Fault> {
    let faults: Vec<Fault> = ends.iter().enumerate().filter_map(|(rank, end)| of_end(rank, end)).collect();
    let unfinished = faults.iter().position(|fault| fault.verdict == Verdict::NotStarted);
    faults.into_iter().nth(unfinished.unwrap_or(0))
}

fn of_end(rank: usize, end: &End) -> Option<Fault> {
    match end {
        End::Answered(Answer::NotStarted { what }) => {
            Some(Fault::new(Verdict::NotStarted, format!("the answer is still a `todo!()`: {what}")))
        }
        End::Answered(Answer::Panicked { message, place }) => {
            let at = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
            Some(Fault::new(Verdict::Crash, format!("the answer panicked{at}: {message}")).on_rank(rank))
        }
        End::Answered(Answer::Failed { error }) => {
            Some(Fault::new(Verdict::Crash, format!("the answer returned an error: {error}")).on_rank(rank))
        }
        End::Answered(Answer::Done { .. } | Answer::Misunderstood { .. }) | End::Died(_) | End::Stopped => None,
    }
}

fn leak(strays: &[Stray]) -> Option<Fault> {
    let name = |stray: &Stray| format!("{} (process {})", stray.name, stray.pid);
    let names: Vec<String> = strays.iter().map(name).collect();
    let told = format!("the answer left running what it had started: {}; it was ended", names.join(", "));
    (!names.is_empty()).then(|| Fault::new(Verdict::LeakedProcess, told))
}

/// The signals by which the kernel ends who goes beyond a limit (signal(7)), with what it was on.
const BEYOND: [(i32, &str); 2] = [(24, "computed for longer"), (25, "wrote or printed more to one file")];

fn died(exit: &Exit) -> Fault {
    let beyond = BEYOND.iter().find(|(signal, _)| *exit == Exit::Signal(*signal));
    if let Some((_, what)) = beyond {
        return Fault::new(Verdict::OutOfBounds, format!("the rank was ended with {exit}: it {what} than is allowed"));
    }
    let hint = match exit {
        Exit::Code(_) => "something in it ends the process",
        Exit::Signal(_) | Exit::NotStarted(_) => "what it printed last stands below",
    };
    Fault::new(Verdict::Crash, format!("the rank's process ended before the answer did, with {exit}: {hint}"))
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
