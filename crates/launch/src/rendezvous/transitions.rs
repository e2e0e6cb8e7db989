//! The transitions between states of the rendezvous. They are pure and keep the invariants of [`State::check`]: no node occurs twice,
//! there are never more members than the maximum, and no node waits while a place is free.

use std::cmp::Ordering;

use lockstep_contract::foreign::one_line;

use super::node::{Job, Me, Node, NodeId};
use super::state::{Cause, Closing, Lost, Member, Refused, RoundPhase, State};

/// How many lost nodes are kept for messages.
const MAX_LOST: usize = 16;

/// Transitions. Each returns the next state.
impl State {
    /// A rendezvous without nodes.
    pub(super) fn empty(job: Job) -> State {
        State {
            version: 0,
            news: 0,
            term: 0,
            leader: None,
            job,
            round: 0,
            phase: RoundPhase::Gathering,
            cause: Cause::Start,
            members: Vec::new(),
            waiting: Vec::new(),
            lost: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Adds `me` as a member or, if all places are taken, as a waiting node. A running round must be re-formed first.
    pub(super) fn with(mut self, me: &Me) -> State {
        for (role, command) in &me.job.commands {
            self.job.commands.entry(role.clone()).or_insert_with(|| command.clone());
        }
        if let Some(member) = self.members.iter_mut().find(|member| member.node.id == me.node.id) {
            member.arrived = true;
        } else if !self.waits(me.node.id) {
            self.waiting.push(me.node.clone());
        }
        self.fill()
    }

    /// Turns a running round into the gathering of the next one, in which all of its members are expected. If some have
    /// already succeeded, the others cannot have a next round, and the job is closed.
    pub(super) fn reformed(mut self, cause: Cause) -> State {
        if let Some(done) = self.done().first().and_then(|id| self.node(*id)).cloned() {
            return self.closed_after(&done, cause);
        }
        self.members.iter_mut().for_each(|member| member.arrived = false);
        self.round += 1;
        (self.phase, self.cause) = (RoundPhase::Gathering, cause);
        self.fill()
    }

    /// Removes these nodes, each with its reason. Members that have succeeded stay, because their part is complete.
    pub(super) fn without(mut self, gone: Vec<(NodeId, String)>, cause: fn(Node, String) -> Cause) -> State {
        let mut missed = None;
        for (id, why) in gone {
            if self.done().contains(&id) {
                continue;
            }
            let Some(node) = self.node(id).cloned() else { continue };
            let why = one_line(&why);
            if self.member(id).is_some() {
                missed.get_or_insert_with(|| cause(node.clone(), why.clone()));
            }
            let place = self.members.iter().position(|member| member.node.id == id);
            if self.ends_with(id) {
                // The members of the round stay unchanged: the closing names the lost one.
                continue;
            }
            place.map(|at| self.members.remove(at));
            self.waiting.retain(|node| node.id != id);
            self.lost.push(Lost { node, why, round: self.round });
        }
        let excess = self.lost.len().saturating_sub(MAX_LOST);
        self.lost.drain(..excess);
        match (missed, &self.phase) {
            (Some(cause), RoundPhase::Running { .. }) => self.reformed(cause),
            _ => self.fill(),
        }
    }

    /// Returns true if losing member `id` ends the job, because others have already succeeded.
    fn ends_with(&self, id: NodeId) -> bool {
        !self.done().is_empty() && self.member(id).is_some()
    }

    /// Completes the gathering: puts members in the order of their group ranks.
    pub(super) fn complete(mut self) -> State {
        self.members.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| by_name(&a.node, &b.node)));
        self.members.iter_mut().enumerate().for_each(|(at, member)| member.rank = Some(at));
        self.phase = RoundPhase::Running { done: Vec::new() };
        self
    }

    /// Marks member `id` as done; finishes the job if it was the last.
    pub(super) fn succeeded(mut self, id: NodeId) -> State {
        if let RoundPhase::Running { done } = &mut self.phase {
            done.push(id);
            if done.len() == self.members.len() {
                self.phase = RoundPhase::Finished;
            }
        }
        self
    }

    /// Closes the job.
    pub(super) fn closed(mut self, mut closing: Closing) -> State {
        closing.reason = one_line(&closing.reason);
        if let Some(root) = &mut closing.root_cause {
            root.message = one_line(&root.message);
        }
        self.phase = RoundPhase::Closed(closing);
        self
    }

    fn closed_after(self, done: &Node, cause: Cause) -> State {
        let reason = format!(
            "{}, after the workers of {done} had already finished: they cannot be restarted together with the others",
            cause.text()
        );
        let by = cause.node().unwrap_or(done).clone();
        self.closed(Closing { by, reason, root_cause: None })
    }

    /// Gives free places to waiting nodes, first come, first served.
    fn fill(mut self) -> State {
        while self.phase == RoundPhase::Gathering && self.members.len() < self.job.max_nodes {
            let Some(at) = self.waiting.iter().position(|node| self.rank_holder(node).is_none()) else { break };
            let node = self.waiting.remove(at);
            self.members.push(Member { node, arrived: true, rank: None });
        }
        self
    }

    /// Removes the waiting node `id`, whose rank `holder` has.
    pub(super) fn refusing(mut self, id: NodeId, holder: Node) -> State {
        self.waiting.retain(|node| node.id != id);
        self.refused.push(Refused { id, holder });
        let excess = self.refused.len().saturating_sub(MAX_LOST);
        self.refused.drain(..excess);
        self
    }
}

/// The order of members: nodes that request a rank; then the host of the store, because the workers' store is best hosted where
/// the address is known; then members of the previous round, in their order; then new nodes.
fn place(member: &Member) -> (usize, bool, usize) {
    let insists = member.node.node_rank.unwrap_or(usize::MAX);
    (insists, !member.node.hosts_store, member.rank.unwrap_or(usize::MAX))
}

/// Natural order of host names, `gpu2` before `gpu10`, so that neighbours get neighbouring ranks.
fn by_name(a: &Node, b: &Node) -> Ordering {
    chunks(&a.host).cmp(&chunks(&b.host)).then(a.id.cmp(&b.id))
}

/// Splits a name into (text, number) pairs; numbers are compared by length first, so they need not fit in an integer.
fn chunks(name: &str) -> Vec<(&str, usize, &str)> {
    let mut rest = name;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let number = tail[..end].trim_start_matches('0');
        found.push((text, number.len(), number));
        rest = &tail[end..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::{job, node};
    use super::*;

    fn me(id: NodeId, host: &str) -> Me {
        Me { node: node(id, host), job: job(1, 3) }
    }

    fn gathered(hosts: &[&str]) -> State {
        let join = |state: State, (at, host): (usize, &&str)| state.with(&me(at as NodeId + 1, host));
        hosts.iter().enumerate().fold(State::empty(job(1, 3)), join)
    }

    fn ids(state: &State) -> Vec<NodeId> {
        state.members.iter().map(|member| member.node.id).collect()
    }

    #[test]
    fn ranks_new_nodes_in_the_natural_order_of_host_names() {
        assert_eq!(ids(&gathered(&["gpu10", "gpu9", "gpu010"]).complete()), [2, 1, 3]);
        assert_eq!(ids(&gathered(&["b", "a1x", "a01w"]).complete()), [3, 2, 1]);
    }

    #[test]
    fn gives_rank_0_to_the_host_of_the_store_and_keeps_the_order_of_survivors() {
        let mut state = gathered(&["c", "b", "a"]);
        state.members[0].node.hosts_store = true;
        let state = state.complete();
        assert_eq!(ids(&state), [1, 3, 2]);
        let state = state.without(vec![(3, "gone".into())], |node, why| Cause::NodeLost { node, why });
        let state = state.with(&me(9, "a")).with(&me(2, "b")).with(&me(1, "c"));
        assert_eq!((state.round, ids(&state.complete())), (1, vec![1, 2, 9]));
    }

    #[test]
    fn gives_requested_ranks() {
        let mut state = gathered(&["a", "b"]);
        (state.members[0].node.node_rank, state.members[1].node.node_rank) = (Some(1), Some(0));
        assert_eq!(ids(&state.complete()), [2, 1]);
    }

    #[test]
    fn makes_the_fourth_of_three_nodes_wait_until_a_place_is_free() {
        let state = gathered(&["a", "b", "c", "d", "e"]);
        assert_eq!((ids(&state), state.waiting.len()), (vec![1, 2, 3], 2));
        let state = state.complete().without(vec![(2, "gone".into())], |node, why| Cause::NodeLost { node, why });
        assert_eq!((ids(&state), state.waiting.len(), state.arrived()), (vec![1, 3, 4], 1, 1));
        assert_eq!(state.lost[0].why, "gone");
    }

    #[test]
    fn closes_when_a_member_is_lost_after_another_has_finished() {
        let state = gathered(&["a", "b"]).complete().succeeded(1);
        let lost = state.clone().without(vec![(2, "no heartbeat".into())], |node, why| Cause::NodeLost { node, why });
        let RoundPhase::Closed(closing) = &lost.phase else { panic!("{lost:?}") };
        assert_eq!(
            closing.reason,
            "node 2 (b, pid 100) was lost: no heartbeat, after the workers of node 1 (a, pid 100) had already \
             finished: they cannot be restarted together with the others"
        );
        let kept = state.clone().without(vec![(1, "no heartbeat".into())], |node, why| Cause::NodeLost { node, why });
        assert_eq!(kept.done(), [1]);
        assert_eq!(state.succeeded(2).phase, RoundPhase::Finished);
    }
}
