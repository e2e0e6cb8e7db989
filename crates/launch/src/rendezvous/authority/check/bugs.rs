//! Mistakes that are made on purpose, to see that the search finds them, and the rule that each breaks.

use super::super::super::error::Change;
use super::super::super::message::{View, Want};
use super::super::super::state::Member;
use super::super::{Authority, Conn, Event, RoundPhase};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The authority completes a round before all members have come.
    Impatient,
    /// It grants a request that was sent before the node was removed. This one was made without a purpose, and the search found it.
    Credulous,
    /// It does not notice that a connection has closed, or a silence.
    Blind,
    /// It gives a place that does not exist.
    Crowded,
    /// It opens a job that has ended.
    Restless,
    /// It tells only the node that asked.
    Terse,
    /// It brings a removed node back under its old id.
    Resurrects,
    /// It gives a round the number of one that has run already.
    Repeats,
    /// It gives survivors other ranks.
    Shuffles,
    /// Agents do not notice that their round has ended.
    Deaf,
    /// Agents join again before their workers have ended.
    Hasty,
}

impl Bug {
    /// Those that a short search finds, each with the rule that finds it.
    pub(super) const ALL: [(Bug, &str); 10] = [
        (Bug::Impatient, "stopped"),
        (Bug::Blind, "recovers"),
        (Bug::Crowded, "size"),
        (Bug::Restless, "final"),
        (Bug::Terse, "recovers"),
        (Bug::Resurrects, "id"),
        (Bug::Repeats, "round"),
        (Bug::Shuffles, "order"),
        (Bug::Deaf, "recovers"),
        (Bug::Hasty, "stopped"),
    ];

    /// What arrives at the authority.
    pub(super) fn on_the_way(bug: Option<Bug>, authority: &mut Authority, conn: Conn, event: Event) -> Vec<Event> {
        let state = &mut authority.state;
        match (bug, event) {
            (Some(Bug::Resurrects), event) if state.phase == RoundPhase::Gathering => {
                if let Some(lost) = state.lost.last().filter(|lost| state.node(lost.node.id).is_none()) {
                    state.members.push(Member { node: lost.node.clone(), arrived: true, rank: None });
                }
                vec![event]
            }
            (Some(Bug::Blind), Event::Closed) => vec![],
            (Some(Bug::Restless), event @ Event::Wants(Want::Join { .. })) => {
                if state.is_final() {
                    state.phase = RoundPhase::Gathering;
                }
                vec![event]
            }
            (Some(Bug::Credulous), Event::Wants(Want::Join { node, job, given, round, .. })) => {
                let was = authority.lines.get(&conn).map_or(0, |line| line.was);
                vec![Event::Wants(Want::Join { node, job, was, given, round })]
            }
            (_, event) => vec![event],
        }
    }

    /// What has become of the authority.
    pub(super) fn after(bug: Option<Bug>, authority: &mut Authority) {
        let state = &mut authority.state;
        let gathers = state.phase == RoundPhase::Gathering;
        match bug {
            Some(Bug::Impatient) if gathers && state.round > 0 && state.members.len() >= state.job.min_nodes => {
                state.complete();
            }
            Some(Bug::Crowded) if gathers && !state.waiting.is_empty() => {
                let node = state.waiting.remove(0);
                state.members.push(Member { node, arrived: true, rank: None });
            }
            Some(Bug::Blind) => authority.lines.values_mut().for_each(|line| line.heard = authority.looked),
            Some(Bug::Repeats) if state.is_running() && state.round > 0 => state.round -= 1,
            Some(Bug::Shuffles) if gathers && state.round > 0 => {
                let last = state.members.len();
                state.members.iter_mut().enumerate().for_each(|(at, member)| {
                    member.node.hosts_store = false;
                    member.rank = Some(last - at);
                });
            }
            _ => {}
        }
    }

    /// Which views are sent.
    pub(super) fn told(bug: Option<Bug>, asked: Conn, mut views: Vec<(Conn, View)>) -> Vec<(Conn, View)> {
        if bug == Some(Bug::Terse) {
            views.retain(|(conn, _)| *conn == asked);
        }
        views
    }

    pub(super) fn ignores(bug: Option<Bug>, change: &Change) -> bool {
        bug == Some(Bug::Deaf) && matches!(change, Change::Newcomers { .. })
    }
}
