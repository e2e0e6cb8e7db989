//! What an agent does next: a pure function of the time, what it wants, and the authority's latest view.

use std::time::Duration;

use super::error::{Absence, Change, Reason, Refusal, RendezvousError};
use super::message::{OwnPart, Phase, Request, RoundPlace, View};
use super::options::RendezvousOptions;
use super::state::{Cause, Closing, JobIdentity, Node, NodeId, RankAssignment};

/// One agent's part in a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// What it publishes about itself.
    pub node: Node,
    /// The job that it was started for.
    pub job: JobIdentity,
    options: RendezvousOptions,
    /// What it wants to achieve.
    pub goal: Goal,
    /// The latest round that it took part in.
    pub given: Option<u64>,
    /// The generation of the authority that formed it.
    pub given_in: u64,
    /// The generation of the latest view.
    pub generation: u64,
    /// Its connection to that authority, as the view counts them.
    pub(super) connection: u64,
    /// Its last request to this authority.
    asked: Option<Request>,
    /// Its id before it was last removed.
    removed: NodeId,
    /// The time since which the gathering of this round has had enough members.
    enough: Option<(u64, Duration)>,
}

/// What an agent wants to achieve.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// To take part in a round. `since` limits the wait.
    Join {
        /// When it first asked to join, or stopped being a spare.
        since: Duration,
    },
    /// To stay in this round.
    Stay {
        /// The round.
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
    /// To know all nodes.
    Survey,
}

/// An action of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the authority a request, then look again.
    Ask(Request),
    /// Look again after a change, or at this time at the latest.
    Wait {
        /// When there is something to do even if nothing changes.
        until: Option<Duration>,
    },
    /// A round with this node runs.
    Formed(Box<Round>),
    /// This node's part in its round has ended.
    Changed(Box<Change>),
    /// The authority knows what this node wanted to announce.
    Done,
    /// This node cannot take part.
    Fail(Box<RendezvousError>),
}

/// A round that runs, from the view of one member: its own place and the totals, which is all that workers need and does not grow with
/// the number of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// The number of the round, from 0.
    pub number: u64,
    /// This node's ranks.
    pub ranks: RankAssignment,
    /// This node.
    pub me: Node,
    /// The node of group rank 0.
    pub first: Node,
    /// The number of nodes (GROUP_WORLD_SIZE).
    pub nodes: usize,
    /// The number of workers of all nodes (WORLD_SIZE).
    pub world_size: usize,
    /// Why this round was formed.
    pub cause: Cause,
}

/// The ranks of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSet {
    /// RANK.
    pub rank: usize,
    /// ROLE_RANK.
    pub role_rank: usize,
    /// ROLE_WORLD_SIZE.
    pub role_world_size: usize,
}

impl Round {
    /// This node's position among the nodes (GROUP_RANK).
    #[must_use]
    pub fn group_rank(&self) -> usize {
        self.ranks.group_rank
    }

    /// The ranks of this node's worker `local_rank`; `None` if it does not exist.
    #[must_use]
    pub fn ranks_of(&self, local_rank: usize) -> Option<RankSet> {
        let ranks = &self.ranks;
        (local_rank < self.me.local_world_size).then(|| RankSet {
            rank: ranks.first_rank + local_rank,
            role_rank: ranks.first_role_rank + local_rank,
            role_world_size: ranks.role_world_size,
        })
    }
}

const GONE: &str = "the authority no longer knows this node";

impl Client {
    /// An agent that has not joined.
    #[must_use]
    pub fn new(node: Node, job: JobIdentity, options: RendezvousOptions) -> Self {
        let goal = Goal::Join { since: Duration::ZERO };
        Client {
            node,
            job,
            options,
            goal,
            given: None,
            given_in: 0,
            generation: 0,
            connection: 0,
            asked: None,
            removed: 0,
            enough: None,
        }
    }

    /// Decides what to do at `now` after looking at `view` (`None` before the first).
    pub fn decide(&mut self, now: Duration, view: Option<&View>) -> (Action, Reason) {
        if let Some(view) = view {
            self.observe(now, view);
        }
        match (self.goal.clone(), view) {
            (Goal::Join { since }, _) => self.join(now, view, since),
            (Goal::Leave { .. } | Goal::Close(_) | Goal::Survey, None) => done(),
            (_, None) => (Action::Wait { until: None }, Reason::Found),
            (Goal::Stay { round }, Some(view)) => match self.change(view, round) {
                Some(change) => changed(change),
                None => wait(Reason::Steady { round: view.round, done: view.done, of: view.members }),
            },
            (Goal::Restart { round, reason }, Some(view)) => self.restart(view, round, reason),
            (Goal::Succeed { round }, Some(view)) => self.succeed(view, round),
            (Goal::Close(_), Some(view)) if is_final(view) || view.own == OwnPart::Absent => done(),
            (Goal::Close(closing), Some(_)) => self.ask(Request::Close(closing), Reason::Wanted),
            (Goal::Leave { why }, Some(view)) => {
                let out = matches!(view.own, OwnPart::Absent | OwnPart::Member { done: true, .. });
                if is_final(view) || out { done() } else { self.ask(Request::Leave { why }, Reason::Wanted) }
            }
            (Goal::Survey, Some(view)) if view.survey.is_some() => done(),
            (Goal::Survey, Some(_)) => self.ask(Request::Survey, Reason::Wanted),
        }
    }

    fn observe(&mut self, now: Duration, view: &View) {
        if view.id != 0 {
            self.node.id = view.id;
        }
        if (view.generation, view.connection) != (self.generation, self.connection) {
            // Another authority, or another connection to it: it knows of no request.
            (self.asked, self.removed) = (None, 0);
            (self.generation, self.connection) = (view.generation, view.connection);
        }
        let enough =
            view.phase == Phase::Gathering && view.arrived == view.members && view.members >= self.job.min_nodes;
        self.enough = enough.then_some(match self.enough {
            Some((round, since)) if round == view.round => (round, since),
            _ => (view.round, now),
        });
        if let (Goal::Join { since }, OwnPart::Waiting { holder: None, .. }) = (&mut self.goal, &view.own) {
            *since = now;
        }
    }

    fn join(&mut self, now: Duration, view: Option<&View>, since: Duration) -> (Action, Reason) {
        if let Some(refusal) = self.own_refusal().or_else(|| view.and_then(|view| view.refusal.clone())) {
            return fail(refusal.into());
        }
        let deadline = since + self.options.join_timeout;
        let Some(view) = view else { return self.ask_in(0, Reason::Asks { host: None }) };
        match &view.phase {
            Phase::Closed(closing) => return fail(RendezvousError::Closed(closing.clone())),
            Phase::Finished => return fail(RendezvousError::Finished),
            Phase::Running | Phase::Gathering => {}
        }
        if view.own == OwnPart::Absent && view.removed.is_some() && view.id != self.removed {
            (self.removed, self.asked) = (view.id, None);
        }
        if let (OwnPart::Member { place: Some(place), .. }, false) =
            (&view.own, self.given == Some(view.round) && self.given_in == view.generation)
        {
            let reason = Reason::Complete { came: view.members, max: self.job.max_nodes };
            return (Action::Formed(Box::new(self.round(view, place))), reason);
        }
        let (next, reason) = match has_come(view) {
            true => wait(self.waiting_for(now, view)),
            false if view.done > 0 => wait(Reason::Ending { done: view.done, of: view.members }),
            false => self.ask_in(view.round, Reason::Asks { host: view.host.clone() }),
        };
        let spare = matches!(view.own, OwnPart::Waiting { holder: None, .. });
        match next {
            Action::Wait { .. } if now >= deadline && !spare => self.too_late(now, view, since),
            Action::Wait { .. } => (until(next, deadline), reason),
            _ => (next, reason),
        }
    }

    fn ask_in(&mut self, round: u64, reason: Reason) -> (Action, Reason) {
        // The authority assigns the id, so it changes with the answer.
        let (node, job) = (Box::new(Node { id: 0, ..self.node.clone() }), Box::new(self.job.clone()));
        let given = self.given.filter(|_| self.given_in == self.generation);
        self.ask(Request::Join { node, job, was: self.removed, given, round }, reason)
    }

    /// Sends the authority a request, unless it has it already.
    fn ask(&mut self, request: Request, reason: Reason) -> (Action, Reason) {
        if self.asked.as_ref() == Some(&request) {
            return wait(reason);
        }
        self.asked = Some(request.clone());
        (Action::Ask(request), reason)
    }

    fn round(&self, view: &View, place: &RoundPlace) -> Round {
        Round {
            number: view.round,
            ranks: place.ranks,
            me: self.node.clone(),
            first: place.first.clone(),
            nodes: view.members,
            world_size: place.world_size,
            cause: view.cause.clone(),
        }
    }

    /// What a node that has arrived waits for.
    fn waiting_for(&self, now: Duration, view: &View) -> Reason {
        let (came, min, max) = (view.arrived, self.job.min_nodes, self.job.max_nodes);
        let limit = self.options.join_timeout;
        match &view.own {
            OwnPart::Waiting { holder: Some(holder), .. } => {
                Reason::RankHeld { rank: self.node.node_rank.unwrap_or_default(), holder: holder.clone() }
            }
            OwnPart::Waiting { at, .. } => {
                let (members, more) = (view.named.clone(), view.members.saturating_sub(view.named.len()));
                Reason::Spare { place: at + 1, max, members, more }
            }
            _ if came < view.members => {
                let (nodes, expected) = (view.named.clone(), view.members - came);
                Reason::Expecting { more: expected.saturating_sub(nodes.len()), nodes, came, limit }
            }
            _ if came < min => {
                let nodes = view.named.clone();
                Reason::TooFew { more: came.saturating_sub(nodes.len()), nodes, came, min, limit }
            }
            _ if came == max => Reason::Complete { came, max },
            _ => {
                let since = self.enough.map_or(now, |(_, since)| since);
                let left = (since + self.options.last_call_timeout).saturating_sub(now);
                Reason::LastCall { came, min, max, left }
            }
        }
    }

    fn restart(&mut self, view: &View, round: u64, reason: String) -> (Action, Reason) {
        match &view.own {
            OwnPart::Member { done: false, .. }
                if view.phase == Phase::Running && view.round == round && self.given_in == view.generation =>
            {
                self.ask(Request::Restart { round, reason }, Reason::Wanted)
            }
            _ => done(),
        }
    }

    fn succeed(&mut self, view: &View, round: u64) -> (Action, Reason) {
        match (&view.phase, self.change(view, round), &view.own) {
            (Phase::Finished, ..) | (_, None, OwnPart::Member { done: true, .. }) => done(),
            (_, Some(change), _) => changed(change),
            _ => self.ask(Request::Succeed { round }, Reason::Wanted),
        }
    }

    /// Returns the change that ended this node's round, if it has ended.
    fn change(&self, view: &View, round: u64) -> Option<Change> {
        match &view.phase {
            Phase::Closed(closing) => return Some(Change::Closed((**closing).clone())),
            Phase::Finished => return Some(Change::AllDone),
            Phase::Running | Phase::Gathering => {}
        }
        if !matches!(view.own, OwnPart::Member { .. }) {
            return Some(Change::Evicted { why: view.removed.clone().unwrap_or_else(|| GONE.to_owned()) });
        }
        (view.round != round || self.given_in != view.generation).then(|| match view.cause.clone() {
            Cause::Start => Change::Evicted { why: GONE.to_owned() },
            Cause::NodeLost { node, why } => Change::NodeLost { node, why },
            Cause::NodeLeft { node, why } => Change::NodeLeft { node, why },
            Cause::Newcomer { node } => Change::Newcomers { node },
            Cause::Restart { node, reason } => Change::PeerRestarts { node, reason },
        })
    }

    fn too_late(&mut self, now: Duration, view: &View, since: Duration) -> (Action, Reason) {
        let Some(survey) = &view.survey else { return self.ask(Request::Survey, self.waiting_for(now, view)) };
        let waited = now.saturating_sub(since);
        let (mut came, mut expected) = (survey.came.clone(), survey.expected.clone());
        let own = came.iter_mut().chain(&mut expected).filter(|seen| seen.node.id == self.node.id);
        own.for_each(|seen| seen.ago = waited);
        fail(RendezvousError::Timeout(Box::new(Absence {
            waited,
            round: view.round,
            min_nodes: self.job.min_nodes,
            max_nodes: self.job.max_nodes,
            came,
            expected,
            lost: survey.lost.clone(),
        })))
    }

    fn own_refusal(&self) -> Option<Refusal> {
        let (job, node) = (&self.job, &self.node);
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

/// Returns true if the authority knows that this node has arrived for the next round.
fn has_come(view: &View) -> bool {
    match view.own {
        OwnPart::Absent => false,
        OwnPart::Waiting { .. } => true,
        OwnPart::Member { arrived, .. } => view.phase == Phase::Gathering && arrived,
    }
}

#[cfg(test)]
impl Client {
    /// Equal for two agents with the same possible futures.
    pub(super) fn digest(&self, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        let goal = match &self.goal {
            Goal::Join { .. } => Goal::Join { since: Duration::ZERO },
            goal => goal.clone(),
        };
        (self.node.id, goal, self.given, self.given_in, self.generation, &self.asked, self.removed).hash(hasher);
    }
}

fn is_final(view: &View) -> bool {
    matches!(view.phase, Phase::Finished | Phase::Closed(_))
}

fn wait(reason: Reason) -> (Action, Reason) {
    (Action::Wait { until: None }, reason)
}

fn until(action: Action, until: Duration) -> Action {
    match action {
        Action::Wait { .. } => Action::Wait { until: Some(until) },
        other => other,
    }
}

fn done() -> (Action, Reason) {
    (Action::Done, Reason::Found)
}

fn changed(change: Change) -> (Action, Reason) {
    (Action::Changed(Box::new(change)), Reason::Found)
}

fn fail(error: RendezvousError) -> (Action, Reason) {
    (Action::Fail(Box::new(error)), Reason::Found)
}
