//! How the state is kept in the store: a small header, and pages of nodes.
//!
//! The header is the only value that is changed by compare-and-set. It holds counts and a few names, so its size does
//! not depend on the number of nodes. Nodes are stored in pages of [`PAGE`] nodes, by id. Pages are written before the
//! header that refers to them, under keys that are never reused. An agent reads the header and the one page with its
//! own entry.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::Refusal;
use super::node::{Job, Node, NodeId};
use super::ranks::{RankAssignment, assign_ranks};
use super::state::{Cause, Closing, Lost, Member, Refused, RoundPhase, SCHEMA, State};

/// Number of node ids per page.
pub(super) const PAGE: u64 = 16;
/// Maximum number of nodes that a header names.
const NAMED: usize = 8;
/// More than a header or a page needs; a longer value was not written by an agent.
const MAX_BYTES: usize = 1 << 20;

/// The part of the state that every agent reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// As in [`State`].
    pub version: u64,
    /// As in [`State`].
    pub news: u64,
    /// As in [`State`].
    pub term: u64,
    /// As in [`State`].
    pub leader: Option<Node>,
    /// As in [`State`].
    pub job: Job,
    /// As in [`State`].
    pub round: u64,
    /// The phase of that round.
    pub phase: HeaderPhase,
    /// As in [`State`].
    pub cause: Cause,
    /// The node that hosts the store, if known.
    pub host: Option<Node>,
    /// The number of members.
    pub members: usize,
    /// How many of them have arrived.
    pub arrived: usize,
    /// How many nodes wait for a place.
    pub waiting: usize,
    /// How many members' workers have all succeeded.
    pub done: usize,
    /// The number of workers of all members.
    pub workers: usize,
    /// The first expected members; if no member is expected, the first members.
    pub named: Vec<Node>,
    /// As in [`State`].
    pub lost: Vec<Lost>,
    /// As in [`State`].
    pub refused: Vec<Refused>,
    /// The current pages; `None` until a node has come.
    pub pages: Option<Pages>,
    /// The previous pages, which a slow reader may still need.
    pub former: Option<Pages>,
}

/// The phase of a round, without its members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // see RoundPhase
pub enum HeaderPhase {
    Gathering,
    Running,
    Finished,
    Closed(Box<Closing>),
}

/// The keys of pages. No two writes of a rendezvous have the same term and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pages {
    /// The term of the leader that wrote them.
    pub term: u64,
    /// The number of the write in that term, from 0.
    pub write: u64,
    /// The number of pages.
    pub count: u64,
}

/// One node, in a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) node: Node,
    /// For how many milliseconds the node had been known when the page was written.
    pub(super) age_ms: u64,
    pub(super) own: Own,
}

/// A node's own entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // see the fields of Member
pub enum Own {
    /// There is no entry.
    #[default]
    Absent,
    /// The node is the member at index `at`.
    Member { at: usize, arrived: bool, rank: Option<usize>, done: Option<usize>, assignment: Option<RankAssignment> },
    /// The node is number `at` of the waiting nodes; `holder` has the rank that it requests.
    Waiting { at: usize, holder: Option<Node> },
}

/// One agent's view of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The part that all agents see.
    pub header: Header,
    /// Its own entry.
    pub own: Own,
    /// All nodes, if the agent asked for them.
    pub survey: Option<Survey>,
}

/// The whole state, and how long the leader has known each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The state.
    pub state: State,
    /// By node id.
    pub ages: BTreeMap<NodeId, Duration>,
}

impl View {
    /// The view of `state` that node `id` has.
    #[must_use]
    pub fn of(state: &State, id: NodeId) -> View {
        let entries = entries(state, &|_| Duration::ZERO);
        let own = entries.into_iter().find(|entry| entry.node.id == id).map(|entry| entry.own).unwrap_or_default();
        View { header: Header::of(state, None), own, survey: None }
    }
}

impl Header {
    /// The header of `state`.
    pub(super) fn of(state: &State, pages: Option<Pages>) -> Header {
        let expected = state.phase == RoundPhase::Gathering && state.members.iter().any(|member| !member.arrived);
        let named = state.members.iter().filter(|member| !expected || !member.arrived);
        Header {
            schema: SCHEMA,
            version: state.version,
            news: state.news,
            term: state.term,
            leader: state.leader.clone(),
            job: state.job.clone(),
            round: state.round,
            phase: match &state.phase {
                RoundPhase::Gathering => HeaderPhase::Gathering,
                RoundPhase::Running { .. } => HeaderPhase::Running,
                RoundPhase::Finished => HeaderPhase::Finished,
                RoundPhase::Closed(closing) => HeaderPhase::Closed(Box::new(closing.clone())),
            },
            cause: state.cause.clone(),
            host: state.host().cloned(),
            members: state.members.len(),
            arrived: state.arrived(),
            waiting: state.waiting.len(),
            done: state.done().len(),
            workers: state.members.iter().map(|member| member.node.local_world_size).sum(),
            named: named.take(NAMED).map(|member| member.node.clone()).collect(),
            lost: state.lost.clone(),
            refused: state.refused.clone(),
            pages,
            former: None,
        }
    }

    /// The same header with `leader` as the leader.
    pub(super) fn led_by(&self, leader: &Node) -> Header {
        let mut next = self.clone();
        (next.version, next.term, next.leader) = (self.version + 1, self.term + 1, Some(leader.clone()));
        next
    }

    /// Returns true if the state can no longer change.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.phase, HeaderPhase::Finished | HeaderPhase::Closed(_))
    }

    /// Decodes a value of the store.
    ///
    /// # Errors
    /// [`Refusal::Schema`] for a value of another version, [`Refusal::Corrupt`] for a value that no agent would write.
    pub fn decode(bytes: &[u8]) -> Result<Header, Refusal> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let found: Version = read(bytes)?;
        if found.schema != SCHEMA {
            return Err(Refusal::Schema { ours: SCHEMA, theirs: found.schema });
        }
        let header: Header = read(bytes)?;
        header.check().map_err(|why| corrupt(bytes, why))?;
        Ok(header)
    }

    fn check(&self) -> Result<(), String> {
        if self.members > self.job.max_nodes || self.arrived > self.members || self.done > self.members {
            return Err(format!("{} members, but at most {} may be", self.members, self.job.max_nodes));
        }
        if [self.version, self.round, self.term, self.news].contains(&u64::MAX) {
            return Err("a counter has overflowed".to_owned());
        }
        Ok(())
    }

    /// Encodes the header for the store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// The entries of all nodes, with their ages.
fn entries(state: &State, age: &dyn Fn(NodeId) -> Duration) -> Vec<Entry> {
    let running = matches!(state.phase, RoundPhase::Running { .. });
    let assign_ranks = if running { assign_ranks(state.members.iter().map(|member| &member.node)) } else { Vec::new() };
    let done: BTreeMap<NodeId, usize> = state.done().iter().enumerate().map(|(at, id)| (*id, at)).collect();
    let entry = |node: &Node, own| Entry {
        node: node.clone(),
        age_ms: u64::try_from(age(node.id).as_millis()).unwrap_or(u64::MAX),
        own,
    };
    let member = |(at, member): (usize, &Member)| {
        let (done, assignment) = (done.get(&member.node.id).copied(), assign_ranks.get(at).copied());
        entry(&member.node, Own::Member { at, arrived: member.arrived, rank: member.rank, done, assignment })
    };
    let waiting =
        |(at, node): (usize, &Node)| entry(node, Own::Waiting { at, holder: state.rank_holder(node).cloned() });
    let members = state.members.iter().enumerate().map(member);
    members.chain(state.waiting.iter().enumerate().map(waiting)).collect()
}

/// The encoded pages of `state`; empty without nodes.
pub(super) fn pages(state: &State, age: &dyn Fn(NodeId) -> Duration) -> Vec<Vec<u8>> {
    let entries = entries(state, age);
    let count = entries.iter().map(|entry| entry.node.id / PAGE + 1).max().unwrap_or(0);
    let mut pages: Vec<Vec<Entry>> = (0..count).map(|_| Vec::new()).collect();
    for entry in entries {
        let page = (entry.node.id / PAGE) as usize; // less than `count`, which fits in memory
        pages[page].push(entry);
    }
    pages.iter().map(encode).collect()
}

/// Finds the entry of node `id` in its page.
pub(super) fn own(page: &[u8], id: NodeId) -> Result<Own, Refusal> {
    let entries: Vec<Entry> = read(page)?;
    Ok(entries.into_iter().find(|entry| entry.node.id == id).map(|entry| entry.own).unwrap_or_default())
}

/// Decodes the whole state from `header` and all of its pages.
pub(super) fn survey(header: &Header, pages: &[Vec<u8>]) -> Result<Survey, Refusal> {
    let mut entries: Vec<Entry> = Vec::new();
    for page in pages {
        entries.append(&mut read(page)?);
    }
    let ages = entries.iter().map(|entry| (entry.node.id, Duration::from_millis(entry.age_ms))).collect();
    let (mut members, mut waiting, mut done) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for Entry { node, own, .. } in entries {
        match own {
            Own::Member { at, arrived, rank, done: nth, .. } => {
                nth.and_then(|nth| done.insert(nth, node.id));
                members.insert(at, Member { node, arrived, rank });
            }
            Own::Waiting { at, .. } => drop(waiting.insert(at, node)),
            Own::Absent => {}
        }
    }
    let state = State {
        version: header.version,
        news: header.news,
        term: header.term,
        leader: header.leader.clone(),
        job: header.job.clone(),
        round: header.round,
        phase: match &header.phase {
            HeaderPhase::Gathering => RoundPhase::Gathering,
            HeaderPhase::Running => RoundPhase::Running { done: done.into_values().collect() },
            HeaderPhase::Finished => RoundPhase::Finished,
            HeaderPhase::Closed(closing) => RoundPhase::Closed((**closing).clone()),
        },
        cause: header.cause.clone(),
        members: members.into_values().collect(),
        waiting: waiting.into_values().collect(),
        lost: header.lost.clone(),
        refused: header.refused.clone(),
    };
    state.check().map_err(|why| corrupt(&[], why))?;
    Ok(Survey { state, ages })
}

pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Maps with string keys, lists, strings and numbers are always valid JSON.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Decodes a value that an agent wrote.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    if bytes.len() > MAX_BYTES {
        return Err(corrupt(bytes, format!("it has {} bytes", bytes.len())));
    }
    serde_json::from_slice(bytes).map_err(|error| corrupt(bytes, error.to_string()))
}

fn corrupt(bytes: &[u8], why: String) -> Refusal {
    Refusal::Corrupt { why, head: String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::node::Me;
    use super::super::node::tests::{job, node};
    use super::*;

    fn state(nodes: u64) -> State {
        let join = |state: State, id| state.with(&Me { node: node(id, "h"), job: job(1, 99) });
        (1..=nodes).fold(State::empty(job(1, 99)), join)
    }

    fn there_and_back(state: &State) -> State {
        let age = |id| Duration::from_millis(id);
        let pages = pages(state, &age);
        let header = Header::of(state, Some(Pages { term: 1, write: 0, count: pages.len() as u64 }));
        let header = Header::decode(&header.encode()).unwrap();
        let survey = survey(&header, &pages).unwrap();
        assert!(survey.ages.iter().all(|(id, known)| *known == age(*id)));
        survey.state
    }

    #[test]
    fn decodes_to_the_same_state() {
        let mut state = state(40);
        state.refused.push(Refused { id: 9, holder: node(1, "h") });
        assert_eq!(there_and_back(&state), state);
        let running = state.complete().succeeded(7).succeeded(3);
        assert_eq!(there_and_back(&running), running);
        let reformed = running.reformed(Cause::Newcomer { node: node(41, "z") });
        assert_eq!(there_and_back(&reformed), reformed);
    }

    #[test]
    fn the_sizes_of_header_and_page_do_not_depend_on_the_number_of_nodes() {
        let sizes = |nodes| {
            let state = state(nodes).complete();
            let pages = pages(&state, &|_| Duration::ZERO);
            (Header::of(&state, None).encode().len(), pages.iter().map(Vec::len).max().unwrap())
        };
        let ((header, page), (header_of_99, page_of_99)) = (sizes(33), sizes(99));
        assert!(header_of_99 < header + 20 && page_of_99 < page + 200, "{header} {header_of_99} {page} {page_of_99}");
    }

    #[test]
    fn a_node_finds_its_entry_in_the_page_of_its_id() {
        let state = state(40).complete();
        let pages = pages(&state, &|_| Duration::ZERO);
        for id in 1..=40 {
            let own = own(&pages[(id / PAGE) as usize], id).unwrap();
            assert_eq!(own, View::of(&state, id).own);
            let Own::Member { assignment: Some(assignment), .. } = own else { panic!("{own:?}") };
            assert_eq!((assignment.group_rank, assignment.role_world_size), (id as usize - 1, 40));
        }
        assert_eq!(View::of(&state, 41).own, Own::Absent);
    }

    #[test]
    fn rejects_another_schema_naming_both() {
        let altered = |schema| Header { schema, ..Header::of(&state(1), None) }.encode();
        assert_eq!(Header::decode(&altered(7)), Err(Refusal::Schema { ours: SCHEMA, theirs: 7 }));
        // The first schema stored everything under this key.
        let text = Header::decode(br#"{"schema":1,"version":4,"members":[]}"#).unwrap_err().to_string();
        assert_eq!(text, "the rendezvous is of schema 1, this agent is of schema 4: run the same version on all nodes");
    }

    #[test]
    fn rejects_values_that_no_agent_writes() {
        let good = Header::of(&state(2), None);
        let crowded = Header { job: job(1, 1), ..good.clone() };
        let last = Header { version: u64::MAX, ..good.clone() };
        for bad in [crowded, last] {
            assert!(matches!(Header::decode(&bad.encode()), Err(Refusal::Corrupt { .. })), "{bad:?}");
        }
        let whole = good.encode();
        for end in 0..whole.len() {
            assert!(matches!(Header::decode(&whole[..end]), Err(Refusal::Corrupt { .. })), "cut at {end}");
        }
        assert!(Header::decode(&vec![b' '; MAX_BYTES + 1]).is_err());
        let mut many = state(2);
        many.members[0].node.local_world_size = usize::MAX;
        assert!(survey(&good, &pages(&many, &|_| Duration::ZERO)).is_err());
    }
}
