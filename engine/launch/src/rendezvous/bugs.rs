//! Mistakes that are made on purpose, to see that a rule of the [`world`](super::world) finds each.

use super::authority::{Authority, Conn, Event};
use super::error::Change;
use super::message::{Request, View};
use super::state::{Member, RoundPhase};

/// A mistake that is made on purpose, to see that the search finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The authority completes a round before all members have come.
    Impatient,
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
    /// A candidate takes an authority that does not answer for dead.
    Bold,
    /// Half of the members are enough for a candidate.
    Half,
    /// A round counts as known to all its members as soon as it runs.
    Eager,
    /// An agent that leaves a silent authority closes the connection, as if it had ended.
    Closing,
    /// An authority that has been superseded goes on.
    Stubborn,
    /// All that take over are of the same generation.
    Ageless,
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

    /// Those of takeovers, which simulated schedules find, each with the rule that finds it.
    pub(super) const TAKEOVERS: [(Bug, &str); 6] = [
        (Bug::Bold, "two"),
        (Bug::Half, "right"),
        (Bug::Eager, "right"),
        (Bug::Closing, "two"),
        (Bug::Stubborn, "old"),
        (Bug::Ageless, "generation"),
    ];

    /// What arrives at the authority.
    pub(super) fn on_the_way(bug: Option<Bug>, authority: &mut Authority, event: Event) -> Vec<Event> {
        let state = &mut authority.state;
        match (bug, event) {
            (Some(Bug::Resurrects), event) if state.phase == RoundPhase::Gathering => {
                if let Some(lost) = state.lost.last().filter(|lost| state.node(lost.node.id).is_none()) {
                    state.members.push(Member { node: lost.node.clone(), arrived: true, rank: None });
                }
                vec![event]
            }
            (Some(Bug::Blind), Event::Closed) => vec![],
            (Some(Bug::Restless), event @ Event::Asks(Request::Join { .. })) => {
                if state.is_final() {
                    state.phase = RoundPhase::Gathering;
                }
                vec![event]
            }
            (_, event) => vec![event],
        }
    }

    /// What has become of the authority.
    pub(super) fn after(bug: Option<Bug>, authority: &mut Authority) {
        let known = authority.is_established() || !authority.state.is_running();
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
            Some(Bug::Blind) => authority.peers.values_mut().for_each(|peer| peer.heard = authority.looked),
            Some(Bug::Half) => {
                if let Some(claim) = authority.claim.as_mut().filter(|claim| claim.leads.is_none()) {
                    let (followers, size) = claim.followers();
                    claim.leads = (2 * followers >= size).then_some(authority.looked);
                }
            }
            Some(Bug::Eager) if !known => {
                authority.took = authority.state.members.iter().map(|member| member.node.id).collect();
                authority.establish();
            }
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
    pub(super) fn sent(bug: Option<Bug>, asked: Conn, mut views: Vec<(Conn, View)>) -> Vec<(Conn, View)> {
        if bug == Some(Bug::Terse) {
            views.retain(|(conn, _)| *conn == asked);
        }
        views
    }

    /// The generation of the authority that the candidate of this place would be.
    pub(super) fn generation(bug: Option<Bug>, generation: u64) -> u64 {
        if bug == Some(Bug::Ageless) { 1 } else { generation }
    }

    pub(super) fn ignores(bug: Option<Bug>, change: &Change) -> bool {
        bug == Some(Bug::Deaf) && matches!(change, Change::Newcomers { .. })
    }
}
