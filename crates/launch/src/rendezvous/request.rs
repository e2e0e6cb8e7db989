//! What a node asks of the leader, and what the state is with it granted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::node::{Job, Me, Node, NodeId};
use super::state::{Cause, Closing, Phase, State};

/// A node asks for something.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Who asks.
    pub from: NodeId,
    /// For what.
    pub want: Want,
}

/// What a node wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// To take part in a round: its workers have ended. Asked again whenever the round has changed and it is not in it.
    Join {
        /// What it tells of itself.
        node: Box<Node>,
        /// The command line of its workers, by role.
        commands: BTreeMap<String, String>,
        /// The last round that it was given.
        given: Option<u64>,
        /// The round that gathered or ran when it asked.
        round: u64,
    },
    /// To have the workers of this round started again.
    Restart {
        /// The round.
        round: u64,
        /// What failed.
        reason: String,
    },
    /// To have it known that its workers of this round have all succeeded.
    Succeed {
        /// The round.
        round: u64,
    },
    /// To end the job for all.
    Close(Box<Closing>),
    /// To go.
    Leave {
        /// Why.
        why: String,
    },
}

impl State {
    /// The state once `request` is granted; the same where there is nothing to grant.
    pub(super) fn granting(self, request: Request) -> State {
        let from = request.from;
        match request.want {
            _ if self.is_final() => self,
            // Nobody joins for somebody else.
            Want::Join { ref node, .. } if node.id != from => self,
            Want::Leave { why } => self.left(from, why),
            Want::Join { node, commands, given, round } => {
                let job = Job { commands, ..self.job.clone() };
                self.joined(Me { node: *node, job }, given, round)
            }
            Want::Restart { round, reason } => self.restarted(from, round, reason),
            Want::Succeed { round } => match self.runs(from, round) {
                true => self.succeeded(from),
                false => self,
            },
            Want::Close(closing) => match self.node(from) {
                Some(_) => self.closed(*closing),
                None => self,
            },
        }
    }

    /// Whether node `id` is a member of the running `round` and has not succeeded.
    fn runs(&self, id: NodeId, round: u64) -> bool {
        let running = matches!(self.phase, Phase::Running { .. }) && self.round == round;
        running && self.member(id).is_some() && !self.done().contains(&id)
    }

    fn restarted(self, id: NodeId, round: u64, reason: String) -> State {
        match self.member(id).map(|member| member.node.clone()) {
            Some(node) if self.runs(id, round) => self.reformed(Cause::Restart { node, reason }),
            _ => self,
        }
    }

    fn joined(self, me: Me, given: Option<u64>, round: u64) -> State {
        // Its agent sees the difference in the header, and says so.
        if !me.job.differences(&self.job).is_empty() {
            return self;
        }
        let known = self.node(me.node.id).is_some();
        // It has taken part in a round since it asked: its workers may run.
        let stale = round < self.round && given.is_none_or(|given| given + 1 < self.round);
        match &self.phase {
            Phase::Gathering if known && stale => self,
            Phase::Gathering => self.with(&me),
            Phase::Running { done } if known && given == Some(self.round) && !done.contains(&me.node.id) => {
                self.restarted(me.node.id, given.unwrap_or_default(), "it joins again".to_owned()).come_back(&me)
            }
            // It has what it wants, or the job ends and nobody is let in.
            Phase::Running { done } if known || !done.is_empty() => self,
            _ => self.newcomer(&me),
        }
    }

    /// A running round meets a node that it does not know.
    fn newcomer(self, me: &Me) -> State {
        let contested = me.node.node_rank.is_some() && self.everyone().any(|node| node.node_rank == me.node.node_rank);
        match contested || self.members.len() >= self.job.max_nodes {
            true => self.with(me),
            false => self.reformed(Cause::Newcomer { node: me.node.clone() }).with(me),
        }
    }

    fn come_back(self, me: &Me) -> State {
        match self.phase {
            Phase::Gathering => self.with(me),
            _ => self,
        }
    }

    fn left(mut self, id: NodeId, why: String) -> State {
        if self.leader.as_ref().is_some_and(|leader| leader.id == id) {
            self.leader = None;
        }
        let Some(node) = self.node(id).filter(|_| !self.done().contains(&id)).cloned() else {
            return self;
        };
        if node.hosts_store {
            let reason = format!("the store lives in this agent, which has to go: {why}");
            return self.closed(Closing { by: node, reason, root_cause: None });
        }
        self.without(vec![(id, why)], |node, why| Cause::NodeLeft { node, why })
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::{job, node};
    use super::*;

    fn ask(state: State, from: NodeId, want: Want) -> State {
        state.granting(Request { from, want })
    }

    fn join(state: State, id: NodeId, rank: Option<usize>, given: Option<u64>) -> State {
        let mut node = node(id, "h");
        node.node_rank = rank;
        let round = state.round;
        ask(state, id, Want::Join { node: Box::new(node), commands: job(1, 3).commands, given, round })
    }

    fn running() -> State {
        (1..=2).fold(State::empty(job(1, 3)), |state, id| join(state, id, None, None)).complete()
    }

    #[test]
    fn a_newcomer_turns_a_running_round_into_the_gathering_of_the_next() {
        let state = join(running(), 3, None, None);
        assert_eq!((state.round, state.arrived(), state.members.len()), (1, 1, 3));
        assert!(matches!(state.cause, Cause::Newcomer { node } if node.id == 3));
    }

    #[test]
    fn a_request_that_came_too_late_changes_nothing() {
        let state = running();
        assert_eq!(join(state.clone(), 1, None, None), state);
        assert_eq!(ask(state.clone(), 1, Want::Restart { round: 7, reason: String::new() }), state);
        assert_eq!(ask(state.clone(), 9, Want::Succeed { round: 0 }), state);
        let ending = state.succeeded(1);
        assert_eq!(join(ending.clone(), 3, None, None), ending);
        assert_eq!(ask(ending.clone(), 1, Want::Restart { round: 0, reason: String::new() }), ending);
    }

    #[test]
    fn a_node_has_not_come_back_by_what_it_asked_before_it_took_part() {
        let (node, commands) = (Box::new(node(2, "h")), job(1, 3).commands);
        let late = |given, round| Want::Join { node: node.clone(), commands: commands.clone(), given, round };
        let state = running().reformed(Cause::Newcomer { node: (*node).clone() });
        assert_eq!(ask(state.clone(), 2, late(None, 0)).arrived(), 0);
        assert_eq!(ask(state.clone(), 2, late(Some(0), 0)).arrived(), 1);
        assert_eq!(ask(state, 2, late(None, 1)).arrived(), 1);
    }

    #[test]
    fn a_member_that_joins_again_restarts_the_round_and_has_come() {
        let state = join(running(), 2, None, Some(0));
        assert_eq!((state.round, state.arrived()), (1, 1));
        assert_eq!(state.cause.text(), "node 2 (h, pid 100) starts its workers again: it joins again");
    }

    #[test]
    fn a_node_whose_rank_is_held_waits_though_a_place_is_free() {
        let state = join(join(State::empty(job(1, 3)), 1, Some(0), None), 2, Some(0), None);
        assert_eq!((state.members.len(), state.waiting.len(), state.contests().count()), (1, 1, 1));
        let state = join(state.complete(), 3, Some(0), None);
        assert_eq!((state.round, state.contests().count()), (0, 2));
        let freed = ask(state, 1, Want::Leave { why: "SIGTERM".into() });
        assert_eq!((freed.round, freed.members[0].node.id, freed.contests().count()), (1, 2, 1));
    }

    #[test]
    fn a_leader_that_leaves_resigns_even_after_it_has_succeeded() {
        let mut state = running().succeeded(1);
        state.leader = Some(node(1, "h"));
        let left = ask(state.clone(), 1, Want::Leave { why: String::new() });
        assert_eq!(left, State { leader: None, ..state.clone() });
        // The end is not changed even by that.
        let finished = state.succeeded(2);
        assert_eq!(ask(finished.clone(), 1, Want::Leave { why: String::new() }), finished);
    }

    #[test]
    fn the_host_of_the_store_ends_the_job_when_it_leaves() {
        let mut state = running();
        state.members[0].node.hosts_store = true;
        let state = ask(state, 1, Want::Leave { why: "SIGTERM".into() });
        let Phase::Closed(closing) = &state.phase else { panic!("{state:?}") };
        assert_eq!(closing.reason, "the store lives in this agent, which has to go: SIGTERM");
        assert_eq!(join(state.clone(), 3, None, None), state);
    }
}
