//! The authority of a job: decides who takes part in which round.
//!
//! A pure function of its state, the time and one event: a node has sent a request or a beat, or has disconnected, or time has passed.
//! It returns the views that have changed. Changes that nodes wait for are sent at once; those that only add up (nodes that arrive,
//! nodes that succeed) when they have doubled the group, or after a poll interval. So all views that are sent while N nodes come are
//! O(N), and an event costs O(1) messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::error::Refusal;
use super::message::{Cause, Closing, OwnPart, Phase, Request, RoundPlace, SeenNode, Survey, View};
use super::node::{JobIdentity, Node, NodeId};
use super::options::RendezvousOptions;
use super::state::{RoundPhase, State};

/// A connection of an agent.
pub type Conn = u64;
/// The agent in the authority's own process. It is alive.
pub const LOCAL: Conn = 0;
/// Maximum number of nodes that a view names.
const NAMED: usize = 8;

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node has sent a beat: it is alive.
    Heard,
    /// The node has sent a request.
    Asks(Request),
    /// The connection has been closed: the node's agent has ended.
    Closed,
}

/// The authority of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    pub(super) state: State,
    options: RendezvousOptions,
    pub(super) peers: BTreeMap<Conn, Peer>,
    /// The connections of nodes that are in the state.
    conns: BTreeMap<NodeId, Conn>,
    last_id: NodeId,
    /// When the last event came.
    pub(super) looked: Duration,
    /// When to look for silent nodes next.
    look_at: Duration,
    /// The time since which the gathering of this round has had enough members.
    enough: Option<(u64, Duration)>,
    /// What was sent to everyone last, and when.
    sent: (Mark, Count, Duration),
}

/// What is known about an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// 0 before it has joined.
    id: NodeId,
    /// When the node joined.
    since: Duration,
    /// When it was last heard.
    pub(super) heard: Duration,
    /// The last of its ids under which it was removed.
    pub(super) was: NodeId,
    /// Why.
    removed: Option<String>,
    refusal: Option<Refusal>,
    survey: Option<Box<Survey>>,
}

/// The part of the state that everyone waits for.
type Mark = (u64, u8, bool, Option<NodeId>);
/// The part that adds up: how many have arrived, wait, and are done.
type Count = [usize; 3];

impl Authority {
    /// An authority for a job without nodes.
    #[must_use]
    pub fn new(now: Duration, job: JobIdentity, options: RendezvousOptions) -> Self {
        let state = State::new(job);
        let sent = (mark(&state), [0; 3], now);
        let look_at = now + options.poll();
        let (peers, conns) = (BTreeMap::new(), BTreeMap::new());
        Authority { state, options, peers, conns, last_id: 0, looked: now, look_at, enough: None, sent }
    }

    /// The state of the job.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The nodes whose agents are connected, apart from the one in this process.
    pub fn connected(&self) -> Vec<Node> {
        let node = |(conn, peer): (&Conn, &Peer)| (*conn != LOCAL).then(|| self.state.node(peer.id).cloned())?;
        self.peers.iter().filter_map(node).collect()
    }

    /// Returns true if no agent is connected.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        self.peers.is_empty()
    }

    /// Handles an event; returns the views that have changed.
    pub fn handle(&mut self, now: Duration, conn: Conn, event: Event) -> Vec<(Conn, View)> {
        self.note_absence(now);
        let mut direct = None;
        match event {
            Event::Heard => self.hear(now, conn),
            Event::Asks(request) => {
                self.peers.entry(conn).or_insert_with(|| Peer::new(now));
                self.hear(now, conn);
                self.grant(now, conn, request);
                direct = Some(conn);
            }
            Event::Closed => self.close(conn),
        }
        self.settle(now, direct)
    }

    /// Time has passed: returns the views that have changed.
    pub fn tick(&mut self, now: Duration) -> Vec<(Conn, View)> {
        self.note_absence(now);
        self.settle(now, None)
    }

    /// When to call [`tick`](Self::tick) if nothing happens.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        let silent = self.peers.keys().any(|conn| *conn != LOCAL).then_some(self.look_at);
        let due = (self.count() != self.sent.1).then(|| self.sent.2 + self.options.poll());
        let called = self.enough.map(|(_, since)| since + self.options.last_call_timeout);
        [silent, due, called].into_iter().flatten().min()
    }

    /// If the time since the last event is longer than usual, the excess does not count against silent nodes: this agent was not
    /// available.
    fn note_absence(&mut self, now: Duration) {
        let usual = self.options.keep_alive_interval.max(self.options.poll() * 2);
        let away = now.saturating_sub(self.looked).saturating_sub(usual);
        if away > Duration::ZERO {
            self.peers.values_mut().for_each(|peer| peer.heard = (peer.heard + away).min(now));
        }
        self.looked = now;
    }

    fn hear(&mut self, now: Duration, conn: Conn) {
        if let Some(peer) = self.peers.get_mut(&conn) {
            peer.heard = now;
        }
    }

    fn close(&mut self, conn: Conn) {
        let Some(peer) = self.peers.remove(&conn) else { return };
        self.remove(vec![(peer.id, "its connection to the store was closed".to_owned())], |node, why| {
            Cause::NodeLost { node, why }
        });
        self.conns.remove(&peer.id);
    }

    fn grant(&mut self, now: Duration, conn: Conn, request: Request) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        peer.survey = None;
        let id = peer.id;
        match request {
            Request::Join { node, job, was, given, .. } if was == peer.was => self.join(now, conn, *node, &job, given),
            Request::Join { .. } => {}
            Request::Survey => {
                let survey = self.survey(now);
                self.peers.entry(conn).and_modify(|peer| peer.survey = Some(Box::new(survey)));
            }
            _ if self.state.is_final() => {}
            Request::Restart { round, reason } if self.state.runs(id, round) => {
                if let Some(node) = self.state.node(id).cloned() {
                    self.state.reform(Cause::Restart { node, reason });
                }
            }
            Request::Succeed { round } if self.state.runs(id, round) => self.state.succeed(id),
            Request::Close(closing) if self.state.node(id).is_some() => self.state.close(*closing),
            Request::Leave { why } => self.leave(id, why),
            Request::Master { round, address } => {
                let is_first = self.state.members.first().is_some_and(|first| first.node.id == id);
                if is_first && self.state.is_running() && self.state.round == round {
                    self.state.master = Some(address);
                }
            }
            Request::Restart { .. } | Request::Succeed { .. } | Request::Close(_) => {}
        }
    }

    fn join(&mut self, now: Duration, conn: Conn, mut node: Node, job: &JobIdentity, given: Option<u64>) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        let differences = job.differences(&self.state.job);
        peer.refusal = (!differences.is_empty()).then_some(Refusal::OtherJob(differences));
        if peer.refusal.is_some() || self.state.is_final() {
            return;
        }
        if self.state.node(peer.id).is_none() {
            if !self.state.done().is_empty() {
                return; // the job is ending; it asks again when the state has changed
            }
            self.last_id += 1;
            *peer = Peer { id: self.last_id, was: peer.was, ..Peer::new(now) };
            self.conns.insert(peer.id, conn);
        }
        node.id = peer.id;
        for (role, command) in &job.commands {
            self.state.job.commands.entry(role.clone()).or_insert_with(|| command.clone());
        }
        self.state.join(node, given);
    }

    fn leave(&mut self, id: NodeId, why: String) {
        let Some(node) = self.state.node(id).filter(|_| !self.state.done().contains(&id)).cloned() else { return };
        if node.hosts_store {
            let reason = format!("this agent hosts the store and has to leave: {why}");
            return self.state.close(Closing { by: node, reason, root_cause: None });
        }
        self.remove(vec![(id, why)], |node, why| Cause::NodeLeft { node, why });
    }

    fn remove(&mut self, gone: Vec<(NodeId, String)>, cause: fn(Node, String) -> Cause) {
        if self.state.is_final() {
            return;
        }
        self.state.remove(gone.clone(), cause);
        for (id, why) in gone.into_iter().filter(|(id, _)| self.state.node(*id).is_none()) {
            let peer = self.conns.remove(&id).and_then(|conn| self.peers.get_mut(&conn));
            peer.into_iter().for_each(|peer| (peer.was, peer.removed) = (id, Some(why.clone())));
        }
    }

    /// Does what is due, and returns the views that have changed: of everyone, or of `direct`.
    fn settle(&mut self, now: Duration, direct: Option<Conn>) -> Vec<(Conn, View)> {
        if now >= self.look_at {
            self.look_at = now + self.options.poll();
            let silent = self.silent(now);
            self.remove(silent, |node, why| Cause::NodeLost { node, why });
        }
        let refused = self.refuse();
        self.gather(now);
        let (mark, count) = (mark(&self.state), self.count());
        let added: usize = count.iter().zip(self.sent.1).map(|(now, sent)| now.abs_diff(sent)).sum();
        let people = self.state.members.len() + self.state.waiting.len();
        let due = added > 0 && (2 * added >= people || now >= self.sent.2 + self.options.poll());
        if mark != self.sent.0 || due {
            self.sent = (mark, count, now);
            let everyone: Vec<Conn> = self.peers.keys().copied().collect();
            return self.views(&everyone);
        }
        self.views(&refused.into_iter().chain(direct).collect::<Vec<_>>())
    }

    fn count(&self) -> Count {
        [self.state.arrived(), self.state.waiting.len(), self.state.done().len()]
    }

    /// Nodes that have been silent for a lease, each with the numbers.
    fn silent(&self, now: Duration) -> Vec<(NodeId, String)> {
        let (lease, interval) = (self.options.lease(), self.options.keep_alive_interval.as_secs_f64());
        let why = |silence: Duration| {
            let (silent, limit) = (silence.as_secs_f64(), lease.as_secs_f64());
            let attempts = self.options.keep_alive_max_attempt;
            format!("no heartbeat for {silent:.1} s (limit {limit} s: {attempts} of {interval} s)")
        };
        let silent = |(id, conn): (&NodeId, &Conn)| {
            let silence = now.saturating_sub(self.peers.get(conn)?.heard);
            (*conn != LOCAL && silence >= lease).then(|| (*id, why(silence)))
        };
        self.conns.iter().filter_map(silent).collect()
    }

    /// Refuses nodes whose rank a live node has. A holder that was not heard since may be about to be lost.
    fn refuse(&mut self) -> Vec<Conn> {
        let alive = |holder: &Node, since: Duration| {
            self.conns.get(&holder.id).is_some_and(|conn| *conn == LOCAL || self.peers[conn].heard > since)
        };
        let taken = |node: &Node| {
            let (conn, holder) = (*self.conns.get(&node.id)?, self.state.rank_holder(node)?);
            let refusal = Refusal::RankTaken {
                rank: node.node_rank.unwrap_or_default(),
                holder: Box::new(holder.clone()),
                mine: Box::new(node.clone()),
            };
            alive(holder, self.peers[&conn].since).then_some((node.id, conn, refusal))
        };
        let refused: Vec<(NodeId, Conn, Refusal)> = self.state.waiting.iter().filter_map(taken).collect();
        let tell = |(id, conn, refusal): (NodeId, Conn, Refusal)| {
            self.state.waiting.retain(|node| node.id != id);
            self.conns.remove(&id);
            self.peers.entry(conn).and_modify(|peer| peer.refusal = Some(refusal));
            conn
        };
        refused.into_iter().map(tell).collect()
    }

    /// Completes the round if it is time.
    fn gather(&mut self, now: Duration) {
        let (came, min, max) = (self.state.arrived(), self.state.job.min_nodes, self.state.job.max_nodes);
        let gathers = self.state.phase == RoundPhase::Gathering;
        if !gathers || came < self.state.members.len() || came < min {
            self.enough = None;
            return;
        }
        let since = self.enough.filter(|(round, _)| *round == self.state.round).map_or(now, |(_, since)| since);
        // Only the first round waits for more: a late node simply causes the next.
        if came == max || self.state.round > 0 || now >= since + self.options.last_call_timeout {
            self.state.complete();
            self.enough = None;
        } else {
            self.enough = Some((self.state.round, since));
        }
    }

    fn views(&self, conns: &[Conn]) -> Vec<(Conn, View)> {
        let state = &self.state;
        let (expected, all) = (state.members.len() > state.arrived(), conns.len() > 1);
        let members = state.members.iter().filter(|member| !expected || state.is_running() || !member.arrived);
        let named: Vec<Node> = members.take(NAMED).map(|member| member.node.clone()).collect();
        let general = View {
            id: 0,
            host: state.everyone().find(|node| node.hosts_store).cloned(),
            round: state.round,
            phase: phase(&state.phase),
            cause: state.cause.clone(),
            members: state.members.len(),
            arrived: state.arrived(),
            done: state.done().len(),
            named,
            own: OwnPart::Absent,
            removed: None,
            refusal: None,
            survey: None,
        };
        let done: BTreeSet<NodeId> = state.done().iter().copied().collect();
        let world_size = state.members.iter().map(|member| member.node.local_world_size).sum();
        let ids = state.members.iter().enumerate().map(|(at, member)| (member.node.id, at));
        let places: HashMap<NodeId, usize> = if all { ids.collect() } else { HashMap::new() };
        let find = |id: NodeId| match all {
            true => places.get(&id).copied(),
            false => state.members.iter().position(|member| member.node.id == id),
        };
        let view = |conn: &Conn| {
            let peer = self.peers.get(conn)?;
            let own = match find(peer.id) {
                Some(at) => self.member(at, world_size, &done),
                None => self.waiting(peer.id),
            };
            let (removed, refusal, survey) = (peer.removed.clone(), peer.refusal.clone(), peer.survey.clone());
            Some((*conn, View { id: peer.id, own, removed, refusal, survey, ..general.clone() }))
        };
        conns.iter().filter_map(view).collect()
    }

    fn member(&self, at: usize, world_size: usize, done: &BTreeSet<NodeId>) -> OwnPart {
        let member = &self.state.members[at];
        let place = self.state.ranks.get(at).map(|ranks| RoundPlace {
            ranks: *ranks,
            world_size,
            first: self.state.members[0].node.clone(),
            master: self.state.master.clone(),
        });
        OwnPart::Member { arrived: member.arrived, done: done.contains(&member.node.id), place: place.map(Box::new) }
    }

    fn waiting(&self, id: NodeId) -> OwnPart {
        let found = self.state.waiting.iter().enumerate().find(|(_, node)| node.id == id);
        found.map_or(OwnPart::Absent, |(at, node)| OwnPart::Waiting {
            at,
            holder: self.state.rank_holder(node).cloned(),
        })
    }

    fn survey(&self, now: Duration) -> Survey {
        let seen = |node: &Node| {
            let peer = self.conns.get(&node.id).and_then(|conn| self.peers.get(conn));
            SeenNode { node: node.clone(), ago: peer.map_or(Duration::ZERO, |peer| now.saturating_sub(peer.since)) }
        };
        let members = || self.state.members.iter();
        let done = self.state.done();
        Survey {
            came: members().filter(|member| member.arrived).map(|member| seen(&member.node)).collect(),
            expected: self.state.expected().map(seen).collect(),
            lost: self.state.lost.clone(),
            unfinished: members().map(|member| member.node.clone()).filter(|node| !done.contains(&node.id)).collect(),
        }
    }
}

#[cfg(test)]
impl Authority {
    /// Equal for two authorities with the same possible futures.
    pub(super) fn digest(&self, now: Duration, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        let (state, cap) = (&self.state, self.options.lease() + self.options.keep_alive_interval);
        let age = |at: Duration| now.saturating_sub(at).min(cap);
        (state.round, &state.phase, &state.members, &state.waiting, state.lost.last().map(|lost| lost.node.id))
            .hash(hasher);
        for (conn, peer) in &self.peers {
            (conn, peer.id, peer.was, age(peer.heard), peer.refusal.is_some()).hash(hasher);
        }
        (self.last_id, self.enough.map(|(round, since)| (round, age(since))), self.count() == self.sent.1).hash(hasher);
    }
}

impl Peer {
    fn new(now: Duration) -> Self {
        Peer { id: 0, since: now, heard: now, was: 0, removed: None, refusal: None, survey: None }
    }
}

fn mark(state: &State) -> Mark {
    let phase = match &state.phase {
        RoundPhase::Gathering => 0,
        RoundPhase::Running { .. } => 1,
        RoundPhase::Finished => 2,
        RoundPhase::Closed(_) => 3,
    };
    (state.round, phase, state.master.is_some(), state.lost.last().map(|lost| lost.node.id))
}

fn phase(phase: &RoundPhase) -> Phase {
    match phase {
        RoundPhase::Gathering => Phase::Gathering,
        RoundPhase::Running { .. } => Phase::Running,
        RoundPhase::Finished => Phase::Finished,
        RoundPhase::Closed(closing) => Phase::Closed(Box::new(closing.clone())),
    }
}
