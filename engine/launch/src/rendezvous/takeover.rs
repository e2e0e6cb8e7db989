//! What an agent does when its authority is lost: whom it asks, in which order, and which view it gets meanwhile. Pure.
//!
//! [`succession`](super::succession) has the rules on who may lead. [`connection`](super::connection) dials and follows; tests do the same
//! with messages in memory.

use std::time::Duration;

use super::message::{Cause, OwnPart, Phase, Request, View};
use super::node::{JobIdentity, Node, NodeId};
use super::succession::{Candidacy, Follow, Taken};

/// A node rarely takes a second round before it knows that the first was known to all.
const KEPT: usize = 16;

/// What an agent's connection knows of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Membership {
    /// What the node asked to join with.
    joined: Option<(Node, JobIdentity)>,
    /// Its latest id.
    id: NodeId,
    /// The latest rounds that it took.
    pub(super) taken: Vec<Taken>,
}

/// The search for another authority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Search {
    pub(super) follow: Follow,
    /// The node's part until it has another authority.
    part: OwnPart,
    /// The lost authority's generation.
    generation: u64,
    last_id: NodeId,
    lost: Option<Node>,
    why: String,
    /// The lost authority's address, until it has been asked.
    former: Option<String>,
    /// The place in the order of the next one to ask.
    next: usize,
    dead: usize,
    /// All that were asked have ended, and were found so before `lease_ends`.
    in_time: bool,
    lease_ends: Duration,
}

/// What the search does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask the agent at this address.
    Ask(String),
    /// Take over.
    Lead(Box<Candidacy>),
    /// There is nobody left.
    End,
}

/// The result of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The machine answers, but the process has ended.
    Dead,
    /// No answer, or one from an agent that does not lead.
    Unknown,
}

impl Membership {
    /// The node sends this request, made from this view.
    pub(super) fn note(&mut self, request: &Request, view: Option<&View>) {
        match request {
            Request::Join { node, job, .. } => self.joined = Some(((**node).clone(), (**job).clone())),
            Request::Took { round } => {
                let place = view.map(|view| (view.members, &view.own));
                if let Some((size, OwnPart::Member { place: Some(place), .. })) = place {
                    self.taken.push(Taken { round: *round, rank: place.ranks.group_rank, size });
                    let excess = self.taken.len().saturating_sub(KEPT);
                    self.taken.drain(..excess);
                }
            }
            _ => {}
        }
    }

    /// A view has arrived.
    pub(super) fn saw(&mut self, view: &View) {
        if view.id != 0 {
            self.id = view.id;
        }
    }

    /// Begins the search for another authority than the one at `former`, which sent this view last and is lost for this reason. After
    /// `lease_ends` it may have removed this node, and it does not matter whether it has ended. `None` if the job ends with its authority.
    pub(super) fn search(
        &self,
        view: &View,
        former: Option<String>,
        lease_ends: Duration,
        why: &str,
    ) -> Option<Search> {
        let part = match &view.own {
            OwnPart::Member { done: false, .. } => OwnPart::Member { arrived: false, done: false, place: None },
            OwnPart::Waiting { .. } => OwnPart::Absent,
            OwnPart::Member { .. } | OwnPart::Absent => return None,
        };
        let ends = matches!(view.phase, Phase::Finished | Phase::Closed(_)) || view.done > 0;
        let base = view.succession.as_deref().filter(|base| !ends && !base.order.is_empty())?.clone();
        let (node, job) = self.joined.clone()?;
        let taken = self.taken.iter().filter(|taken| taken.round >= base.round).copied().collect();
        let follow = Follow { node: Node { id: self.id, ..node }, job, taken, base, seen: view.round };
        Some(Search {
            follow,
            part,
            generation: view.generation,
            last_id: view.last_id,
            lost: view.host.clone(),
            why: why.to_owned(),
            in_time: former.is_some(),
            former,
            next: 0,
            dead: 0,
            lease_ends,
        })
    }
}

impl Search {
    /// The generation of the authority that the next one in the order would be. It is unique without agreement.
    fn next_generation(&self) -> u64 {
        self.generation + 1 + self.next as u64
    }

    /// What to do next.
    pub(super) fn next(&self) -> Next {
        if let Some(former) = &self.former {
            return Next::Ask(former.clone());
        }
        match self.follow.base.order.get(self.next) {
            Some(successor) if successor.id == self.follow.node.id => Next::Lead(Box::new(Candidacy {
                follow: self.follow.clone(),
                generation: self.next_generation(),
                last_id: self.last_id,
                lost: self.lost.clone(),
                why: self.why.clone(),
                dead: self.dead,
                in_time: self.in_time,
            })),
            Some(successor) => Next::Ask(successor.address.clone()),
            None => Next::End,
        }
    }

    /// Returns true if the lost authority itself is asked next. It can only be found dead.
    pub(super) fn asks_former(&self) -> bool {
        self.former.is_some()
    }

    /// The one that was asked has answered.
    pub(super) fn answered(&mut self, now: Duration, answer: Answer) {
        self.next += usize::from(self.former.take().is_none());
        self.dead += usize::from(answer == Answer::Dead);
        self.in_time &= answer == Answer::Dead && now < self.lease_ends;
    }

    /// Makes a view that tells the agent that its round has ended with its authority, so that it stops its workers at once and joins again.
    pub(super) fn pretend(&self, view: &mut View) {
        view.round = self.follow.seen + 1;
        pretend(view, self.next_generation(), self.part.clone(), &self.why);
    }
}

#[cfg(test)]
impl Search {
    /// Equal at all times for two searches with the same possible futures.
    pub(super) fn at(&self, now: Duration) -> Search {
        Search { lease_ends: self.lease_ends.saturating_sub(now), ..self.clone() }
    }
}

/// Tells an agent that this view of its authority sends on to another address: it joins there like a late node. `latest` is the agent's
/// latest view; one that has none yet begins with this one, and asks there for what it has asked for here.
pub(super) fn send_on(latest: &mut Option<View>, view: &View, address: &str) {
    let latest = latest.get_or_insert_with(|| View { moved: None, ..view.clone() });
    pretend(latest, latest.generation + 1, OwnPart::Absent, &format!("the rendezvous goes on at {address}"));
}

/// Makes the view of an authority that is known only by its generation.
fn pretend(view: &mut View, generation: u64, own: OwnPart, why: &str) {
    view.cause = match &view.host {
        Some(host) => Cause::NodeLost { node: host.clone(), why: why.to_owned() },
        None => Cause::Start,
    };
    (view.id, view.generation, view.phase) = (0, generation, Phase::Gathering);
    view.connection += 1;
    (view.removed, view.own) = (Some(why.to_owned()), own);
}
