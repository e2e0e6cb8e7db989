//! Grades one answer with the inputs of many seeds. Starting ranks costs more than most answers compute, so the gradings run at once and
//! share processes: when all wait for a call, those that ask for the same kind of call get one, with the inputs of all.
//!
//! A shared call counts only if every rank leaves its results and no file: otherwise what one grading's inputs did could be taken for what
//! another's did. Then each grading gets a call of its own.

use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use lockstep_rank_messages::exercise::{Answer, Call};
use serde_json::Value;

use super::call::{CallOptions, CallResult};
use super::outcome::RankOutcome;
use super::{Options, Runner};
use crate::Program;

/// What the thread of a grading tells the one that runs its calls.
enum Message {
    Asked(Request),
    Ended,
}

/// A call that a grading waits for.
#[derive(Clone)]
struct Request {
    options: CallOptions,
    call: Call,
    limits: Options,
    reply: Sender<anyhow::Result<CallResult>>,
}

/// A grading's way to the thread that runs its calls.
pub(super) struct Shared(Sender<Message>);

impl Shared {
    /// Waits for the result of a call.
    pub(super) fn run(&self, options: &CallOptions, call: &Call, limits: &Options) -> anyhow::Result<CallResult> {
        let (reply, result) = channel();
        let request = Request { options: options.clone(), call: call.clone(), limits: *limits, reply };
        self.0.send(Message::Asked(request))?;
        result.recv()?
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.0.send(Message::Ended); // nobody listens any longer if running a call has panicked
    }
}

/// What `grade` returns at each seed, by seed. Each call of it has a runner of its own, with that seed's options.
pub fn at_seeds<T: Send>(
    program: &Program,
    seeds: RangeInclusive<u64>,
    grade: impl Fn(&mut Runner, &Options) -> T + Sync,
) -> Vec<(u64, T)> {
    let (sender, messages) = channel();
    let graded = |shared: Shared, seed: u64| {
        let options = Options::seeded(Some(seed));
        let mut runner = Runner::new(program, &options);
        runner.shared = Some(shared);
        (seed, grade(&mut runner, &options))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .map(|seed| {
                let (shared, graded) = (Shared(sender.clone()), &graded);
                scope.spawn(move || graded(shared, seed))
            })
            .collect();
        serve(&mut Runner::new(program, &Options::seeded(Some(0))), messages, threads.len());
        threads.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Runs the calls of this many gradings until all have ended.
fn serve(runner: &mut Runner, messages: Receiver<Message>, gradings: usize) {
    let (mut left, mut waiting) = (gradings, Vec::<Request>::new());
    while left > 0 {
        if waiting.len() < left {
            match messages.recv() {
                Ok(Message::Asked(request)) => waiting.push(request),
                Ok(Message::Ended) | Err(_) => left -= 1,
            }
            continue;
        }
        let others = waiting.split_off(1);
        let alike = |other: &Request| other.can_share(&waiting[0]);
        let (alike, others): (Vec<_>, Vec<_>) = others.into_iter().partition(alike);
        waiting.extend(alike);
        reply(runner, std::mem::replace(&mut waiting, others));
    }
}

/// Runs these calls, together if there are several and that works.
fn reply(runner: &mut Runner, requests: Vec<Request>) {
    let shared = if requests.len() > 1 { run_together(runner, &requests) } else { None };
    let mut results = shared.into_iter().flatten();
    for request in requests {
        let result = results.next().map_or_else(|| request.run(runner), Ok);
        let _ = request.reply.send(result); // its grading waits, unless it has panicked
    }
}

/// The results of these calls in one with the inputs of all; `None` if they cannot be told apart.
fn run_together(runner: &mut Runner, requests: &[Request]) -> Option<Vec<CallResult>> {
    let first = &requests[0];
    let inputs = requests.iter().flat_map(|request| request.call.inputs.iter().cloned()).collect();
    let count = requests.len().try_into().unwrap_or(u32::MAX);
    let limits = Options { deadline: first.limits.deadline * count, ..first.limits };
    let all = Request { call: Call { inputs, ..first.call.clone() }, limits, ..first.clone() };
    let result = all.run(runner).ok()?;
    if result.left_files || result.finding.is_some() || !result.orphans.is_empty() {
        return None;
    }
    let mut outputs = result.outcomes.into_iter().map(results).collect::<Option<Vec<_>>>()?;
    let share = |request: &Request| {
        let own = |outputs: &mut Vec<_>| {
            let rest = outputs.split_off(request.call.inputs.len().min(outputs.len()));
            RankOutcome::Answered(Answer::Done { outputs: std::mem::replace(outputs, rest) })
        };
        CallResult {
            outcomes: outputs.iter_mut().map(own).collect(),
            notes: result.notes.clone(),
            ..CallResult::default()
        }
    };
    Some(requests.iter().map(share).collect())
}

/// What a rank has left for each input.
fn results(outcome: RankOutcome) -> Option<Vec<Value>> {
    match outcome {
        RankOutcome::Answered(Answer::Done { outputs }) => Some(outputs),
        _ => None,
    }
}

impl Request {
    /// Whether one set of ranks can serve both. A folder that the grader names holds what it looks at.
    fn can_share(&self, other: &Request) -> bool {
        let kind = |request: &Request| (request.call.task.clone(), request.options.ranks, request.options.env.clone());
        self.options.folder.is_none() && other.options.folder.is_none() && kind(self) == kind(other)
    }

    fn run(&self, runner: &mut Runner) -> anyhow::Result<CallResult> {
        runner.options = self.limits;
        let result = runner.run(&self.options, &self.call);
        if result.is_err() {
            // What the failed call has left running ends with its runner.
            *runner = Runner::new(&runner.program, &self.limits);
        }
        result
    }
}
