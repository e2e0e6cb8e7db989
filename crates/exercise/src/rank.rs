//! One rank: reads the grader's call, runs the task, and leaves the answer.
//!
//! Also how an answer spends its time. The rank shows other ranks that its answer sleeps: an answer must not pass because it guessed how long
//! the others need, so while it sleeps, the ranks for which it waits take longer. And the rank measures how long an answer took on a busy machine.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use c10d::ProcessGroup;
use lockstep::{LaunchEnv, init_process_group};
use lockstep_contract::background::SLEEP_WATCH;
use lockstep_contract::error_file::panic_text;
use lockstep_contract::panic_place;
use lockstep_process::Forking;
use lockstep_process::proc::{Schedule, is_in_sleep};
use lockstep_rank_messages::exercise::{ANSWERS, Answer, Answers, CALL, Call};
use rustix::thread::gettid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::{Device, Tensor};

/// The beginning of `todo!()`'s message.
const TODO: &str = "not yet implemented";
/// The interval at which a finished rank checks whether it may end.
const POLL: Duration = Duration::from_millis(5);
/// The interval at which a connected rank checks whether all are.
const MEETING: Duration = Duration::from_micros(500);

/// Lets the grader copy one process, which has loaded libtorch, for each rank.
const FORKING: Forking =
    Forking { fork: c10d::process::fork, set_variables: c10d::process::set_variables, exit: c10d::process::exit };

/// Runs the task that the grader requests.
pub fn main(tasks: impl IntoIterator<Item = Task>) -> ExitCode {
    main_of(tasks, || {
        eprintln!("error: only the grader can start this program: run `cargo test -p {}`", name());
        ExitCode::from(2)
    })
}

/// The same for a lab whose answers together are a program: runs it if the grader requests nothing.
pub fn main_of(tasks: impl IntoIterator<Item = Task>, program: impl FnOnce() -> ExitCode) -> ExitCode {
    match lockstep_process::serve(&FORKING) {
        Ok(true) => match requested() {
            Some((call, answers)) => run(tasks, &call, &answers),
            None => program(),
        },
        Ok(false) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot wait for the grader's requests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(tasks: impl IntoIterator<Item = Task>, call: &Path, answers: &Answers) -> ExitCode {
    let rank = std::env::var("RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    tch::set_num_threads(1);
    let answer = match Call::read(call) {
        Ok(call) => answer(tasks, call, &|stage| match stage {
            Stage::Joined { ranks } => meet(answers, rank, ranks),
            Stage::Input(number) => drop(answers.begin(rank, number)), // a finding without it is better than none
        }),
        Err(error) => Answer::Misunderstood { why: format!("cannot read {}: {error}", call.display()) },
    };
    if let Err(error) = answers.leave(rank, &answer) {
        eprintln!("error: cannot leave the answer in {}: {error}", answers.0.display());
        return ExitCode::FAILURE;
    }
    while !answers.dismissed() {
        std::thread::sleep(POLL);
    }
    ExitCode::SUCCESS
}

/// Waits until all ranks are connected. The grader's deadline ends a wait for one that has died.
fn meet(answers: &Answers, rank: usize, ranks: usize) {
    let joined = answers.join(rank);
    while joined.is_ok() && !answers.all_joined(ranks) && !answers.dismissed() {
        std::thread::sleep(MEETING);
    }
}

fn requested() -> Option<(PathBuf, Answers)> {
    Some((std::env::var_os(CALL)?.into(), Answers(std::env::var_os(ANSWERS)?.into())))
}

/// The name of this program, which is also the name of its package.
fn name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

thread_local! {
    /// The place in the answer where this thread last panicked.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn answer(tasks: impl IntoIterator<Item = Task>, call: Call, tell: Tell<'_>) -> Answer {
    let Some(task) = tasks.into_iter().find(|task| task.name == call.task) else {
        return Answer::Misunderstood { why: format!("there is no task {}", call.task) };
    };
    record_panics();
    match catch_unwind(AssertUnwindSafe(|| (task.run)(call.inputs, tell))) {
        Ok(Ok(outputs)) => Answer::Done { outputs },
        Ok(Err(Failure::Answer(error))) => Answer::Failed { error: panic_place::message(&text(&error)) },
        Ok(Err(Failure::Course(why))) => Answer::Misunderstood { why },
        Err(panic) => panicked(&*panic),
    }
}

/// Records where this thread panics. Panics of other threads are printed as usual.
fn record_panics() {
    let (this, print) = (std::thread::current().id(), take_hook());
    set_hook(Box::new(move |info| {
        if std::thread::current().id() == this {
            let location = info.location().map(ToString::to_string);
            let of_lab = location.as_ref().is_some_and(|location| location.contains("labs/"));
            let calls = (!of_lab).then(|| Backtrace::force_capture().to_string());
            PLACE.set(calls.and_then(|calls| in_answer(&calls)).or(location));
        } else {
            print(info);
        }
    }));
}

/// The innermost place of a backtrace that is in a lab's answer: the panic itself may be in tch, which the answer called.
fn in_answer(backtrace: &str) -> Option<String> {
    let is_answer = |file: &Path| {
        let file = file.to_string_lossy();
        file.contains("/labs/") && !file.contains("/given/")
    };
    let place = panic_place::innermost(backtrace, "", &is_answer)?.place;
    Some(place.rfind("/labs/").map_or(place.clone(), |begin| place[begin + 1..].to_owned()))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Answer {
    let text = panic_text(panic).unwrap_or("no message");
    match text.strip_prefix(TODO) {
        Some(what) => Answer::NotStarted { what: what.trim_start_matches(": ").into() },
        None => Answer::Panicked { message: panic_place::message(text), place: PLACE.take() },
    }
}

/// A function from inputs to results.
type Run = dyn Fn(Vec<Value>, Tell<'_>) -> Result<Vec<Value>, Failure>;

/// What happens next on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is connected to the `ranks` of its group.
    Joined { ranks: usize },
    /// The answer is called with the input of this number.
    Input(usize),
}

/// Called before each stage.
type Tell<'a> = &'a dyn Fn(Stage);

/// A learner's function, together with the conversion of its inputs and results.
pub struct Task {
    pub(crate) name: String,
    run: Box<Run>,
}

/// Why a task has no results.
enum Failure {
    /// The course's grading function and its program do not fit together.
    Course(String),
    /// The learner's function returned an error.
    Answer(anyhow::Error),
}

impl Task {
    /// A task whose function needs no process group.
    pub fn new<I, O>(name: &str, answer: impl Fn(I) -> anyhow::Result<O> + 'static) -> Self
    where
        I: DeserializeOwned,
        O: Serialize,
    {
        let run = move |inputs, tell: Tell<'_>| each(parse(inputs)?, tell, &answer);
        Task { name: name.into(), run: Box::new(run) }
    }

    /// A task whose function needs a process group. All ranks join it once, before the first input.
    pub fn in_group<I, O>(name: &str, answer: impl Fn(&ProcessGroup, I) -> anyhow::Result<O> + 'static) -> Self
    where
        I: DeserializeOwned,
        O: Serialize,
    {
        let run = move |inputs, tell: Tell<'_>| {
            let inputs = parse(inputs)?;
            let env = LaunchEnv::from_env().map_err(|error| Failure::Course(error.to_string()))?;
            let joined = init_process_group(&env, Device::Cpu, &Default::default());
            // The group lives until the process ends: other ranks may still wait for this one, and must not lose it as a peer.
            let group = Box::leak(Box::new(joined.map_err(|error| Failure::Course(text(&error.into())))?));
            tell(Stage::Joined { ranks: group.size().get() });
            each(inputs, tell, |input| answer(group, input))
        };
        Task { name: name.into(), run: Box::new(run) }
    }

    /// Renames the task to `TASK/NAME`, for one of several answers to it.
    #[must_use]
    pub fn variant(self, name: &str) -> Self {
        Task { name: format!("{}/{name}", self.name), ..self }
    }
}

/// Numbers as a tensor of shape `[n]` (`Double`).
pub fn tensor(numbers: &[f64]) -> Tensor {
    Tensor::from_slice(numbers)
}

/// The numbers of a tensor of any shape, row by row.
pub fn numbers(tensor: &Tensor) -> anyhow::Result<Vec<f64>> {
    let flat = tensor.flatten(0, -1).to_kind(tch::Kind::Double);
    Vec::try_from(&flat).context("the answer is not a tensor of numbers")
}

/// The results of the answer for all inputs, up to its first error.
fn each<I, O: Serialize>(
    inputs: Vec<I>,
    tell: Tell<'_>,
    answer: impl Fn(I) -> anyhow::Result<O>,
) -> Result<Vec<Value>, Failure> {
    let one = |(number, input)| {
        tell(Stage::Input(number));
        written(answer(input))
    };
    inputs.into_iter().enumerate().map(one).collect()
}

fn parse<I: DeserializeOwned>(inputs: Vec<Value>) -> Result<Vec<I>, Failure> {
    let inputs: Result<_, _> = inputs.into_iter().map(serde_json::from_value).collect();
    inputs.map_err(|error| Failure::Course(format!("an input is not of the task's type: {error}")))
}

fn written<O: Serialize>(output: anyhow::Result<O>) -> Result<Value, Failure> {
    let output = output.map_err(Failure::Answer)?;
    serde_json::to_value(output).map_err(|error| Failure::Course(format!("a result cannot be written: {error}")))
}

fn text(error: &anyhow::Error) -> String {
    format!("{error:#}")
}

/// How often the watch reads the state of the answer's thread.
const INTERVAL: Duration = Duration::from_millis(50);
/// An answer that is in the same sleep this many times in a row does not poll.
const LONG_SLEEP: usize = 4;

/// Calls an answer. Meanwhile there is a file at `mark` while the answer is in one long sleep.
pub fn mark_sleep<T>(mark: &Path, answer: impl FnOnce() -> T) -> T {
    let thread = gettid().as_raw_nonzero().get();
    let (answering, over) = channel::<()>();
    let watch = move || {
        let (mut turns, mut asleep) = (None, 0);
        while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let now = Schedule::of_thread(thread).turns;
            let sleeps_on = turns.replace(now) == Some(now) && is_in_sleep(thread);
            if !sleeps_on && asleep >= LONG_SLEEP {
                drop(fs::remove_file(mark));
            }
            asleep = if sleeps_on { asleep + 1 } else { 0 };
            if asleep == LONG_SLEEP {
                drop(File::create(mark));
            }
        }
        drop(fs::remove_file(mark));
    };
    thread::scope(|scope| {
        // Without the watch there is no mark, and the others go on after their own time.
        drop(thread::Builder::new().name(SLEEP_WATCH.into()).spawn_scoped(scope, watch));
        let answered = answer();
        drop(answering);
        answered
    })
}

/// How long an answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// By the clock: a busy machine makes it longer, never shorter.
    pub clock: Duration,
    /// Less the time by which another thread, which had only to wake up once the time was over, was late.
    pub own: Duration,
}

/// Calls an answer that has so much time, and measures how long it took.
pub fn timed<T>(limit: Duration, answer: impl FnOnce() -> T) -> (T, Took) {
    let begun = Instant::now();
    let (over, ended) = channel::<()>();
    let waits = thread::spawn(move || match ended.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => begun.elapsed().saturating_sub(limit),
        _ => Duration::ZERO,
    });
    let answered = answer();
    let clock = begun.elapsed();
    drop(over);
    let late = waits.join().unwrap_or_default();
    (answered, Took { clock, own: clock.saturating_sub(late) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::Value;

    use super::*;

    fn outcome(answer: impl Fn(i64) -> anyhow::Result<i64> + 'static, inputs: &[Value]) -> Answer {
        super::answer([Task::new("double", answer)], Call { task: "double".into(), inputs: inputs.to_vec() }, &|_| ())
    }

    #[test]
    fn applies_the_function_to_each_input() {
        assert_eq!(outcome(|n| Ok(2 * n), &[1.into(), 2.into()]), Answer::Done { outputs: vec![2.into(), 4.into()] });
    }

    #[test]
    fn names_the_input_before_the_answer_gets_it() {
        let begun = RefCell::new(Vec::new());
        let answer = |n: i64| if n == 2 { anyhow::bail!("no") } else { Ok(n) };
        let call = Call { task: "double".into(), inputs: vec![1.into(), 2.into(), 3.into()] };
        super::answer([Task::new("double", answer)], call, &|stage| begun.borrow_mut().push(stage));
        assert_eq!(*begun.borrow(), [Stage::Input(0), Stage::Input(1)]);
    }

    #[test]
    #[allow(clippy::todo)] // the learner's files contain it
    fn distinguishes_todo_panic_and_error() {
        let unfinished = outcome(|_| todo!("double it"), &[1.into()]);
        assert_eq!(unfinished, Answer::NotStarted { what: "double it".into() });
        let broken = outcome(|n| Ok([1][n as usize]), &[1.into()]);
        assert!(
            matches!(&broken, Answer::Panicked { message, place: Some(place) }
            if message.contains("out of bounds") && place.contains("rank.rs")),
            "{broken:?}"
        );
        assert_eq!(outcome(|_| anyhow::bail!("no"), &[1.into()]), Answer::Failed { error: "no".into() });
    }

    #[test]
    fn an_error_of_libtorch_has_no_frames() {
        let panics =
            |_: i64| -> anyhow::Result<i64> { Ok(tch::Tensor::ones([2], tch::kind::FLOAT_CPU).view([3i64]).size()[0]) };
        let Answer::Panicked { message, .. } = outcome(panics, &[1.into()]) else { panic!("no panic") };
        assert_eq!(message, "libtorch: shape '[3]' is invalid for input of size 2");
        let fails = |_: i64| Ok(tch::Tensor::ones([2], tch::kind::FLOAT_CPU).f_view([3i64])?.size()[0]);
        let Answer::Failed { error } = outcome(fails, &[1.into()]) else { panic!("no error") };
        assert_eq!(error, "Internal torch error: shape '[3]' is invalid for input of size 2");
    }

    #[test]
    fn a_panic_is_where_the_answer_called() {
        let backtrace = "   3: tch::wrappers::view\n             at /r/tch/src/generated.rs:9:1\n   4: ex_02::line\n             \
                         at /labs/lockstep/labs/02-spawn-ddp/exercise/src/line.rs:31:9\n   5: ex_02::tasks\n             \
                         at /labs/lockstep/labs/02-spawn-ddp/given/tasks.rs:53:5\n";
        assert_eq!(in_answer(backtrace).as_deref(), Some("labs/02-spawn-ddp/exercise/src/line.rs:31:9"));
        assert_eq!(in_answer("   3: main\n             at /r/src/main.rs:1:1\n"), None);
    }

    #[test]
    fn rejects_inputs_of_another_type_and_unknown_tasks() {
        assert!(matches!(outcome(Ok, &["one".into()]), Answer::Misunderstood { .. }));
        let other = Call { task: "triple".into(), inputs: Vec::new() };
        let answer = super::answer([Task::new("double", Ok::<i64, _>).variant("wrong")], other, &|_| ());
        assert_eq!(answer, Answer::Misunderstood { why: "there is no task triple".into() });
    }

    #[test]
    fn an_answers_own_time_has_its_sleep() {
        let [begins, ends] = [60, 600_000].map(|limit| {
            let (answer, took) = timed(Duration::from_millis(limit), || {
                thread::sleep(Duration::from_millis(60));
                7
            });
            assert_eq!(answer, 7);
            took
        });
        assert!(ends.clock >= Duration::from_millis(60) && ends.own == ends.clock, "{ends:?}");
        assert!(begins.clock >= Duration::from_millis(60) && begins.own <= begins.clock, "{begins:?}");
    }

    /// Runs an answer, which can see whether its mark was there. Returns whether it ever was, and whether it still is.
    fn marked(answer: impl FnOnce(&AtomicBool)) -> (bool, bool) {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("sleeps");
        let (over, seen) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    seen.fetch_or(mark.exists(), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            });
            mark_sleep(&mark, || answer(&seen));
            over.store(true, Ordering::Relaxed);
        });
        (seen.into_inner(), mark.exists())
    }

    #[test]
    fn an_answer_that_sleeps_is_marked_until_it_goes_on() {
        // On a busy machine the watch may not look often enough during one sleep.
        let sleeps = |seen: &AtomicBool| {
            for _ in 0..60 {
                if !seen.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_secs(1));
                }
            }
        };
        assert_eq!(marked(sleeps), (true, false));
    }

    #[test]
    fn a_wait_for_somebody_is_not_marked() {
        let waits = |_: &AtomicBool| {
            let (_alive, never) = channel::<()>();
            let _ = never.recv_timeout(Duration::from_secs(1));
        };
        assert_eq!(marked(waits), (false, false));
    }

    #[test]
    fn the_watch_is_a_thread_of_the_background() {
        let names = || lockstep_process::proc::threads(std::process::id() as i32).into_iter().map(|thread| thread.name);
        let is_watched = |_: &AtomicBool| {
            while !names().any(|name| name == SLEEP_WATCH) {
                thread::yield_now(); // a thread gives itself its name
            }
        };
        assert_eq!(marked(is_watched), (false, false));
        assert!(lockstep_contract::background::THREADS.contains(&SLEEP_WATCH));
    }

    #[test]
    fn the_mark_goes_with_an_answer_that_panics() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("sleeps");
        let panics = || mark_sleep(&mark, || panic!("the answer"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!mark.exists());
    }
}
