//! From event files to a timeline: a pure function.

use std::collections::BTreeSet;

use lockstep_contract::events::{AgentEvent, Event};

use crate::history::{History, RunEvents};
use crate::timeline::{Judged, RowContext, Timeline};

/// Ranks above this number are not expected unless a file names them.
const MOST_RANKS: usize = 65_536;

impl Timeline {
    /// Draws the records of ranks and agents. What could not be read is noted, and the rest is drawn.
    pub fn of(events: &RunEvents) -> Self {
        Self::with(events, &History::of(events))
    }

    /// The same, with the history of these records.
    pub fn with(events: &RunEvents, history: &History<'_>) -> Self {
        let (began, ended) = history.bounds();
        let missing = missing(events, history);
        let mut notes = [events.unreadable.clone(), torn(events), history.notes.clone()].concat();
        notes.extend(gaps(&missing, history));
        Timeline {
            began,
            seconds: ended - began,
            nodes: RowContext { began, ended, history }.nodes(&missing),
            recoveries: history.recoveries(),
            verdicts: verdicts(history, began),
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
        notes.push("no agent wrote events: only the ranks themselves say how they ended".into());
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

#[cfg(test)]
mod tests {
    use lockstep_contract::events::VerdictRecord;

    use super::*;
    use crate::recovery::Recovery;
    use crate::testing::*;
    use crate::timeline::{MarkKind, Row, State};

    /// `(state, from, to)` of one row's spans, times in hundredths of a second.
    fn spans(timeline: &Timeline, place: usize) -> Vec<(State, i64, i64)> {
        let (_, row) = timeline.rows().nth(place).unwrap();
        row.spans.iter().map(|span| (span.state, hundredths(span.from), hundredths(span.to))).collect()
    }

    fn marks(timeline: &Timeline, place: usize) -> Vec<(MarkKind, i64)> {
        let (_, row) = timeline.rows().nth(place).unwrap();
        row.marks.iter().map(|mark| (mark.kind, hundredths(mark.at))).collect()
    }

    fn hundredths(seconds: f64) -> i64 {
        (seconds * 100.0).round() as i64
    }

    /// Whatever the files contain, a row's spans are ordered, disjoint, and within the picture.
    fn assert_drawable(timeline: &Timeline) {
        assert!(timeline.seconds.is_finite() && timeline.seconds >= 0.0, "{timeline:#?}");
        for (_, row) in timeline.rows() {
            let mut last = 0.0;
            for span in &row.spans {
                assert!(span.from >= last && span.to > span.from && span.to <= timeline.seconds, "{row:#?}");
                last = span.to;
            }
            let inside = |t: f64| (0.0..=timeline.seconds).contains(&t);
            assert!(row.marks.iter().all(|mark| inside(mark.at)), "{row:#?}");
            assert!(row.redone.iter().all(|redone| inside(redone.from) && inside(redone.to)), "{row:#?}");
        }
    }

    /// One node with ranks 0 and 1, which join at 1 s and do steps 0 to 3 by 2 s.
    fn two_ranks() -> FakeRun {
        let mut run = FakeRun::default().agent("a", 0.0, formed(0, 0, 0, 1));
        for rank in [0, 1] {
            run =
                run.agent("a", 0.0, started(0, rank, 10 + rank as u32)).rank(rank, 0, 1.0, start(2, 10 + rank as u32));
            run = run.steps((rank, 0), 0, 0..4, 1.25, 0.25);
        }
        run
    }

    #[test]
    fn draws_a_kill_a_restart_and_the_loss_of_a_node() {
        use State::*;
        let timeline = two_nodes().timeline();
        assert_drawable(&timeline);
        assert_eq!(timeline.notes, [""; 0]);
        let names: Vec<_> = timeline.rows().map(|(node, row)| (node.unwrap(), row.rank)).collect();
        assert_eq!(names, [("node0", 0), ("node0", 1), ("node1", 2), ("node1", 3)]);
        let first = [(Starting, 5, 60), (Running, 60, 213), (Dead, 213, 231), (Restarting, 231, 242)];
        let second = [(Starting, 242, 290), (Running, 290, 440), (Stalled, 440, 650), (Stopped, 650, 652)];
        let third = [(Restarting, 652, 662), (Starting, 662, 700), (Running, 700, 925)];
        assert_eq!(spans(&timeline, 1), [&first[..], &second, &third].concat());
        assert_eq!(spans(&timeline, 0)[2..4], [(Stopped, 220, 231), (Restarting, 231, 241)]);
        assert_eq!(spans(&timeline, 3).last().unwrap(), &(Dead, 440, 930));
        assert_eq!(marks(&timeline, 1)[..3], [(MarkKind::Epoch, 60), (MarkKind::Fault, 212), (MarkKind::Died, 213)]);
        assert_eq!(marks(&timeline, 1).last().unwrap(), &(MarkKind::Finished, 925));
    }

    #[test]
    fn a_rank_whose_node_goes_on_as_another_rank_waits_no_longer() {
        let restarting = AgentEvent::Restarting { attempt: 0, restarts_left: 0, reason: "node b was lost".into() };
        let run = FakeRun::default().agent("a", 0.0, formed(0, 0, 1, 2)).agent("a", 0.1, started(0, 1, 11));
        let run =
            run.rank(1, 0, 0.5, start(2, 11)).agent("a", 2.0, restarting).agent("a", 2.1, ended(0, 1, 11, -15, true));
        let run =
            run.agent("a", 3.0, formed(1, 1, 0, 1)).agent("a", 3.1, started(1, 0, 12)).rank(0, 1, 3.5, start(1, 12));
        let timeline = run.agent("a", 9.0, ended(1, 0, 12, 0, false)).timeline();
        assert_eq!(spans(&timeline, 1).last().unwrap().2, 310);
        assert_eq!(spans(&timeline, 0).last().unwrap(), &(State::Running, 350, 900));
    }

    #[test]
    fn shows_the_cost_of_each_failure() {
        let [kill, loss] = two_nodes().timeline().recoveries.try_into().unwrap();
        assert_eq!(kill.cause, "rank 1 on node0: ended by SIGKILL, injected: SIGKILL (kill-one)");
        assert_eq!((kill.rank, kill.steps_lost, hundredths(kill.at)), (Some(1), Some(5), 212));
        let times =
            |of: &Recovery| [of.time_to_detect, of.time_to_restart, of.time_to_next_step].map(|t| t.map(hundredths));
        assert_eq!(times(&kill), [Some(1), Some(32), Some(98)]);
        assert_eq!(loss.cause, "node node1: no more events from its agent and its ranks");
        assert_eq!((loss.rank, loss.steps_lost, hundredths(loss.at)), (None, Some(4), 440));
        assert_eq!(times(&loss), [Some(210), Some(222), Some(280)]);
    }

    #[test]
    fn shades_the_steps_that_were_trained_twice() {
        let timeline = two_nodes().timeline();
        let (_, row) = timeline.rows().next().unwrap();
        let redone: Vec<_> =
            row.redone.iter().map(|redone| (hundredths(redone.from), hundredths(redone.to), redone.steps)).collect();
        assert_eq!(redone, [(295, 350, 5), (705, 750, 4)]);
    }

    #[test]
    fn marks_a_stall_and_its_end() {
        use State::*;
        let run = two_ranks().rank(0, 0, 9.0, step_of(0, 4)).rank(0, 0, 9.5, Event::Exit { code: 0 });
        let timeline = run.agent("a", 9.5, ended(0, 0, 10, 0, false)).timeline();
        let expected = [(Starting, 0, 100), (Running, 100, 200), (Stalled, 200, 900), (Running, 900, 950)];
        assert_eq!(spans(&timeline, 0), expected);
        assert_eq!(timeline.rows().next().unwrap().1.spans[2].detail, "no event for 7.0 s");
    }

    #[test]
    fn distinguishes_a_rank_that_died_from_one_that_was_stopped() {
        let run = two_ranks().agent("a", 2.5, ended(0, 1, 11, 3, false)).agent("a", 2.75, ended(0, 0, 10, -15, true));
        let timeline = run.agent("a", 3.0, AgentEvent::Finished { code: 1 }).timeline();
        assert_eq!(spans(&timeline, 0).last().unwrap(), &(State::Stopped, 275, 300));
        assert_eq!(spans(&timeline, 1).last().unwrap(), &(State::Dead, 250, 300));
        let details: Vec<_> = timeline.rows().map(|(_, row)| row.spans.last().unwrap().detail.as_str()).collect();
        assert_eq!(details, ["was stopped by its agent, SIGTERM", "ended with exit code 3"]);
        let [failure] = timeline.recoveries.try_into().unwrap();
        assert_eq!((failure.cause.as_str(), failure.steps_lost), ("rank 1 on a: ended with exit code 3", None));
        assert_eq!((failure.time_to_detect, failure.time_to_restart), (Some(0.0), None));
        assert_eq!(timeline.nodes[0].marks.last().unwrap().kind, MarkKind::Lost);
    }

    #[test]
    fn matches_a_rank_inside_a_wrapper_by_time() {
        let run = FakeRun::default().agent("a", 0.0, started(0, 0, 7)).rank(0, 0, 1.0, start(1, 8));
        let run = run.agent("a", 2.0, ended(0, 0, 7, -9, false)).agent("a", 2.5, started(1, 0, 9));
        let timeline = run.rank(0, 1, 3.0, start(1, 10)).rank(0, 1, 4.0, Event::Exit { code: 0 }).timeline();
        use State::*;
        let expected =
            [(Starting, 0, 100), (Running, 100, 200), (Dead, 200, 250), (Starting, 250, 300), (Running, 300, 400)];
        assert_eq!(spans(&timeline, 0), expected);
        assert_eq!(timeline.rows().count(), 1);
    }

    #[test]
    fn draws_ranks_whose_agent_wrote_nothing() {
        let mut run = two_ranks();
        run.0.agents.clear();
        run = run.rank(1, 0, 2.1, Event::Fault { message: "injected: SIGKILL (x)".into() });
        for rank in [0, 1] {
            run = run.rank(rank, 1, 3.0, start(2, 20)).rank(rank, 1, 3.1, resume(0, 2));
            run = run.steps((rank, 1), 0, 2..4, 3.25, 0.25).rank(rank, 1, 4.0, Event::Exit { code: 0 });
        }
        let timeline = run.timeline();
        assert_drawable(&timeline);
        assert_eq!(timeline.notes, ["no agent wrote events: only the ranks themselves say how they ended"]);
        assert_eq!(timeline.nodes[0].name, None);
        use State::*;
        assert_eq!(spans(&timeline, 1), [(Running, 0, 110), (Dead, 110, 200), (Running, 200, 300)]);
        let [kill] = timeline.recoveries.try_into().unwrap();
        assert_eq!((kill.rank, kill.steps_lost, kill.time_to_detect), (Some(1), Some(2), None));
        assert_eq!(kill.time_to_next_step.map(hundredths), Some(115));
    }

    #[test]
    fn names_ranks_that_never_started_and_ranks_without_events() {
        let run = FakeRun::default().agent("a", 0.0, formed(0, 0, 0, 2)).agent("a", 0.5, started(0, 0, 5));
        let timeline = run.agent("a", 9.0, ended(0, 0, 5, -15, true)).timeline();
        assert_drawable(&timeline);
        assert_eq!(timeline.notes, ["never started: ranks 1, 2, 3", "without events of their own: rank 0"]);
        assert_eq!(spans(&timeline, 0), [(State::Starting, 50, 900)]);
        assert_eq!(
            timeline.rows().nth(2).unwrap(),
            (None, &Row { rank: 2, spans: vec![], marks: vec![], redone: vec![] })
        );
    }

    #[test]
    fn draws_a_clock_that_went_back_without_going_back() {
        let timeline = two_ranks().rank(0, 0, -50.0, step_of(0, 4)).rank(0, 0, 2.5, Event::Exit { code: 0 }).timeline();
        assert_drawable(&timeline);
        assert_eq!(timeline.notes, ["the clock of rank 0 went back by 52.000 s: its times are drawn too late there"]);
    }

    #[test]
    fn survives_invalid_times_and_overlapping_attempts() {
        let times = [f64::MAX, -f64::MAX, f64::INFINITY, f64::NAN, 0.0];
        for t in times {
            let run = two_ranks().rank(0, 0, t, step_of(9, 9)).agent("a", t, started(1, 0, 99));
            assert_drawable(&run.agent("a", 1.5, started(2, 0, 100)).rank(1, 7, 1.1, start(2, 10)).timeline());
        }
        let overlapping = two_ranks().agent("a", 1.5, started(1, 0, 20)).agent("a", 4.0, ended(0, 0, 10, -9, false));
        let timeline = overlapping.rank(0, 1, 1.8, start(2, 20)).rank(0, 1, 5.0, Event::Exit { code: 0 }).timeline();
        assert_drawable(&timeline);
        assert_eq!(spans(&timeline, 0)[..2], [(State::Starting, 0, 100), (State::Running, 100, 150)]);
    }

    #[test]
    fn draws_nothing_without_events() {
        assert_eq!(FakeRun::default().timeline(), Timeline::default());
    }

    #[test]
    fn leaves_out_what_is_damaged_and_draws_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let sink = lockstep_contract::events::EventSink::open(dir.path(), 0, 0).unwrap();
        sink.emit_at(1.0, &start(2, 1));
        sink.emit_at(2.0, &Event::Exit { code: 0 });
        std::fs::write(dir.path().join("rank-1.jsonl"), "garbage\n").unwrap();
        std::fs::write(dir.path().join("agent-a.jsonl"), "[]\n").unwrap();
        let timeline = Timeline::of(&RunEvents::read(dir.path()));
        assert_eq!(spans(&timeline, 0), [(State::Running, 0, 100)]);
        assert!(timeline.notes[0].starts_with("line 1 of agent-a.jsonl is not an event"), "{:?}", timeline.notes);
        assert!(timeline.notes[1].starts_with("line 1 of rank-1.jsonl is not an event"), "{:?}", timeline.notes);
        let none = Timeline::of(&RunEvents::read(&dir.path().join("none")));
        assert!(none.nodes.is_empty() && none.notes.iter().any(|note| note.contains("cannot read")), "{none:?}");
    }

    #[test]
    fn names_torn_lines() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rank-0.jsonl"), "{\"t\":1,\"ra").unwrap();
        let timeline = Timeline::of(&RunEvents::read(dir.path()));
        assert_eq!(
            timeline.notes[0],
            "an event of rank 0 is torn (line 1): its writer was killed or its disk was full"
        );
        assert_drawable(&timeline);
    }

    #[test]
    fn keeps_the_last_of_verdicts_in_a_row() {
        let verdict = |cause: &str| AgentEvent::Verdict(VerdictRecord { cause: cause.into(), ..killed(1) });
        let run = two_nodes().agent("node0", 9.0, verdict("unknown")).agent("node0", 9.1, verdict("elsewhere"));
        let causes: Vec<String> = run.timeline().verdicts.into_iter().map(|judged| judged.verdict.cause).collect();
        assert_eq!(causes, ["somebody else killed it", "elsewhere"]);
    }
}
