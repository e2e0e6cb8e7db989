//! Who leads when the authority is lost, and with what right. Pure.
//!
//! The *base* is the last round that all its members know, to the authority's knowledge: their workers start no earlier. Members follow
//! the first living one in the base's order. It leads if more than half of the base follow it, or if it knows that nobody else can lead.
//! The same half binds an authority that loses members by silence. Several rounds may count: also those formed after the base, which
//! perhaps not all members know.
//!
//! # Why two never lead
//! - Two majorities of one round have a member in common, and a member follows one candidate at a time. A member that took a later round
//!   says so, and that round counts, too.
//! - A candidate without a majority has seen all before it in the order refuse connections, while the authority could not have removed it
//!   yet: its *lease*, which runs from the sending of the last beat that was answered. An agent that could lead without it needs a majority
//!   among the members that do not follow it. So at most half may be missing. Of those that are known dead only the authority is not
//!   missing: another candidate may have led before it died, and its followers may still do so.
//! - A candidate that waits for missing members waits for a lease. So a later one has seen it alive, or has lost its own lease.
//!
//! # The search for a successor
//! [`Search`] decides whom an agent asks, in which order, and which view the agent gets meanwhile. [`connection`](super::connection) dials and
//! follows; tests do the same with messages in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::message::{Follow, OwnPart, Phase, Request, Succession, Taken, View};
use super::state::{Cause, JobIdentity, Node, NodeId};

/// How many members can take over: a view does not grow with the number of nodes.
pub(super) const SUCCESSORS: usize = 8;

/// A member that wants to lead, before it may.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidacy {
    /// What it would tell a candidate.
    pub follow: Follow,
    /// The generation of the authority that it would be.
    pub generation: u64,
    /// The last id that the lost authority gave.
    pub last_id: NodeId,
    /// The lost authority's node.
    pub lost: Option<Node>,
    /// Why it is lost.
    pub why: String,
    /// How many members are known dead, the authority among them: their machines refuse connections.
    pub dead: usize,
    /// They are all before this one, and refused within its lease.
    pub in_time: bool,
}

impl Candidacy {
    /// Where the candidate listens.
    pub(super) fn address(&self) -> String {
        let own = self.follow.base.order.iter().find(|successor| successor.id == self.follow.node.id);
        own.map(|successor| successor.address.clone()).unwrap_or_default()
    }
}

/// The rounds that count, and who follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) base: Succession,
    rounds: BTreeMap<u64, Count>,
    dead: usize,
    pub(super) in_time: bool,
    /// When the wait for missing members ends.
    pub(super) ends: Duration,
    /// Since when this candidate leads.
    pub(super) leads: Option<Duration>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Count {
    size: usize,
    followers: BTreeSet<usize>,
}

/// What a candidate may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Lead,
    Wait,
    End,
}

impl Claim {
    pub(super) fn new(now: Duration, lease: Duration, candidacy: &Candidacy) -> Self {
        let Candidacy { follow, dead, in_time, .. } = candidacy;
        let mut claim = Claim {
            base: follow.base.clone(),
            rounds: BTreeMap::new(),
            dead: *dead,
            in_time: *in_time,
            ends: now + lease,
            leads: None,
        };
        claim.count(follow);
        claim
    }

    /// A member follows.
    pub(super) fn count(&mut self, follow: &Follow) {
        if follow.base.round > self.base.round {
            self.base = follow.base.clone();
        }
        self.rounds.entry(follow.base.round).or_default().size = follow.base.size;
        for taken in &follow.taken {
            let count = self.rounds.entry(taken.round).or_default();
            count.size = taken.size;
            count.followers.insert(taken.rank);
        }
        self.rounds.retain(|round, _| *round >= self.base.round);
    }

    pub(super) fn right(&self, now: Duration) -> Right {
        let all = |holds: fn(&Claim, &Count) -> bool| self.rounds.values().all(|count| holds(self, count));
        let known = self.in_time && self.dead > 0;
        if all(|_, count| 2 * count.followers.len() > count.size)
            || known && all(|claim, count| claim.missing(count) == 0)
        {
            return Right::Lead;
        }
        match now >= self.ends {
            false => Right::Wait,
            true if known && all(|_, count| 2 * count.size.saturating_sub(count.followers.len() + 1) <= count.size) => {
                Right::Lead
            }
            true => Right::End,
        }
    }

    /// Returns true if all members of all rounds follow, or never will: the lost authority, and those that are known dead.
    pub(super) fn is_complete(&self) -> bool {
        self.rounds.values().all(|count| count.size <= count.followers.len() + self.dead.max(1))
    }

    /// The size of each round that counts, and how many of its members neither follow nor are known dead.
    pub(super) fn bounds(&self) -> Vec<(usize, usize)> {
        self.rounds.values().map(|count| (count.size, self.missing(count))).collect()
    }

    /// How many members of the base follow, and how many there were.
    pub(super) fn followers(&self) -> (usize, usize) {
        self.rounds.get(&self.base.round).map_or((0, 0), |count| (count.followers.len(), count.size))
    }

    fn missing(&self, count: &Count) -> usize {
        count.size.saturating_sub(count.followers.len() + self.dead)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::state::tests::{job, node};

    const LEASE: Duration = Duration::from_secs(15);

    fn follow(rank: usize, base: (u64, usize), later: &[(u64, usize, usize)]) -> Follow {
        let first = [(base.0, rank, base.1)];
        let taken = first
            .iter()
            .chain(later)
            .map(|(round, rank, size)| Taken { round: *round, rank: *rank, size: *size })
            .collect();
        let base = Succession { round: base.0, size: base.1, order: vec![] };
        Follow { node: node(rank as NodeId + 1, "a"), job: job(1, 9), taken, base, seen: 0 }
    }

    fn claim(size: usize, dead: usize, in_time: bool, followers: &[usize]) -> Claim {
        let candidacy = Candidacy {
            follow: follow(1, (0, size), &[]),
            generation: 1,
            last_id: 9,
            lost: None,
            why: String::new(),
            dead,
            in_time,
        };
        let mut claim = Claim::new(Duration::ZERO, LEASE, &candidacy);
        followers.iter().for_each(|rank| claim.count(&follow(*rank, (0, size), &[])));
        claim
    }

    #[test]
    fn leads_with_more_than_half_or_if_nobody_else_can() {
        use Right::{End, Lead, Wait};
        for (size, dead, in_time, followers, expected) in [
            // More than half follow: whatever became of the authority.
            (3, 0, false, &[2][..], [Lead, Lead]),
            (5, 0, false, &[2, 3], [Lead, Lead]),
            // Half is not enough.
            (4, 0, false, &[2], [Wait, End]),
            (2, 0, false, &[], [Wait, End]),
            // Everyone else is dead.
            (2, 1, true, &[], [Lead, Lead]),
            (3, 2, true, &[], [Lead, Lead]),
            // It is not known in time that they were.
            (2, 1, false, &[], [Wait, End]),
            // The authority is dead, and those that are missing are no majority.
            (3, 1, true, &[], [Wait, Lead]),
            (4, 1, true, &[2], [Wait, Lead]),
            (5, 1, true, &[2], [Wait, Lead]),
            // They are, if a dead candidate may have led them.
            (5, 2, true, &[], [Wait, End]),
            (6, 1, true, &[], [Wait, End]),
        ] {
            let claim = claim(size, dead, in_time, followers);
            let found = [claim.right(Duration::ZERO), claim.right(LEASE)];
            assert_eq!(found, expected, "{size} members, {dead} dead, followed by {followers:?}");
        }
    }

    #[test]
    fn a_round_that_a_follower_took_counts_until_a_later_base_is_known() {
        let mut three = claim(5, 0, false, &[2]);
        three.count(&follow(4, (0, 5), &[(1, 2, 3)]));
        assert_eq!(three.right(Duration::ZERO), Right::Wait, "3 of 5, but 1 of 3");
        three.count(&follow(3, (0, 5), &[(1, 1, 3)]));
        assert_eq!(three.right(Duration::ZERO), Right::Lead, "4 of 5, and 2 of 3");
        let mut newer = claim(5, 0, false, &[2, 3]);
        newer.count(&follow(1, (1, 3), &[]));
        assert_eq!((newer.right(Duration::ZERO), newer.followers()), (Right::Wait, (1, 3)));
    }
}
