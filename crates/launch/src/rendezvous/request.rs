//! Requests of nodes to the leader, and the state after they are granted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::node::{Job, Me, Node, NodeId};
use super::state::{Cause, Closing, RoundPhase, State};

/// A request of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// The node that sent it.
    pub from: NodeId,
    /// The content of the request.
    pub want: Want,
}

/// What a node requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// To take part in a round: its workers have ended. Sent again whenever the round has changed without this node.
    Join {
        /// What the node publishes about itself.
        node: Box<Node>,
        /// The command line of its workers, by role.
        commands: BTreeMap<String, String>,
        /// The last round that it took part in.
        given: Option<u64>,
        /// The round that gathered or ran when it sent the request.
        round: u64,
    },
    /// To restart the workers of this round.
    Restart {
        /// The round.
        round: u64,
        /// What failed.
        reason: String,
    },
    /// To announce that its workers of this round have all succeeded.
    Succeed {
        /// The round.
        round: u64,
    },
    /// To end the job for all nodes.
    Close(Box<Closing>),
    /// To leave.
    Leave {
        /// Why.
        why: String,
    },
}

impl State {
    /// The state after `request` is granted; unchanged if there is nothing to grant.
    pub(super) fn granting(self, request: Request) -> State {
        let from = request.from;
        match request.want {
            _ if self.is_final() => self,
            // A node cannot join on behalf of another.
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

    /// Returns true if node `id` is a member of the running `round` and has not succeeded yet.
    fn runs(&self, id: NodeId, round: u64) -> bool {
        let running = matches!(self.phase, RoundPhase::Running { .. }) && self.round == round;
        running && self.member(id).is_some() && !self.done().contains(&id)
    }

    fn restarted(self, id: NodeId, round: u64, reason: String) -> State {
        match self.member(id).map(|member| member.node.clone()) {
            Some(node) if self.runs(id, round) => self.reformed(Cause::Restart { node, reason }),
            _ => self,
        }
    }

    fn joined(self, me: Me, given: Option<u64>, round: u64) -> State {
        // Its agent sees the difference in the header and reports it.
        if !me.job.differences(&self.job).is_empty() {
            return self;
        }
        let known = self.node(me.node.id).is_some();
        // It has taken part in a round since it sent the request: its workers may be running.
        let stale = round < self.round && given.is_none_or(|given| given + 1 < self.round);
        match &self.phase {
            RoundPhase::Gathering if known && stale => self,
            RoundPhase::Gathering => self.with(&me),
            RoundPhase::Running { done } if known && given == Some(self.round) && !done.contains(&me.node.id) => {
                self.restarted(me.node.id, given.unwrap_or_default(), "it joins again".to_owned()).come_back(&me)
            }
            // It already is a member, or the job is ending and no node can join.
            RoundPhase::Running { done } if known || !done.is_empty() => self,
            _ => self.newcomer(&me),
        }
    }

    /// Handles a node that a running round does not know.
    fn newcomer(self, me: &Me) -> State {
        let contested = me.node.node_rank.is_some() && self.everyone().any(|node| node.node_rank == me.node.node_rank);
        match contested || self.members.len() >= self.job.max_nodes {
            true => self.with(me),
            false => self.reformed(Cause::Newcomer { node: me.node.clone() }).with(me),
        }
    }

    fn come_back(self, me: &Me) -> State {
        match self.phase {
            RoundPhase::Gathering => self.with(me),
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
            let reason = format!("this agent hosts the store and has to leave: {why}");
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
    fn a_late_request_changes_nothing() {
        let state = running();
        assert_eq!(join(state.clone(), 1, None, None), state);
        assert_eq!(ask(state.clone(), 1, Want::Restart { round: 7, reason: String::new() }), state);
        assert_eq!(ask(state.clone(), 9, Want::Succeed { round: 0 }), state);
        let ending = state.succeeded(1);
        assert_eq!(join(ending.clone(), 3, None, None), ending);
        assert_eq!(ask(ending.clone(), 1, Want::Restart { round: 0, reason: String::new() }), ending);
    }

    #[test]
    fn an_old_request_does_not_make_a_member_come_back() {
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
    fn a_node_whose_rank_is_taken_waits_even_if_a_place_is_free() {
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
        // The final state stays unchanged even then.
        let finished = state.succeeded(2);
        assert_eq!(ask(finished.clone(), 1, Want::Leave { why: String::new() }), finished);
    }

    #[test]
    fn the_host_of_the_store_ends_the_job_when_it_leaves() {
        let mut state = running();
        state.members[0].node.hosts_store = true;
        let state = ask(state, 1, Want::Leave { why: "SIGTERM".into() });
        let RoundPhase::Closed(closing) = &state.phase else { panic!("{state:?}") };
        assert_eq!(closing.reason, "this agent hosts the store and has to leave: SIGTERM");
        assert_eq!(join(state.clone(), 3, None, None), state);
    }
}
