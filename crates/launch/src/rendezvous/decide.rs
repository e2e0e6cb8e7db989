//! What to do next: a pure function of the time, the shared state, who I am, and what I have observed.

use std::time::Duration;

use super::error::{Absence, Change, Refusal, RendezvousError, Seen};
use super::memory::{Goal, Memory};
use super::node::{Me, Node};
use super::options::Options;
use super::reason::Reason;
use super::round::Round;
use super::state::{Cause, Closing, Phase, State};

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What.
    pub action: Action,
    /// Why, with its numbers.
    pub reason: Reason,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put this state in the place of the one that was looked at, provided that it is still there; then look again.
    Write(Box<State>),
    /// Get a new number from the store, then look again.
    Renew,
    /// Look again when the state has changed, or a heartbeat may have stopped, or at this time at the latest.
    Wait {
        /// When there is something to do even if nothing changes.
        until: Option<Duration>,
    },
    /// A round runs with this node in it.
    Formed(Box<Round>),
    /// This node's part in its round has ended.
    Changed(Box<Change>),
    /// What this node wanted to say is known to all.
    Done,
    /// It cannot take part.
    Fail(Box<RendezvousError>),
}

/// What `me` is to do at `now`, having seen `state` (`None` where the store holds none).
#[must_use]
pub fn decide(now: Duration, state: Option<&State>, me: &Me, memory: &Memory, options: &Options) -> Decision {
    let look = Look { now, me, memory, options };
    let Some(state) = state else { return look.nothing_there() };
    match &memory.goal {
        Goal::Join { since } => look.join(state, *since),
        Goal::Stay { round } => look.stay(state, *round),
        Goal::Restart { round, reason } => look.restart(state, *round, reason),
        Goal::Succeed { round } => look.succeed(state, *round),
        Goal::Close(closing) => match state.is_final() || state.node(me.node.id).is_none() {
            true => Decision::done(),
            false => Decision::write(state.clone().closed((**closing).clone()), Reason::Wanted),
        },
        Goal::Leave { why } => look.leave(state, why),
    }
}

struct Look<'a> {
    now: Duration,
    me: &'a Me,
    memory: &'a Memory,
    options: &'a Options,
}

impl Look<'_> {
    fn nothing_there(&self) -> Decision {
        match &self.memory.goal {
            Goal::Join { .. } => match self.refusal_of_me() {
                Some(refusal) => refuse(refusal),
                None => Decision::write(State::empty(self.me.job.clone()).with(self.me), Reason::First),
            },
            Goal::Stay { .. } | Goal::Succeed { .. } => changed(Change::Evicted { why: EMPTY.to_owned() }),
            Goal::Restart { .. } | Goal::Close(_) | Goal::Leave { .. } => Decision::done(),
        }
    }

    fn join(&self, state: &State, since: Duration) -> Decision {
        if let Some(refusal) = self.refusal_of_me().or_else(|| self.refusal_by(state)) {
            return refuse(refusal);
        }
        match &state.phase {
            Phase::Closed(closing) => return fail(RendezvousError::Closed(Box::new(closing.clone()))),
            Phase::Finished => return fail(RendezvousError::Finished),
            Phase::Running { .. } | Phase::Gathering => {}
        }
        let here = state.node(self.me.node.id).is_some();
        if self.memory.entered && !here {
            return Decision { action: Action::Renew, reason: Reason::StruckOut };
        }
        if let Phase::Running { .. } = state.phase
            && state.member(self.me.node.id).is_some()
            && self.memory.given != Some(state.round)
        {
            return self.formed(state);
        }
        if let Some(strike) = self.strike(state) {
            return strike;
        }
        let next = match &state.phase {
            Phase::Running { done } => self.join_running(state, done.len()),
            _ => self.join_gathering(state),
        };
        let deadline = since + self.options.join_timeout;
        match next.action {
            Action::Wait { .. } if self.now >= deadline && !state.waits(self.me.node.id) => self.too_late(state, since),
            Action::Wait { until } => next.until(until.map_or(deadline, |until| until.min(deadline))),
            _ => next,
        }
    }

    fn join_gathering(&self, state: &State) -> Decision {
        let (came, id) = (state.arrived(), self.me.node.id);
        match state.member(id) {
            Some(member) if member.arrived => self.gather(state),
            None if state.waits(id) => self.spare(state),
            known => {
                if let (None, Some(holder)) = (known, state.rank_holder(&self.me.node)) {
                    return self.contest(holder);
                }
                let reason = Reason::Comes { came: came + 1, max: state.job.max_nodes };
                Decision::write(state.clone().with(self.me), reason)
            }
        }
    }

    /// The round runs without this node, or this node wants out of it.
    fn join_running(&self, state: &State, done: usize) -> Decision {
        let me = &self.me.node;
        if state.member(me.id).is_some() {
            let reason = "it joins again".to_owned();
            return Decision::write(
                state.clone().reformed(Cause::Restart { node: me.clone(), reason }),
                Reason::Wanted,
            );
        }
        if state.waits(me.id) {
            return self.spare(state);
        }
        if let Some(holder) = state.rank_holder(me) {
            return self.contest(holder);
        }
        if done > 0 {
            return Decision::wait(Reason::Ending { done, of: state.members.len() });
        }
        let came = state.members.len() + 1;
        let reason = Reason::Comes { came, max: state.job.max_nodes };
        match came <= state.job.max_nodes {
            true => Decision::write(state.clone().reformed(Cause::Newcomer { node: me.clone() }).with(self.me), reason),
            false => Decision::write(state.clone().with(self.me), reason),
        }
    }

    /// This node has come: is it time?
    fn gather(&self, state: &State) -> Decision {
        let (came, min, max) = (state.arrived(), state.job.min_nodes, state.job.max_nodes);
        if came < state.members.len() {
            return Decision::wait(Reason::Expecting { nodes: state.expected().cloned().collect(), came });
        }
        if came < min {
            return Decision::wait(Reason::TooFew { came, min });
        }
        let until = self.memory.enough_since(state.round).unwrap_or(self.now) + self.options.last_call_timeout;
        if came == max || state.round > 0 || self.now >= until {
            return Decision::write(state.clone().complete(), Reason::Complete { came, max });
        }
        let left = until - self.now;
        Decision::wait(Reason::LastCall { came, min, max, left }).until(until)
    }

    fn spare(&self, state: &State) -> Decision {
        let place = state.waiting.iter().position(|node| node.id == self.me.node.id).unwrap_or_default() + 1;
        let members = state.members.iter().map(|member| member.node.clone()).collect();
        Decision::wait(Reason::Spare { place, max: state.job.max_nodes, members })
    }

    /// The rank is held: by a live node, or by the remains of one that is about to be struck out?
    fn contest(&self, holder: &Node) -> Decision {
        let (rank, mine) = (self.me.node.node_rank.unwrap_or_default(), Box::new(self.me.node.clone()));
        match self.memory.lives(holder.id) {
            true => refuse(Refusal::RankTaken { rank, holder: Box::new(holder.clone()), mine }),
            false => Decision::wait(Reason::RankHeld { rank, holder: holder.clone() }),
        }
    }

    fn stay(&self, state: &State, round: u64) -> Decision {
        if let Some(change) = self.change(state, round) {
            return changed(change);
        }
        self.strike(state).unwrap_or_else(|| Decision::wait(steady(state)))
    }

    fn restart(&self, state: &State, round: u64, reason: &str) -> Decision {
        let id = self.me.node.id;
        match &state.phase {
            Phase::Running { done } if state.round == round && state.member(id).is_some() && !done.contains(&id) => {
                let cause = Cause::Restart { node: self.me.node.clone(), reason: reason.to_owned() };
                Decision::write(state.clone().reformed(cause), Reason::Wanted)
            }
            _ => Decision::done(),
        }
    }

    fn succeed(&self, state: &State, round: u64) -> Decision {
        let id = self.me.node.id;
        match (&state.phase, self.change(state, round)) {
            (Phase::Finished, _) => Decision::done(),
            (_, Some(change)) => changed(change),
            (Phase::Running { done }, None) if done.contains(&id) => Decision::done(),
            _ => Decision::write(state.clone().succeeded(id), Reason::Wanted),
        }
    }

    fn leave(&self, state: &State, why: &str) -> Decision {
        let id = self.me.node.id;
        if state.is_final() || state.node(id).is_none() || state.done().contains(&id) {
            return Decision::done();
        }
        if self.me.node.hosts_store {
            let reason = format!("the store lives in this agent, which has to go: {why}");
            let closing = Closing { by: self.me.node.clone(), reason, root_cause: None };
            return Decision::write(state.clone().closed(closing), Reason::Wanted);
        }
        let left = |node, why| Cause::NodeLeft { node, why };
        Decision::write(state.clone().without(vec![(id, why.to_owned())], left), Reason::Wanted)
    }

    /// Whether the round that this node is in has ended, and how.
    fn change(&self, state: &State, round: u64) -> Option<Change> {
        match &state.phase {
            Phase::Closed(closing) => return Some(Change::Closed(closing.clone())),
            Phase::Finished => return Some(Change::AllDone),
            Phase::Running { .. } | Phase::Gathering => {}
        }
        let id = self.me.node.id;
        if state.member(id).is_none() {
            let own = state.lost.iter().rev().find(|lost| lost.node.id == id);
            let why = own.map_or_else(|| EMPTY.to_owned(), |lost| lost.why.clone());
            return Some(Change::Evicted { why });
        }
        (state.round != round).then(|| match state.cause.clone() {
            Cause::Start => Change::Evicted { why: EMPTY.to_owned() },
            Cause::NodeLost { node, why } => Change::NodeLost { node, why },
            Cause::NodeLeft { node, why } => Change::NodeLeft { node, why },
            Cause::Newcomer { node } => Change::Newcomers { node },
            Cause::Restart { node, reason } => Change::PeerRestarts { node, reason },
        })
    }

    /// Strikes out whoever counts as lost.
    fn strike(&self, state: &State) -> Option<Decision> {
        let mut lost = self.memory.lost(self.now, state, self.me.node.id, self.options);
        lost.retain(|(id, _)| !state.done().contains(id));
        if lost.is_empty() {
            return None;
        }
        let named = lost.iter().filter_map(|(id, why)| Some((state.node(*id)?.clone(), why.clone())));
        let reason = Reason::Strikes { nodes: named.collect() };
        let next = state.clone().without(lost, |node, why| Cause::NodeLost { node, why });
        Some(Decision::write(next, reason))
    }

    fn formed(&self, state: &State) -> Decision {
        match Round::of(state, self.me.node.id) {
            Some(round) => Decision { action: Action::Formed(Box::new(round)), reason: Reason::Found },
            None => Decision::wait(steady(state)),
        }
    }

    fn too_late(&self, state: &State, since: Duration) -> Decision {
        let seen = |node: &Node| Seen {
            node: node.clone(),
            ago: self.memory.seen_ago(self.now, node.id).unwrap_or(self.now.saturating_sub(since)),
        };
        let came = state.members.iter().filter(|member| member.arrived).map(|member| seen(&member.node)).collect();
        fail(RendezvousError::Timeout(Box::new(Absence {
            waited: self.now.saturating_sub(since),
            round: state.round,
            min_nodes: state.job.min_nodes,
            max_nodes: state.job.max_nodes,
            came,
            expected: state.expected().map(seen).collect(),
            lost: state.lost.clone(),
        })))
    }

    fn refusal_by(&self, state: &State) -> Option<Refusal> {
        let differences = self.me.job.differences(&state.job);
        (!differences.is_empty()).then_some(Refusal::OtherJob(differences))
    }

    fn refusal_of_me(&self) -> Option<Refusal> {
        let (job, node) = (&self.me.job, &self.me.node);
        if job.min_nodes == 0 || job.max_nodes < job.min_nodes {
            let (min, max) = (job.min_nodes, job.max_nodes);
            return Some(Refusal::BadJob(format!("--nnodes is {min}:{max}, but must be MIN:MAX with 1 <= MIN <= MAX")));
        }
        if node.local_world_size == 0 {
            return Some(Refusal::BadJob("--nproc-per-node is 0, but a node runs at least one worker".to_owned()));
        }
        let rank = node.node_rank.filter(|rank| *rank >= job.max_nodes)?;
        Some(Refusal::RankTooLarge { rank, nodes: job.max_nodes })
    }
}

const EMPTY: &str = "the store no longer knows this node: it was started anew, or something cleared it";

fn steady(state: &State) -> Reason {
    Reason::Steady { round: state.round, done: state.done().len(), of: state.members.len() }
}

fn changed(change: Change) -> Decision {
    Decision { action: Action::Changed(Box::new(change)), reason: Reason::Found }
}

fn fail(error: RendezvousError) -> Decision {
    Decision { action: Action::Fail(Box::new(error)), reason: Reason::Found }
}

fn refuse(refusal: Refusal) -> Decision {
    fail(refusal.into())
}

impl Decision {
    fn write(state: State, reason: Reason) -> Self {
        Decision { action: Action::Write(Box::new(state)), reason }
    }

    fn wait(reason: Reason) -> Self {
        Decision { action: Action::Wait { until: None }, reason }
    }

    fn until(mut self, until: Duration) -> Self {
        self.action = Action::Wait { until: Some(until) };
        self
    }

    fn done() -> Self {
        Decision { action: Action::Done, reason: Reason::Found }
    }
}
