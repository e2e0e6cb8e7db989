//! From event files to a timeline.

use std::collections::BTreeSet;

use lockstep_contract::events::{AgentEvent, Event};

use super::rows::RowContext;
use super::{Judged, Timeline};
use crate::history::{History, RunEvents};

/// Ranks above this number are not expected unless a file names them.
const MOST_RANKS: usize = 65_536;

impl Timeline {
    /// Draws the records of ranks and agents. What could not be read is noted, and the rest is drawn.
    pub(crate) fn of(events: &RunEvents) -> Self {
        let history = History::of(events);
        let (began, ended) = history.bounds();
        let missing = missing(events, &history);
        let mut notes = [events.unreadable.clone(), torn(events), history.notes.clone()].concat();
        notes.extend(gaps(&missing, &history));
        Timeline {
            began,
            seconds: ended - began,
            nodes: RowContext { began, ended, history: &history }.nodes(&missing),
            recoveries: history.recoveries(),
            verdicts: verdicts(&history, began),
            notes,
        }
    }
}

/// Without repetitions: of several verdicts that one agent gave in a row, the last counts, since it knew more.
fn verdicts(history: &History<'_>, began: f64) -> Vec<Judged> {
    let mut found: Vec<Judged> = Vec::new();
    for (node, records) in &history.agents {
        let mut after_another = false;
        for (t, event) in records {
            let AgentEvent::Verdict(verdict) = event else {
                after_another = false;
                continue;
            };
            if std::mem::replace(&mut after_another, true) {
                found.pop();
            }
            found.push(Judged { at: t - began, node: (*node).to_owned(), verdict: verdict.clone() });
        }
    }
    found.sort_by(|one, other| one.at.total_cmp(&other.at));
    found
}

fn torn(events: &RunEvents) -> Vec<String> {
    let ranks = events.ranks.iter().map(|(rank, log)| (format!("rank {rank}"), &log.torn));
    let agents = events.agents.iter().map(|(node, log)| (format!("the agent of {node}"), &log.torn));
    let torn = ranks.chain(agents).filter(|(_, torn)| !torn.is_empty());
    torn.map(|(whose, torn)| {
        let (first, more) = (torn[0], torn.len() - 1);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("an event of {whose} is torn (line {first}{more}): its writer was killed or its disk was full")
    })
    .collect()
}

/// Ranks that others mention, but that were never started.
fn missing(events: &RunEvents, history: &History<'_>) -> Vec<usize> {
    let formed = events.agents.values().flat_map(|log| &log.records).filter_map(|record| match record.event {
        AgentEvent::Formed { world_size, .. } => Some(world_size),
        _ => None,
    });
    let joined = events.records().filter_map(|record| match record.event {
        Event::Start { world_size, .. } => Some(world_size),
        _ => None,
    });
    let size = formed.chain(joined).max().unwrap_or(0).min(MOST_RANKS);
    let seen: BTreeSet<usize> = history.attempts.iter().map(|attempt| attempt.rank).collect();
    (0..size).filter(|rank| !seen.contains(rank)).collect()
}

/// Information that is missing from the files.
fn gaps(missing: &[usize], history: &History<'_>) -> Vec<String> {
    let (mut notes, attempts) = (vec![], &history.attempts);
    if history.agents.is_empty() && !attempts.is_empty() {
        notes.push("no agent wrote events: how a rank ended is known by its own words only".into());
    }
    if !missing.is_empty() {
        notes.push(format!("never started: {}", list(missing.iter().copied().collect())));
    }
    let heard = attempts.iter().filter(|attempt| !attempt.records.is_empty());
    let heard: BTreeSet<usize> = heard.map(|attempt| attempt.rank).collect();
    let silent: BTreeSet<usize> =
        attempts.iter().map(|attempt| attempt.rank).filter(|rank| !heard.contains(rank)).collect();
    if !silent.is_empty() {
        notes.push(format!("without events of their own: {}", list(silent)));
    }
    notes
}

/// `rank 3`, `ranks 3, 4, 5`; at most eight by number.
fn list(ranks: BTreeSet<usize>) -> String {
    let shown: Vec<String> = ranks.iter().take(8).map(usize::to_string).collect();
    let more = ranks.len() - shown.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, shown.join(", "))
}
