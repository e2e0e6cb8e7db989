//! Why the scheduler has started this job again: the end of the former start, as its agents' events tell it.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_contract::wish::SAVED;
use lockstep_events::{AgentEvent, AgentLog, read_agents};
use lockstep_process::signal_name;

use super::workers::Context;

/// Reports that this is start `count` + 1 of the job, and why. The events are read from `folder`; those of this start are later than
/// `began`, in seconds since the Unix epoch.
pub(super) fn announce(context: &Context<'_>, folder: Option<&Path>, job: &str, count: u32, began: f64) {
    let logs = folder.and_then(|folder| read_agents(folder).ok()).unwrap_or_default();
    let reason = reason(&logs, count, began);
    context.say(&format!("start {} of {job}: {reason}", u64::from(count) + 1));
    context.events.emit(&AgentEvent::Requeued { count, reason });
}

fn reason(logs: &BTreeMap<String, AgentLog>, count: u32, began: f64) -> String {
    let is_of_this_start = |log: &AgentLog| {
        let first = log.records.first().map(|record| &record.event);
        matches!(first, Some(AgentEvent::Requeued { count: other, .. }) if *other == count)
            || log.records.last().is_none_or(|last| last.t >= began)
    };
    let former: Vec<&AgentLog> = logs.values().filter(|log| !is_of_this_start(log)).collect();
    let first = |log: &AgentLog| log.records.first().map_or(0.0, |record| record.t);
    let last = |log: &AgentLog| log.records.last().map_or(0.0, |record| record.t);
    let Some(latest) = former.iter().max_by(|one, other| last(one).total_cmp(&last(other))) else {
        return "there are no events of the former start".to_owned();
    };
    // Agents of one start live at the same time.
    let mut silent = former.iter().filter(|log| last(log) >= first(latest) && code(log).is_none());
    match silent.next().and_then(|log| log.records.first()) {
        Some(record) => {
            format!("launcher {} of the former start was lost, or killed by the scheduler", record.node)
        }
        None => end(latest),
    }
}

/// The exit code of an agent that has ended by itself.
fn code(log: &AgentLog) -> Option<i32> {
    log.records.iter().rev().find_map(|record| match record.event {
        AgentEvent::Finished { code } => Some(code),
        _ => None,
    })
}

fn end(log: &AgentLog) -> String {
    let has = |wanted: fn(&AgentEvent) -> bool| log.records.iter().any(|record| wanted(&record.event));
    let signal = log.records.iter().rev().find_map(|record| match record.event {
        AgentEvent::Signalled { signal } => Some(signal_name(signal)),
        _ => None,
    });
    let saved = code(log) == Some(SAVED.into());
    match (saved, signal) {
        (true, _) if has(|event| matches!(event, AgentEvent::TimeLimit { .. })) => {
            "the former start saved a snapshot before its time limit".to_owned()
        }
        (true, Some(signal)) => format!("the former start saved a snapshot and ended on {signal}"),
        (true, None) => "the former start saved a snapshot and ended".to_owned(),
        (false, Some(signal)) => format!("the former start was ended by {signal}"),
        (false, None) => format!("the former start ended with exit code {}", code(log).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_events::AgentRecord;

    use super::*;

    fn log(node: &str, began: f64, events: &[AgentEvent]) -> (String, AgentLog) {
        let record = |(at, event): (usize, &AgentEvent)| AgentRecord {
            t: began + at as f64,
            node: node.into(),
            event: event.clone(),
        };
        (node.into(), AgentLog { records: events.iter().enumerate().map(record).collect(), torn: vec![] })
    }

    const FORMED: AgentEvent = AgentEvent::Formed { round: 0, attempt: 0, group_rank: 0, nodes: 2, world_size: 2 };

    fn ended(events: &[AgentEvent], code: i32) -> Vec<AgentEvent> {
        [&[FORMED], events, &[AgentEvent::Finished { code }]].concat()
    }

    #[test]
    fn names_the_end_of_the_former_start() {
        let limit = || AgentEvent::TimeLimit { seconds_left: 60.0, source: "squeue".into() };
        let signal = |signal| AgentEvent::Signalled { signal };
        let ends = [
            (ended(&[limit()], 75), "the former start saved a snapshot before its time limit"),
            (ended(&[signal(12)], 75), "the former start saved a snapshot and ended on SIGUSR2"),
            (ended(&[], 75), "the former start saved a snapshot and ended"),
            (ended(&[signal(15)], 1), "the former start was ended by SIGTERM"),
            (ended(&[], 1), "the former start ended with exit code 1"),
            (vec![FORMED], "launcher a of the former start was lost, or killed by the scheduler"),
        ];
        for (events, expected) in ends {
            assert_eq!(reason(&[log("a", 10.0, &events)].into(), 1, 100.0), expected);
        }
        assert_eq!(reason(&BTreeMap::new(), 1, 100.0), "there are no events of the former start");
    }

    #[test]
    fn finds_the_launcher_that_was_lost_and_ignores_older_and_newer_starts() {
        let older = log("x", 1.0, &[FORMED]);
        let lost = log("b", 20.0, &[FORMED]);
        let others = log("a", 19.5, &ended(&[AgentEvent::Signalled { signal: 15 }], 1));
        let newer = log("c", 99.0, &[AgentEvent::Requeued { count: 2, reason: String::new() }]);
        let last = log("d", 101.0, &ended(&[], 3));
        let both = |logs: &[&(String, AgentLog)]| reason(&logs.iter().map(|log| (*log).clone()).collect(), 2, 100.0);
        assert!(both(&[&older, &lost, &others, &newer, &last]).starts_with("launcher b of the former start was lost"));
        assert_eq!(both(&[&older, &others, &newer, &last]), "the former start was ended by SIGTERM");
    }
}
