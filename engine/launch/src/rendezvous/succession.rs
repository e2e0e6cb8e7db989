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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::node::{JobIdentity, Node, NodeId};

/// How many members can take over: a view does not grow with the number of nodes.
pub(super) const SUCCESSORS: usize = 8;

/// What an agent has to know to go on without its authority.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Succession {
    /// The number of the base.
    pub round: u64,
    /// The number of its members.
    pub size: usize,
    /// Those that can take over, by group rank, without the authority.
    pub order: Vec<Successor>,
}

/// A member that can take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Successor {
    /// Its id.
    pub id: NodeId,
    /// Where it listens.
    pub address: String,
}

/// A round that a node took part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Taken {
    /// Its number.
    pub round: u64,
    /// The node's group rank.
    pub rank: usize,
    /// The number of members.
    pub size: usize,
}

/// What a member tells the candidate that it follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Follow {
    /// The member, with the id that the lost authority gave it.
    pub node: Node,
    /// The job that it was started for.
    pub job: JobIdentity,
    /// The rounds that it took since its base.
    pub taken: Vec<Taken>,
    /// What it knows of the base.
    pub base: Succession,
    /// The latest round that it has seen, formed or not.
    pub seen: u64,
}

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

#[cfg(test)]
mod tests {
    use super::super::node::tests::{job, node};
    use super::*;

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
