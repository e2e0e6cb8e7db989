//! What each failure cost: lost steps, and the times until an agent knew, until all workers ran, and until all trained.

use std::collections::BTreeSet;

use lockstep_events::{AgentEvent, Event};

use super::Recovery;
use super::lives::{AgentRecords, Life};
use super::rows::{last_word, manner};

/// The steps of a job: (epoch, step in it), which is also their order.
type Steps = BTreeSet<(u64, u64)>;

/// One for each generation after which another came, or in which a rank failed. Times count from `began`.
pub(super) fn recoveries(began: f64, agents: &AgentRecords<'_>, lives: &[Life<'_>]) -> Vec<Recovery> {
    let generations: BTreeSet<u64> = lives.iter().map(|life| life.generation).collect();
    let of = |wanted: u64| -> Vec<&Life<'_>> { lives.iter().filter(|life| life.generation == wanted).collect() };
    let mut generations = generations.into_iter().peekable();
    let (mut done, mut found) = (Steps::new(), vec![]);
    while let Some(generation) = generations.next() {
        let now = of(generation);
        let next = generations.peek().map(|generation| of(*generation));
        done.extend(now.iter().flat_map(|life| life.steps().map(|(_, step)| step)));
        let Some(cause) = cause(&now, next.as_deref(), agents, lives) else { continue };
        let lost = next.as_ref().and_then(|next| lost(&mut done, next));
        found.push(cause.cost(began, &now, next.as_deref(), lost, agents));
    }
    found
}

/// What began a failure.
struct Cause {
    t: f64,
    what: String,
    rank: Option<usize>,
}

/// The first that failed in a generation; a silent end counts only where nothing else tells.
fn cause(
    now: &[&Life<'_>],
    next: Option<&[&Life<'_>]>,
    agents: &AgentRecords<'_>,
    lives: &[Life<'_>],
) -> Option<Cause> {
    let failed = now.iter().filter_map(|life| failure(life));
    let lost = agents.keys().filter_map(|node| loss(node, now, agents, lives));
    let first = failed.chain(lost).min_by(|one, other| one.t.total_cmp(&other.t));
    let silent = || {
        let silent = now.iter().filter(|life| life.ended.is_none()).map(|life| Cause {
            t: life.last(),
            what: format!("{}: no more word of it", whose(life)),
            rank: Some(life.rank),
        });
        silent.min_by(|one, other| one.t.total_cmp(&other.t))
    };
    let regrouped = || {
        let began = next?.iter().map(|life| life.first()).fold(f64::INFINITY, f64::min);
        let (t, what) = decision(agents, now.iter().map(|life| life.first()).fold(0.0, f64::max), began)?;
        Some(Cause { t, what, rank: None })
    };
    first.or_else(regrouped).or_else(silent).or_else(|| {
        let t = now.iter().map(|life| life.last()).fold(0.0, f64::max);
        next.map(|_| Cause { t, what: "the ranks were started again".into(), rank: None })
    })
}

/// A rank that ended by itself and not well, from the fault that it told of before.
fn failure(life: &Life<'_>) -> Option<Cause> {
    let fault = life.last_fault();
    let end = life.ended.filter(|end| end.is_failure());
    let (t, what) = match (fault, end) {
        (None, None) => return None,
        (Some((t, message)), None) => (t, message.to_owned()),
        (None, Some(end)) => (end.t, manner(end)),
        (Some((t, message)), Some(end)) => (t.min(end.t), format!("{}, {message}", manner(end))),
    };
    Some(Cause { t, what: format!("{}: {what}", whose(life)), rank: Some(life.rank) })
}

/// A node whose agent and ranks all fell silent while they had work.
fn loss(node: &str, now: &[&Life<'_>], agents: &AgentRecords<'_>, lives: &[Life<'_>]) -> Option<Cause> {
    let over = agents.get(node)?.iter().any(|(_, event)| matches!(event, AgentEvent::Finished { .. }));
    let mut here = now.iter().filter(|life| life.node == Some(node)).peekable();
    let generation = here.peek()?.generation;
    let is_last = !lives.iter().any(|life| life.node == Some(node) && life.generation > generation);
    let silent = here.all(|life| life.ended.is_none());
    let what = format!("node {node}: no more word of its agent and its ranks");
    (!over && is_last && silent).then(|| Cause { t: last_word(node, agents, lives), what, rank: None })
}

fn whose(life: &Life<'_>) -> String {
    let place = life.node.map_or(String::new(), |node| format!(" on {node}"));
    format!("rank {}{place}", life.rank)
}

/// An agent's decision to start its workers again, and why.
fn decision(agents: &AgentRecords<'_>, from: f64, to: f64) -> Option<(f64, String)> {
    let decided = agents.values().flatten().filter_map(|(t, event)| match event {
        AgentEvent::Restarting { reason, .. } if (from..=to).contains(t) => Some((*t, reason.clone())),
        _ => None,
    });
    decided.min_by(|one, other| one.0.total_cmp(&other.0))
}

/// How many of the steps done so far the next generation does again; none if it does no step. They are `done` no more.
fn lost(done: &mut Steps, next: &[&Life<'_>]) -> Option<u64> {
    let position = |life: &&Life<'_>| {
        life.records.iter().find_map(|(_, event)| match event {
            Event::Resume { epoch, step, .. } | Event::Step { epoch, step, .. } => Some((*epoch, *step)),
            _ => None,
        })
    };
    let first = next.iter().filter_map(position).min()?;
    Some(done.split_off(&first).len() as u64)
}

impl Cause {
    fn cost(
        self,
        began: f64,
        now: &[&Life<'_>],
        next: Option<&[&Life<'_>]>,
        steps_lost: Option<u64>,
        agents: &AgentRecords<'_>,
    ) -> Recovery {
        let since = |t: f64| (t - self.t).max(0.0);
        // The last of all counts, and none if one of them never came so far.
        let last = |of: &dyn Fn(&Life<'_>) -> Option<f64>| {
            let times = next?.iter().map(|life| of(life)).collect::<Option<Vec<f64>>>()?;
            times.into_iter().max_by(f64::total_cmp).map(since)
        };
        let up = |life: &Life<'_>| life.started.or(life.records.first().map(|record| record.0));
        Recovery {
            at: self.t - began,
            cause: self.what.clone(),
            rank: self.rank,
            steps_lost,
            time_to_detect: detected(self.t, now, next, agents).map(since),
            time_to_restart: last(&up),
            time_to_next_step: last(&|life| life.steps().next().map(|(t, _)| t)),
        }
    }
}

/// When an agent first knew: it saw a rank's end, or decided to start again.
fn detected(fault: f64, now: &[&Life<'_>], next: Option<&[&Life<'_>]>, agents: &AgentRecords<'_>) -> Option<f64> {
    let again = next.map_or(f64::INFINITY, |next| next.iter().map(|life| life.first()).fold(f64::INFINITY, f64::min));
    let seen = |life: &&&Life<'_>| life.started.is_some();
    let ends = now.iter().filter(seen).filter_map(|life| life.ended).map(|end| end.t).filter(|t| *t >= fault);
    let decided = decision(agents, fault, again).map(|(t, _)| t);
    ends.chain(decided).min_by(f64::total_cmp)
}
