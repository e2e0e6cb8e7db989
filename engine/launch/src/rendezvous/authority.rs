//! The authority of a job: decides who takes part in which round.
//!
//! A pure function of its state, the time and one event: a node has sent a request or a beat, or has disconnected, or time has passed.
//! It returns the views that have changed. Changes that nodes wait for are sent at once. Those that only add up (nodes that arrive,
//! nodes that succeed) are sent when they have doubled the group, or after a poll interval. So O(N) views are sent while N nodes come,
//! and an event costs O(1) messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::error::Refusal;
use super::message::{Follow, OwnPart, Phase, Request, RoundPlace, Succession, Successor, Survey, View};
use super::options::RendezvousOptions;
use super::state::{Cause, Closing, JobIdentity, Member, Node, NodeId, RoundPhase, SeenNode, State};
use super::succession::{Candidacy, Claim, Right, SUCCESSORS};

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
    /// The connection is lost; it is not known whether the node's agent has ended.
    Broken,
    /// An authority of this generation has taken over the job, at this address.
    Superseded(u64, String),
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
    pub(super) generation: u64,
    /// The last round that all its members know.
    pub(super) base: Option<Base>,
    /// The members that know their place in the running round.
    pub(super) took: BTreeSet<NodeId>,
    /// Until the first round of an authority that has taken over, or wants to, is complete.
    pub(super) claim: Option<Claim>,
    /// The authority of a later generation, and where it is. Once it is known, this one changes nothing.
    pub(super) moved: Option<(u64, String)>,
    /// Its own node has left, and the others go on without it: they get no further view.
    resigned: bool,
}

/// See [`super::succession`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Base {
    members: BTreeSet<NodeId>,
    /// The members that may or may not be alive.
    pub(super) silent: BTreeSet<NodeId>,
    /// The size of each round that counts, and how many of its members were missing from the start.
    bounds: Vec<(usize, usize)>,
    succession: Succession,
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
    /// Its id before it was last removed.
    pub(super) was: NodeId,
    /// Why it was removed.
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
        let sent = (mark(&state, false), [0; 3], now);
        let look_at = now + options.poll();
        Authority {
            state,
            options,
            peers: BTreeMap::new(),
            conns: BTreeMap::new(),
            last_id: 0,
            looked: now,
            look_at,
            enough: None,
            sent,
            generation: 0,
            base: None,
            took: BTreeSet::new(),
            claim: None,
            moved: None,
            resigned: false,
        }
    }

    /// A member that takes over as soon as it has the right to do so. Until then it sends no views.
    #[must_use]
    pub fn succeed(now: Duration, job: JobIdentity, options: RendezvousOptions, candidacy: Candidacy) -> Self {
        let mut authority = Authority::new(now, job, options);
        let claim = Claim::new(now, authority.options.lease(), &candidacy);
        let Candidacy { follow, generation, last_id, lost, why, .. } = candidacy;
        (authority.generation, authority.last_id, authority.claim) = (generation, last_id, Some(claim));
        let node = Node { hosts_store: true, ..follow.node.clone() };
        authority.state.round = follow.seen;
        authority.state.cause = lost.map_or(Cause::Start, |node| Cause::NodeLost { node, why });
        authority.follow(now, LOCAL, Follow { node, ..follow });
        authority
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

    /// Returns true if it leaves the job to the next member. Its connections must be closed then, as if its process had ended: it never
    /// acts again.
    #[must_use]
    pub fn has_resigned(&self) -> bool {
        self.resigned
    }

    /// Returns true if no agent is connected.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        self.peers.is_empty()
    }

    /// Handles an event; returns the views that have changed.
    pub fn handle(&mut self, now: Duration, conn: Conn, event: Event) -> Vec<(Conn, View)> {
        if self.moved.is_some() {
            return self.refer(now, conn, event);
        }
        if self.resigned {
            return self.views(&[LOCAL]);
        }
        self.note_absence(now);
        let mut direct = None;
        match event {
            Event::Heard => self.hear(now, conn),
            Event::Asks(request) => {
                self.peers.entry(conn).or_insert_with(|| Peer::new(now));
                self.hear(now, conn);
                self.grant(now, conn, request);
                if self.resigned {
                    return self.views(&[LOCAL]);
                }
                direct = Some(conn);
            }
            Event::Closed => self.close(conn, true),
            Event::Broken => self.close(conn, false),
            Event::Superseded(generation, address) => {
                if generation > self.generation && !self.state.is_final() {
                    self.moved = Some((generation, address));
                    return self.views(&self.everyone());
                }
            }
        }
        self.settle(now, direct)
    }

    /// Another authority has the job: tells everyone who asks where it is.
    fn refer(&mut self, now: Duration, conn: Conn, event: Event) -> Vec<(Conn, View)> {
        match (event, &self.moved) {
            (Event::Closed | Event::Broken, _) => {
                self.peers.remove(&conn);
                Vec::new()
            }
            (Event::Asks(_), _) => {
                self.peers.entry(conn).or_insert_with(|| Peer::new(now));
                self.views(&[conn])
            }
            (Event::Superseded(generation, address), Some((last, _))) if generation > *last => {
                self.moved = Some((generation, address));
                self.views(&self.everyone())
            }
            (Event::Superseded(..) | Event::Heard, _) => Vec::new(),
        }
    }

    fn everyone(&self) -> Vec<Conn> {
        self.peers.keys().copied().collect()
    }

    /// Time has passed: returns the views that have changed.
    pub fn tick(&mut self, now: Duration) -> Vec<(Conn, View)> {
        if self.moved.is_some() || self.resigned {
            return Vec::new();
        }
        self.note_absence(now);
        self.settle(now, None)
    }

    /// When to call [`tick`](Self::tick) if nothing happens.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        if self.moved.is_some() || self.resigned {
            return None;
        }
        let silent = self.peers.keys().any(|conn| *conn != LOCAL).then_some(self.look_at);
        let due = (self.count() != self.sent.1).then(|| self.sent.2 + self.options.poll());
        let called = self.enough.map(|(_, since)| since + self.options.last_call_timeout);
        let claims = self.claim.as_ref().map(|claim| match claim.leads {
            Some(since) => since + self.options.keep_alive_interval,
            None => claim.ends,
        });
        [silent, due, called, claims.filter(|at| *at > self.looked)].into_iter().flatten().min()
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

    fn close(&mut self, conn: Conn, has_ended: bool) {
        let Some(peer) = self.peers.remove(&conn) else { return };
        if let Some(base) = &mut self.base {
            base.note(peer.was, true);
            base.note(peer.id, has_ended);
        }
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
            // A request that was sent for an earlier round does not say that the workers of this one have ended.
            Request::Join { round, .. } if self.state.member(id).is_some() && round < self.state.round => {}
            Request::Join { node, job, was, given, .. } if was == peer.was => self.join(now, conn, *node, &job, given),
            Request::Join { .. } => {}
            Request::Follow(follow) => self.follow(now, conn, *follow),
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
            Request::Took { round } if self.state.runs(id, round) => {
                self.took.insert(id);
                self.establish();
            }
            Request::Restart { .. } | Request::Succeed { .. } | Request::Close(_) | Request::Took { .. } => {}
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
            if let Some(base) = &mut self.base {
                base.note(peer.was, true);
            }
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
            let alone = self.without_heir();
            self.resigned = alone.is_none();
            let reason =
                format!("this agent hosts the rendezvous and has to leave: {why}; {}", alone.unwrap_or_default());
            return self.state.close(Closing { by: node, reason, root_cause: None });
        }
        self.remove(vec![(id, why)], |node, why| Cause::NodeLeft { node, why });
    }

    /// Why the others cannot go on without this authority; `None` if they can: a connected one may take over, and enough are left.
    pub(super) fn without_heir(&self) -> Option<String> {
        let is_other = |node: &&Node| !node.hosts_store && self.conns.contains_key(&node.id);
        let is_here = |id: NodeId| self.state.member(id).is_some_and(|member| is_other(&&member.node));
        let mut heirs = self.base.iter().flat_map(|base| &base.succession.order);
        let (left, min) = (self.state.everyone().filter(is_other).count(), self.state.job.min_nodes);
        let why = match () {
            () if !self.options.takeover => "no other may take over".to_owned(),
            () if !self.state.done().is_empty() => "the workers of other nodes have already succeeded".to_owned(),
            () if left < min => format!("{left} of at least {min} nodes are left"),
            () if self.claim.is_some() || !heirs.any(|heir| is_here(heir.id)) => {
                "no other can take over yet".to_owned()
            }
            () => return None,
        };
        Some(why)
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
            if let Some(base) = &mut self.base {
                silent.iter().for_each(|(id, _)| base.note(*id, false));
            }
            self.remove(silent, |node, why| Cause::NodeLost { node, why });
        }
        self.limit();
        if !self.may_lead(now) {
            return Vec::new();
        }
        let refused = self.refuse();
        self.gather(now);
        let (mark, count) = (mark(&self.state, self.is_ready()), self.count());
        let added: usize = count.iter().zip(self.sent.1).map(|(now, sent)| now.abs_diff(sent)).sum();
        let people = self.state.members.len() + self.state.waiting.len();
        let due = added > 0 && (2 * added >= people || now >= self.sent.2 + self.options.poll());
        if mark != self.sent.0 || due {
            self.sent = (mark, count, now);
            return self.views(&self.everyone());
        }
        self.views(&refused.into_iter().chain(direct).collect::<Vec<_>>())
    }

    /// Returns true if this is the job's authority, not only a candidate.
    pub(super) fn leads(&self) -> bool {
        let may = self.claim.as_ref().is_none_or(|claim| claim.leads.is_some());
        may && self.moved.is_none() && !self.state.is_final()
    }

    /// Adds a member of the last round that makes this agent the authority.
    fn follow(&mut self, now: Duration, conn: Conn, follow: Follow) {
        let id = follow.node.id;
        // A node that was removed has to join under another id, and one that comes when the round already runs is late.
        let known = self.state.node(id).is_some() || self.state.lost.iter().any(|lost| lost.node.id == id);
        let gathers = self.state.phase == RoundPhase::Gathering;
        let Some(claim) = self.claim.as_mut().filter(|_| gathers && !known) else { return };
        let differences = follow.job.differences(&self.state.job);
        let peer = self.peers.entry(conn).or_insert_with(|| Peer::new(now));
        if !differences.is_empty() || peer.id != 0 || self.state.members.len() == self.state.job.max_nodes {
            return; // it will ask to join
        }
        claim.count(&follow);
        peer.id = id;
        self.conns.insert(id, conn);
        self.last_id = self.last_id.max(id);
        // Later than any round that a follower has seen.
        self.state.round = self.state.round.max(follow.seen + 1);
        if let Some(base) = &mut self.base {
            base.members.insert(id);
            base.bounds = claim.bounds();
        }
        let rank = follow.taken.last().map(|taken| taken.rank);
        self.state.members.push(Member { node: follow.node, arrived: false, rank });
    }

    /// Returns true unless this agent still waits for the right to lead.
    fn may_lead(&mut self, now: Duration) -> bool {
        let Some(claim) = self.claim.as_mut().filter(|claim| claim.leads.is_none()) else { return true };
        if self.state.is_final() {
            self.claim = None; // this agent has to leave
            return true;
        }
        match claim.right(now) {
            Right::Wait => return false,
            Right::Lead => {
                claim.leads = Some(now);
                self.base = Some(Base {
                    members: self.conns.keys().copied().collect(),
                    silent: BTreeSet::new(),
                    bounds: claim.bounds(),
                    succession: claim.base.clone(),
                });
            }
            Right::End => {
                let (followers, size) = claim.followers();
                let lost = self.state.cause.text();
                self.claim = None;
                self.end(&format!(
                    "{lost}, and only {followers} of {size} nodes of the last round go on from here: this node cannot know whether the \
                     others go on without it"
                ));
            }
        }
        true
    }

    /// Ends the job if the members that are silent may go on without this agent.
    fn limit(&mut self) {
        let Some(base) = self.base.as_ref().filter(|_| self.options.takeover && !self.state.is_final()) else { return };
        let silent = base.silent.len();
        let broken = base.bounds.iter().find(|(size, missing)| 2 * (missing + silent) > *size);
        if let Some((size, missing)) = broken.filter(|_| silent > 0) {
            let silent = missing + silent;
            self.end(&format!(
                "{silent} of {size} nodes of the last round are silent: this node cannot know whether they go on without it"
            ));
        }
    }

    fn end(&mut self, reason: &str) {
        let by = self.state.everyone().find(|node| node.hosts_store).cloned();
        if let Some(by) = by {
            self.state.close(Closing { by, reason: reason.to_owned(), root_cause: None });
        }
    }

    /// Returns true if workers of the running round may meet: all members know it.
    fn is_ready(&self) -> bool {
        self.state.master.is_some() && self.is_established()
    }

    pub(super) fn is_established(&self) -> bool {
        self.state.is_running() && self.took.len() == self.state.members.len()
    }

    /// The running round becomes the base once all its members know it. The authority's own node must be one of them: if it is known dead,
    /// it does not count as missing.
    pub(super) fn establish(&mut self) {
        let members = || self.state.members.iter().map(|member| &member.node);
        if !self.options.takeover || !self.is_established() || !members().any(|node| node.hosts_store) {
            return;
        }
        let successor = |node: &Node| {
            let port = node.port.filter(|_| !node.hosts_store)?;
            let address = if node.addr.contains(':') { format!("[{}]", node.addr) } else { node.addr.clone() };
            Some(Successor { id: node.id, address: format!("{address}:{port}") })
        };
        let order = members().filter_map(successor).take(SUCCESSORS).collect();
        let (round, size) = (self.state.round, self.state.members.len());
        self.base = Some(Base {
            members: members().map(|node| node.id).collect(),
            silent: BTreeSet::new(),
            bounds: vec![(size, 0)],
            succession: Succession { round, size, order },
        });
    }

    fn count(&self) -> Count {
        [self.state.arrived(), self.state.waiting.len(), self.state.done().len()]
    }

    /// Nodes that have been silent for a lease, each with a text that gives the times.
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
        let patience = self.options.keep_alive_interval;
        let misses = |claim: &Claim| !claim.is_complete() && claim.leads.is_none_or(|since| now < since + patience);
        if self.claim.as_ref().is_some_and(misses) {
            return; // members of the last round may be on their way
        }
        if !gathers || came < self.state.members.len() || came < min {
            self.enough = None;
            return;
        }
        let since = self.enough.filter(|(round, _)| *round == self.state.round).map_or(now, |(_, since)| since);
        // Only the first round waits for more: a late node simply causes the next.
        if came == max || self.state.round > 0 || now >= since + self.options.last_call_timeout {
            self.state.complete();
            self.took.clear();
            (self.enough, self.claim) = (None, None);
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
            generation: self.generation,
            last_id: self.last_id,
            succession: self.base.as_ref().map(|base| Box::new(base.succession.clone())),
            moved: self.moved.as_ref().map(|(_, address)| address.clone()),
            connection: 0,
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
            master: self.state.master.clone().filter(|_| self.is_ready()),
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
        (self.generation, &self.base, &self.took, &self.moved).hash(hasher);
        let claim = self.claim.as_ref();
        claim.map(|claim| (claim.leads.map(age), now < claim.ends, claim.bounds(), &claim.base)).hash(hasher);
    }
}

impl Peer {
    fn new(now: Duration) -> Self {
        Peer { id: 0, since: now, heard: now, was: 0, removed: None, refusal: None, survey: None }
    }
}

impl Base {
    /// A member is gone.
    fn note(&mut self, id: NodeId, has_ended: bool) {
        match has_ended {
            true => drop(self.silent.remove(&id)),
            false if self.members.contains(&id) => drop(self.silent.insert(id)),
            false => {}
        }
    }
}

fn mark(state: &State, is_ready: bool) -> Mark {
    let phase = match &state.phase {
        RoundPhase::Gathering => 0,
        RoundPhase::Running { .. } => 1,
        RoundPhase::Finished => 2,
        RoundPhase::Closed(_) => 3,
    };
    (state.round, phase, is_ready, state.lost.last().map(|lost| lost.node.id))
}

fn phase(phase: &RoundPhase) -> Phase {
    match phase {
        RoundPhase::Gathering => Phase::Gathering,
        RoundPhase::Running { .. } => Phase::Running,
        RoundPhase::Finished => Phase::Finished,
        RoundPhase::Closed(closing) => Phase::Closed(Box::new(closing.clone())),
    }
}
