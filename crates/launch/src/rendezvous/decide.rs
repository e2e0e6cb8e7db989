//! What an agent does next: a pure function of the time, its view of the shared state, its identity, and its
//! observations. The leader's additional duties are in [`leader_policy`](super::leader_policy).

use std::time::Duration;

use super::error::{Absence, Change, Refusal, RendezvousError, SeenNode};
use super::header::{Header, HeaderPhase, Own, Survey, View};
use super::memory::{Goal, Memory};
use super::node::{Me, Node};
use super::options::Options;
use super::reason::Reason;
use super::request::Want;
use super::round::Round;
use super::state::{Cause, State};

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The action.
    pub action: Action,
    /// The reason, with its numbers.
    pub reason: Reason,
}

/// An action of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replace the header that was read with this one, if the store still holds it, and lead if that succeeds; then
    /// look again. If `lost` names the previous leader, it is lost for that reason.
    Lead {
        /// The header, with this node as the leader.
        header: Box<Header>,
        /// Why the previous leader counts as lost.
        lost: Option<(u64, String)>,
    },
    /// Send a request to the leader of this term, then look again.
    Ask {
        /// The term.
        term: u64,
        /// The request.
        want: Box<Want>,
    },
    /// Get a new id from the store, then look again.
    Renew,
    /// Read the whole state, then look again.
    Survey,
    /// Look again after a change, when the leader's heartbeat may have stopped, or at this time at the latest.
    Wait {
        /// When there is something to do even if nothing changes.
        until: Option<Duration>,
    },
    /// A round with this node runs.
    Formed(Box<Round>),
    /// This node's part in its round has ended.
    Changed(Box<Change>),
    /// All nodes know what this node wanted to announce.
    Done,
    /// This node cannot take part.
    Fail(Box<RendezvousError>),
}

/// Decides what `me` does at `now` after reading `view` (`None` if the store holds nothing).
#[must_use]
pub fn decide(now: Duration, view: Option<&View>, me: &Me, memory: &Memory, options: &Options) -> Decision {
    let look = Look { now, me, memory, options };
    let Some(view) = view else { return look.nothing_there() };
    match &memory.goal {
        Goal::Join { since } => look.join(view, *since),
        Goal::Stay { round } => match look.change(view, *round) {
            Some(change) => changed(change),
            None => look.led(view, Decision::wait(steady(&view.header))),
        },
        Goal::Restart { round, reason } => look.restart(view, *round, reason),
        Goal::Succeed { round } => look.succeed(view, *round),
        Goal::Close(closing) => match view.header.is_final() || view.own == Own::Absent {
            true => Decision::done(),
            false => look.ask(view, Want::Close(closing.clone()), Reason::Wanted),
        },
        Goal::Leave { why } => look.leave(view, why),
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
            Goal::Join { .. } => match self.own_refusal() {
                Some(refusal) => refuse(refusal),
                None => {
                    let header = Header::of(&State::empty(self.me.job.clone()), None).led_by(&self.me.node);
                    let action = Action::Lead { header: Box::new(header), lost: None };
                    Decision { action, reason: Reason::First }
                }
            },
            Goal::Stay { .. } | Goal::Succeed { .. } => changed(Change::Evicted { why: EMPTY.to_owned() }),
            Goal::Restart { .. } | Goal::Close(_) | Goal::Leave { .. } => Decision::done(),
        }
    }

    fn join(&self, view: &View, since: Duration) -> Decision {
        let header = &view.header;
        if let Some(refusal) = self.own_refusal().or_else(|| self.refusal_by(header)) {
            return refuse(refusal);
        }
        match &header.phase {
            HeaderPhase::Closed(closing) => return fail(RendezvousError::Closed(closing.clone())),
            HeaderPhase::Finished => return fail(RendezvousError::Finished),
            HeaderPhase::Running | HeaderPhase::Gathering => {}
        }
        if self.was_removed(view) {
            return Decision { action: Action::Renew, reason: Reason::Removed };
        }
        if header.phase == HeaderPhase::Running
            && self.memory.given != Some(header.round)
            && let Some(round) = Round::of(view, &self.me.node)
        {
            let reason = Reason::Complete { came: header.members, max: header.job.max_nodes };
            return Decision { action: Action::Formed(Box::new(round)), reason };
        }
        let next = match self.has_come(view) {
            true => self.led(view, Decision::wait(self.waiting_for(view))),
            false => self.ask_in(view),
        };
        let (deadline, spare) =
            (since + self.options.join_timeout, matches!(view.own, Own::Waiting { holder: None, .. }));
        match next.action {
            Action::Wait { .. } if self.now >= deadline && !spare => self.too_late(view, since),
            Action::Wait { until } => next.until(until.map_or(deadline, |until| until.min(deadline))),
            _ => next,
        }
    }

    /// Returns true if the others removed this node.
    fn was_removed(&self, view: &View) -> bool {
        let out = view.header.lost.iter().any(|lost| lost.node.id == self.me.node.id);
        view.own == Own::Absent && (self.memory.entered || out)
    }

    /// Returns true if the leader knows that this node has arrived for the next round.
    fn has_come(&self, view: &View) -> bool {
        match view.own {
            Own::Absent => false,
            Own::Waiting { .. } => true,
            Own::Member { arrived, .. } => view.header.phase == HeaderPhase::Gathering && arrived,
        }
    }

    fn ask_in(&self, view: &View) -> Decision {
        let header = &view.header;
        if header.done > 0 {
            let reason = Reason::Ending { done: header.done, of: header.members };
            return self.led(view, Decision::wait(reason));
        }
        let want = Want::Join {
            node: Box::new(self.me.node.clone()),
            commands: self.me.job.commands.clone(),
            given: self.memory.given,
            round: header.round,
        };
        self.ask(view, want, Reason::Asks { leader: header.leader.clone() })
    }

    /// What a node that has arrived waits for.
    fn waiting_for(&self, view: &View) -> Reason {
        let header = &view.header;
        let (came, min, max) = (header.arrived, header.job.min_nodes, header.job.max_nodes);
        match &view.own {
            Own::Waiting { holder: Some(holder), .. } => {
                Reason::RankHeld { rank: self.me.node.node_rank.unwrap_or_default(), holder: holder.clone() }
            }
            Own::Waiting { at, .. } => {
                let (members, more) = (header.named.clone(), header.members.saturating_sub(header.named.len()));
                Reason::Spare { place: at + 1, max, members, more }
            }
            _ if came < header.members => {
                let (nodes, expected) = (header.named.clone(), header.members - came);
                Reason::Expecting { more: expected.saturating_sub(nodes.len()), nodes, came }
            }
            _ if came < min => Reason::TooFew { came, min },
            _ if came == max => Reason::Complete { came, max },
            _ => {
                let until = self.memory.enough_since(header.round).unwrap_or(self.now) + self.options.last_call_timeout;
                Reason::LastCall { came, min, max, left: until.saturating_sub(self.now) }
            }
        }
    }

    fn restart(&self, view: &View, round: u64, reason: &str) -> Decision {
        let header = &view.header;
        match &view.own {
            Own::Member { done: None, .. } if header.phase == HeaderPhase::Running && header.round == round => {
                self.ask(view, Want::Restart { round, reason: reason.to_owned() }, Reason::Wanted)
            }
            _ => Decision::done(),
        }
    }

    fn succeed(&self, view: &View, round: u64) -> Decision {
        match (&view.header.phase, self.change(view, round), &view.own) {
            (HeaderPhase::Finished, _, _) => Decision::done(),
            (_, Some(change), _) => changed(change),
            (_, None, Own::Member { done: Some(_), .. }) => Decision::done(),
            _ => self.ask(view, Want::Succeed { round }, steady(&view.header)),
        }
    }

    fn leave(&self, view: &View, why: &str) -> Decision {
        let leads = view.header.leader.as_ref().is_some_and(|leader| leader.id == self.me.node.id);
        let done = matches!(view.own, Own::Absent | Own::Member { done: Some(_), .. });
        match view.header.is_final() || (done && !leads) {
            true => Decision::done(),
            false => self.ask(view, Want::Leave { why: why.to_owned() }, Reason::Wanted),
        }
    }

    /// Sends the leader a request, unless this leader has it already. There must be a leader.
    fn ask(&self, view: &View, want: Want, reason: Reason) -> Decision {
        let term = view.header.term;
        let asked = self.memory.asked.as_ref().is_some_and(|(of, before)| (*of, before) == (term, &want));
        let action = match asked {
            true => Action::Wait { until: None },
            false => Action::Ask { term, want: Box::new(want) },
        };
        self.led(view, Decision { action, reason })
    }

    /// Follows `next` if there is a leader; otherwise leads. The host of the store has precedence, because it sees
    /// disconnects.
    fn led(&self, view: &View, next: Decision) -> Decision {
        let (id, lost) = match &view.header.leader {
            None => (0, None),
            Some(leader) if leader.id == self.me.node.id && self.memory.leads => return next,
            Some(leader) if leader.id == self.me.node.id => (leader.id, None),
            Some(leader) => match self.memory.lost(self.now, leader.id, self.options) {
                None if self.me.node.hosts_store && !leader.hosts_store => (leader.id, None),
                None => return next,
                lost => (leader.id, lost),
            },
        };
        let header = Box::new(view.header.led_by(&self.me.node));
        let action = Action::Lead { header, lost: lost.map(|why| (id, why)) };
        Decision { action, reason: Reason::Wanted }
    }

    /// Returns the change that ended this node's round, if it has ended.
    fn change(&self, view: &View, round: u64) -> Option<Change> {
        let header = &view.header;
        match &header.phase {
            HeaderPhase::Closed(closing) => return Some(Change::Closed((**closing).clone())),
            HeaderPhase::Finished => return Some(Change::AllDone),
            HeaderPhase::Running | HeaderPhase::Gathering => {}
        }
        if !matches!(view.own, Own::Member { .. }) {
            let own = header.lost.iter().rev().find(|lost| lost.node.id == self.me.node.id);
            let why = own.map_or_else(|| EMPTY.to_owned(), |lost| lost.why.clone());
            return Some(Change::Evicted { why });
        }
        (header.round != round).then(|| match header.cause.clone() {
            Cause::Start => Change::Evicted { why: EMPTY.to_owned() },
            Cause::NodeLost { node, why } => Change::NodeLost { node, why },
            Cause::NodeLeft { node, why } => Change::NodeLeft { node, why },
            Cause::Newcomer { node } => Change::Newcomers { node },
            Cause::Restart { node, reason } => Change::PeerRestarts { node, reason },
        })
    }

    fn too_late(&self, view: &View, since: Duration) -> Decision {
        let Some(Survey { state, ages }) = &view.survey else {
            return Decision { action: Action::Survey, reason: self.waiting_for(view) };
        };
        let waited = self.now.saturating_sub(since);
        let seen = |node: &Node| {
            let known = ages.get(&node.id).copied().filter(|_| node.id != self.me.node.id);
            SeenNode { node: node.clone(), ago: known.unwrap_or(waited) }
        };
        let came = state.members.iter().filter(|member| member.arrived).map(|member| seen(&member.node)).collect();
        fail(RendezvousError::Timeout(Box::new(Absence {
            waited,
            round: state.round,
            min_nodes: state.job.min_nodes,
            max_nodes: state.job.max_nodes,
            came,
            expected: state.expected().map(seen).collect(),
            lost: state.lost.clone(),
        })))
    }

    fn refusal_by(&self, header: &Header) -> Option<Refusal> {
        let differences = self.me.job.differences(&header.job);
        if !differences.is_empty() {
            return Some(Refusal::OtherJob(differences));
        }
        let taken = header.refused.iter().find(|refused| refused.id == self.me.node.id)?;
        let (rank, holder) = (self.me.node.node_rank.unwrap_or_default(), Box::new(taken.holder.clone()));
        Some(Refusal::RankTaken { rank, holder, mine: Box::new(self.me.node.clone()) })
    }

    fn own_refusal(&self) -> Option<Refusal> {
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

const EMPTY: &str = "the store no longer has this node: it was restarted, or something cleared it";

fn steady(header: &Header) -> Reason {
    Reason::Steady { round: header.round, done: header.done, of: header.members }
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
