//! A few agents, their connections and their authorities, step by step. What [`connection`](super::connection) and
//! [`host`](super::host) do with sockets is done here with messages. The rules that every step keeps are at the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::authority::{Authority, Conn, Event, LOCAL};
use super::check::Bug;
use super::client::{Action, Client, Goal};
use super::error::Change;
use super::message::{Request, View};
use super::options::RendezvousOptions;
use super::state::tests::{job, node};
use super::state::{Node, NodeId, State};
use super::succession::{Answer, Candidacy, Membership, Next, Search, send_on};

/// A tick of the clock: an interval of beats.
const TICK: Duration = Duration::from_secs(5);
/// Ports of agents are below it; each further process of an agent has a port that is higher by this.
const LIVES: usize = 16;

/// What may still go wrong.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Budget {
    pub(super) kills: u32,
    pub(super) freezes: u32,
    pub(super) cuts: u32,
    pub(super) splits: u32,
    pub(super) returns: u32,
    pub(super) restarts: u32,
    pub(super) leaves: u32,
    /// The agent at the endpoint may leave, too, where others can go on.
    pub(super) hands_over: bool,
    pub(super) successes: u32,
    /// Whether others may take over from a lost authority.
    pub(super) takeover: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// An agent starts, for the first time or again.
    Start(usize),
    /// The authority handles the next message of an agent.
    Deliver(usize),
    /// An authority that an agent has left handles a message that it sent before.
    Late(usize),
    /// An agent looks at its latest view.
    Look(usize),
    /// An agent's workers, which it is stopping, have ended.
    Stopped(usize),
    /// Time passes.
    Tick,
    /// An agent dies, and its workers with it.
    Kill(usize),
    /// An agent does nothing for a while.
    Freeze(usize),
    /// The frozen agent continues.
    Thaw(usize),
    /// No message from or to this agent arrives any more.
    Cut(usize),
    /// No message between this agent and the next one arrives any more.
    Split(usize),
    /// Its workers fail.
    Restart(usize),
    /// It is asked to end.
    Leave(usize),
    /// Its workers succeed.
    Succeed(usize),
    /// It notices that its authority has ended, or that no answer comes.
    Miss(usize),
    /// Without its authority, it turns to the next member.
    Probe(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Unborn,
    Up,
    Ended,
}

/// A connection to the authority in a process of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wire {
    to: usize,
    /// Which process of that agent.
    life: usize,
    conn: Conn,
    /// Messages on the way to the authority.
    sent: VecDeque<Event>,
}

#[derive(Clone, Debug)]
pub(super) struct Agent {
    at: usize,
    pub(super) life: Life,
    /// How many processes it had before.
    lives: usize,
    pub(super) frozen: bool,
    pub(super) cut: bool,
    wire: Wire,
    /// Those to former authorities.
    old: Vec<Wire>,
    /// How many connections it has opened.
    opened: usize,
    pub(super) client: Client,
    /// The latest view that has arrived, and whether the agent has looked at it.
    pub(super) view: Option<View>,
    looked: bool,
    /// The generation and the number of the round whose workers run here.
    pub(super) runs: Option<(u64, u64)>,
    stopping: bool,
    /// How long the authority has been silent.
    silent: Duration,
    /// When the last beat that was answered was sent.
    beat: Duration,
    membership: Membership,
    search: Option<Search>,
    /// How long it has waited for the one that it asked.
    waited: Duration,
    /// It follows a member that does not lead yet.
    follows: bool,
}

/// A state of everything.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    /// By the agent in whose process it is.
    pub(super) authorities: Vec<Option<Authority>>,
    /// Who has led, by generation.
    leaders: BTreeMap<u64, (usize, usize)>,
    /// The last round that all its members knew: its generation and number, and its members' agents.
    base: Option<((u64, u64), Vec<usize>)>,
    pub(super) agents: Vec<Agent>,
    /// Pairs of agents between which no messages arrive.
    apart: BTreeSet<(usize, usize)>,
    pub(super) budget: Budget,
    pub(super) bug: Option<Bug>,
    options: RendezvousOptions,
    /// The members of each round that has run, by its generation and number.
    formed: BTreeMap<(u64, u64), Vec<NodeId>>,
}

impl World {
    /// Agents that have not started; the first is in the authority's process.
    pub(super) fn new(agents: usize, min: usize, max: usize, budget: Budget) -> World {
        let options = RendezvousOptions {
            takeover: budget.takeover,
            keep_alive_interval: TICK,
            keep_alive_max_attempt: 2,
            last_call_timeout: TICK,
            join_timeout: Duration::from_secs(1 << 30),
            ..RendezvousOptions::default()
        };
        let job = job(min, max);
        let authority = Authority::new(Duration::ZERO, job.clone(), options.clone());
        let fresh = |at: usize| Agent::new(at, 0, Client::new(node(0, ""), job.clone(), options.clone()));
        World {
            now: Duration::ZERO,
            authorities: (0..agents).map(|at| (at == 0).then(|| authority.clone())).collect(),
            leaders: BTreeMap::new(),
            base: None,
            agents: (0..agents).map(fresh).collect(),
            apart: BTreeSet::new(),
            budget,
            bug: None,
            formed: BTreeMap::new(),
            options,
        }
    }

    /// The highest generation of an authority that has led.
    pub(super) fn led(&self) -> u64 {
        self.leaders.last_key_value().map_or(0, |(generation, _)| *generation)
    }

    /// The authority to which this agent is connected, if it is there.
    pub(super) fn authority_of(&self, at: usize) -> Option<(usize, &Authority)> {
        let wire = &self.agents[at].wire;
        let authority = self.authorities[wire.to].as_ref().filter(|_| self.agents[wire.to].lives == wire.life)?;
        Some((wire.to, authority))
    }

    /// All steps that are possible.
    pub(super) fn acts(&self) -> Vec<Act> {
        use Act::{
            Cut, Deliver, Freeze, Kill, Late, Leave, Look, Miss, Probe, Restart, Split, Start, Stopped, Succeed, Thaw,
        };
        let own = [Start, Deliver, Late, Look, Stopped, Miss, Probe, Thaw];
        let faults = [Kill, Freeze, Cut, Split, Restart, Leave, Succeed];
        let of = |at: usize| own.into_iter().chain(faults).map(move |kind| kind(at));
        let all = (0..self.agents.len()).flat_map(of);
        all.chain([Act::Tick]).filter(|act| self.can(*act)).collect()
    }

    fn is_up(&self, at: usize) -> bool {
        self.agents[at].life == Life::Up && !self.agents[at].frozen
    }

    /// Messages between two agents arrive.
    fn reach(&self, one: usize, other: usize) -> bool {
        let pair = (one.min(other), one.max(other));
        one == other || !self.agents[one].cut && !self.agents[other].cut && !self.apart.contains(&pair)
    }

    /// A message of this agent on this connection arrives.
    fn arrives(&self, at: usize, wire: &Wire) -> bool {
        self.reach(at, wire.to)
            && self.is_up(wire.to)
            && self.agents[wire.to].lives == wire.life
            && self.authorities[wire.to].is_some()
    }

    pub(super) fn can(&self, act: Act) -> bool {
        let busy = |at: usize| self.is_up(at) && self.agents[at].runs.is_some() && !self.agents[at].stopping;
        // Something may happen to the first authority only with takeovers.
        let other = |at: usize| (at > 0 || self.options.takeover) && self.agents[at].life == Life::Up;
        match act {
            Act::Start(at) => self.can_start(at),
            Act::Deliver(at) => {
                let agent = &self.agents[at];
                let connected = agent.search.is_none() || agent.follows;
                connected && !agent.wire.sent.is_empty() && self.arrives(at, &agent.wire)
            }
            Act::Late(at) => self.late(at).is_some(),
            Act::Miss(at) => {
                let agent = &self.agents[at];
                let (to, connected) = (agent.wire.to, agent.search.is_none() || agent.follows);
                let is_other = self.agents[to].life == Life::Ended || self.agents[to].lives != agent.wire.life;
                let misses = is_other && self.reach(at, to) || agent.silent >= self.options.lease();
                // An agent can be sent to the one that it was before it started again.
                let own = (to, agent.wire.life) == (at, agent.lives);
                self.is_up(at) && !own && connected && misses
            }
            Act::Probe(at) => {
                let agent = &self.agents[at];
                let Some(search) = agent.search.as_ref().filter(|_| !agent.follows) else { return false };
                let waits = match search.next() {
                    Next::Ask(address) if !search.asks_former() => {
                        let (to, life) = place(&address);
                        let lives = self.agents[to].life == Life::Up && self.agents[to].lives == life;
                        lives && self.reach(at, to) && self.authorities[to].is_none()
                    }
                    _ => false,
                };
                self.is_up(at) && !(waits && agent.waited < self.options.lease())
            }
            Act::Look(at) => self.is_up(at) && !self.agents[at].looked && !self.agents[at].stopping,
            Act::Stopped(at) => self.is_up(at) && self.agents[at].stopping,
            Act::Tick => true,
            Act::Kill(at) => self.budget.kills > 0 && other(at),
            Act::Freeze(at) => self.budget.freezes > 0 && other(at) && !self.agents[at].frozen,
            Act::Thaw(at) => self.agents[at].frozen,
            Act::Cut(at) => self.budget.cuts > 0 && other(at) && !self.agents[at].cut,
            Act::Split(at) => self.budget.splits > 0 && self.reach(at, (at + 1) % self.agents.len()),
            Act::Restart(at) => self.budget.restarts > 0 && busy(at),
            Act::Leave(at) => {
                let has_heir = || self.authorities[at].as_ref().is_some_and(|one| one.without_heir().is_none());
                self.budget.leaves > 0 && busy(at) && (at > 0 || self.budget.hands_over && has_heir())
            }
            Act::Succeed(at) => {
                self.budget.successes > 0 && busy(at) && matches!(self.agents[at].client.goal, Goal::Stay { .. })
            }
        }
    }

    fn can_start(&self, at: usize) -> bool {
        let leads = |to: usize| {
            let leads = self.authorities[to].as_ref().is_some_and(|one| one.generation > 0 && one.leads());
            leads && self.is_up(to) && self.reach(at, to)
        };
        match self.agents[at].life {
            Life::Unborn => at == 0 || self.agents[0].life != Life::Unborn,
            Life::Up => false,
            _ if self.budget.returns == 0 => false,
            // At the endpoint, it would begin another job if nobody told it where this one goes on.
            Life::Ended if at == 0 => (0..self.agents.len()).any(leads),
            // The end of its connection arrives first, unless it cannot.
            Life::Ended => {
                let wire = &self.agents[at].wire;
                self.agents[0].life == Life::Up && (wire.sent.is_empty() || !self.arrives(at, wire))
            }
        }
    }

    /// The connection to a former authority on which a message arrives next.
    fn late(&self, at: usize) -> Option<usize> {
        let wires = &self.agents[at].old;
        (0..wires.len()).find(|of| !wires[*of].sent.is_empty() && self.arrives(at, &wires[*of]))
    }

    /// Takes a step; the error names the rule that it breaks.
    pub(super) fn apply(&mut self, act: Act) -> Result<(), String> {
        let before: Vec<Option<(State, bool)>> = self
            .authorities
            .iter()
            .map(|one| one.as_ref().map(|authority| (authority.state.clone(), authority.moved.is_some())))
            .collect();
        match act {
            Act::Start(at) => self.start(at),
            Act::Deliver(at) => self.deliver(at, None),
            Act::Late(at) => self.deliver(at, self.late(at)),
            Act::Look(at) => self.look(at)?,
            Act::Stopped(at) => self.stopped(at),
            Act::Tick => self.tick(),
            Act::Kill(at) => {
                self.budget.kills -= 1;
                self.end(at);
            }
            Act::Freeze(at) => {
                self.budget.freezes -= 1;
                self.agents[at].frozen = true;
            }
            Act::Thaw(at) => self.agents[at].frozen = false,
            Act::Cut(at) => {
                self.budget.cuts -= 1;
                self.agents[at].cut = true;
            }
            Act::Split(at) => {
                self.budget.splits -= 1;
                let next = (at + 1) % self.agents.len();
                self.apart.insert((at.min(next), at.max(next)));
            }
            Act::Restart(at) => {
                self.budget.restarts -= 1;
                self.want(at, |round| Goal::Restart { round, reason: String::new() });
            }
            Act::Leave(at) => {
                self.budget.leaves -= 1;
                self.want(at, |_| Goal::Leave { why: String::new() });
            }
            Act::Succeed(at) => {
                self.budget.successes -= 1;
                self.want(at, |round| Goal::Succeed { round });
            }
            Act::Miss(at) => self.miss(at),
            Act::Probe(at) => self.probe(at),
        }
        self.lawful(&before)
    }

    fn start(&mut self, at: usize) {
        let now = self.now;
        if self.agents[at].life == Life::Ended {
            self.budget.returns -= 1;
            let (agent, client) = (&self.agents[at], &self.agents[at].client);
            let client = Client::new(node(0, ""), client.job.clone(), self.options.clone());
            let mut agent = Agent::new(at, agent.lives + 1, client);
            (agent.cut, agent.beat, agent.wire.life) = (self.agents[at].cut, now, self.agents[0].lives);
            self.agents[at] = agent;
            if at == 0 {
                self.agents[at].wire.life = self.agents[at].lives;
                let job = self.agents[at].client.job.clone();
                self.authorities[at] = Some(Authority::new(now, job, self.options.clone()));
            }
        }
        let agent = &mut self.agents[at];
        agent.life = Life::Up;
        agent.client.goal = Goal::Join { since: now };
        if at == 0 {
            (0..self.agents.len()).for_each(|leader| self.tell_former(leader));
        }
    }

    fn want(&mut self, at: usize, goal: impl Fn(u64) -> Goal) {
        let agent = &mut self.agents[at];
        agent.client.goal = goal(agent.client.given.unwrap_or_default());
        agent.looked = false;
    }

    /// A message arrives, on the agent's connection or on an old one.
    fn deliver(&mut self, at: usize, old: Option<usize>) {
        let agent = &mut self.agents[at];
        let wire = old.map_or(&mut agent.wire, |of| &mut agent.old[of]);
        let (Some(event), conn, to) = (wire.sent.pop_front(), wire.conn, wire.to) else { return };
        let Some(authority) = &mut self.authorities[to] else { return };
        let mut views = Vec::new();
        let moved = authority.moved.take_if(|_| self.bug == Some(Bug::Stubborn));
        for event in Bug::on_the_way(self.bug, authority, event) {
            views.extend(authority.handle(self.now, conn, event));
        }
        authority.moved = moved.or(authority.moved.take());
        Bug::after(self.bug, authority);
        if authority.has_resigned() {
            return self.end(to); // it closes its connections
        }
        self.send(to, Bug::sent(self.bug, conn, views));
    }

    fn send(&mut self, from: usize, views: Vec<(Conn, View)>) {
        for (conn, view) in views {
            let reached = |at: &usize| {
                let Agent { life, wire, .. } = &self.agents[*at];
                let own =
                    *life == Life::Up && wire.to == from && wire.conn == conn && wire.life == self.agents[from].lives;
                own && self.reach(*at, from)
            };
            let Some(at) = (0..self.agents.len()).find(reached) else { continue };
            if let Some(address) = &view.moved {
                self.move_to(at, &view, address);
                continue;
            }
            let agent = &mut self.agents[at];
            agent.membership.saw(&view);
            let connection = agent.view.as_ref().map_or(0, |view| view.connection);
            let view = View { connection, ..view };
            (agent.view, agent.looked, agent.search, agent.follows) = (Some(view), false, None, false);
        }
    }

    fn move_to(&mut self, at: usize, view: &View, address: &str) {
        let agent = &mut self.agents[at];
        let has_led = self.authorities[at].is_some();
        agent.connect(address);
        (agent.search, agent.follows, agent.looked, agent.silent) = (None, false, false, Duration::ZERO);
        if has_led {
            (agent.client.node.hosts_store, agent.client.node.port) = (false, None);
        }
        send_on(&mut agent.view, view, address);
    }

    fn miss(&mut self, at: usize) {
        let takeover = self.options.takeover;
        let agent = &mut self.agents[at];
        let address = address(agent.wire.to, agent.wire.life);
        if let Some(search) = &mut agent.search {
            search.answered(self.now, Answer::Unknown);
            agent.follows = false;
        } else {
            let lease_ends = agent.beat + self.options.lease();
            let former = (self.now < lease_ends).then(|| address.clone());
            let found = agent.view.as_ref().and_then(|view| agent.membership.search(view, former, lease_ends, "lost"));
            let Some(search) = found.filter(|_| takeover) else { return self.end(at) };
            agent.search = Some(search);
        }
        // What it asks for meanwhile goes to the next one.
        agent.connect(&address);
        if self.bug == Some(Bug::Closing) {
            agent.old.iter_mut().for_each(|wire| wire.sent.push_back(Event::Closed));
        }
        self.tell_that_it_is_lost(at);
    }

    fn tell_that_it_is_lost(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        if let (Some(search), Some(view)) = (&agent.search, &mut agent.view) {
            search.pretend(view);
        }
        (agent.looked, agent.waited) = (false, Duration::ZERO);
    }

    fn probe(&mut self, at: usize) {
        let Some(search) = &self.agents[at].search else { return };
        let answer = match search.next() {
            Next::End => return self.end(at),
            Next::Lead(candidacy) => return self.stand(at, *candidacy),
            Next::Ask(address) => {
                let (to, life) = place(&address);
                let is_other = self.agents[to].life == Life::Ended || self.agents[to].lives != life;
                let is_store = to == 0 && self.agents[to].life == Life::Up;
                match self.reach(at, to) {
                    true if is_other && !is_store => Answer::Dead,
                    true if !is_other && !search.asks_former() && self.authorities[to].is_some() => {
                        return self.follow(at, &address);
                    }
                    _ if self.bug == Some(Bug::Bold) => Answer::Dead,
                    _ => Answer::Unknown,
                }
            }
        };
        let now = self.now;
        self.agents[at].search.iter_mut().for_each(|search| search.answered(now, answer));
        self.tell_that_it_is_lost(at);
    }

    fn follow(&mut self, at: usize, address: &str) {
        let agent = &mut self.agents[at];
        let Some(search) = &agent.search else { return };
        let follow = Event::Asks(Request::Follow(Box::new(search.follow.clone())));
        let asked = std::mem::take(&mut agent.wire.sent);
        (agent.wire.to, agent.wire.life) = place(address);
        agent.wire.sent = [follow].into_iter().chain(asked).collect();
        (agent.follows, agent.silent, agent.beat) = (true, Duration::ZERO, self.now);
    }

    /// The agent wants to take over.
    fn stand(&mut self, at: usize, mut candidacy: Candidacy) {
        candidacy.generation = Bug::generation(self.bug, candidacy.generation);
        let job = self.agents[at].client.job.clone();
        let mut authority = Authority::succeed(self.now, job, self.options.clone(), candidacy);
        let agent = &mut self.agents[at];
        (agent.wire.to, agent.wire.life, agent.wire.conn, agent.search) = (at, agent.lives, LOCAL, None);
        let views = authority.tick(self.now);
        Bug::after(self.bug, &mut authority);
        self.authorities[at] = Some(authority);
        self.send(at, views);
    }

    fn tick(&mut self) {
        self.now += TICK;
        for at in (0..self.agents.len()).filter(|at| self.is_up(*at)).collect::<Vec<_>>() {
            let answers = self.arrives(at, &self.agents[at].wire);
            let agent = &mut self.agents[at];
            let (to, conn) = (agent.wire.to, agent.wire.conn);
            if agent.search.is_some() && !agent.follows {
                agent.waited += TICK;
                continue;
            }
            agent.silent = if answers { Duration::ZERO } else { agent.silent + TICK };
            if answers && let Some(authority) = &mut self.authorities[to] {
                agent.beat = self.now;
                let views = authority.handle(self.now, conn, Event::Heard);
                self.send(to, views);
            } else if agent.silent >= self.options.lease() && !self.options.takeover {
                self.end(at); // it has lost its authority
            }
        }
        for at in (0..self.agents.len()).filter(|at| self.is_up(*at)).collect::<Vec<_>>() {
            let Some(authority) = &mut self.authorities[at] else { continue };
            let views = authority.tick(self.now);
            Bug::after(self.bug, authority);
            self.send(at, views);
            self.tell_former(at);
        }
    }

    /// The authority that leads tells those that led before.
    fn tell_former(&mut self, at: usize) {
        let leads = |one: &&Authority| one.generation > 0 && one.leads();
        let Some(leader) = self.authorities[at].as_ref().filter(leads) else { return };
        let event = Event::Superseded(leader.generation, address(at, self.agents[at].lives));
        for former in (0..self.agents.len()).filter(|former| *former != at) {
            if self.reach(at, former)
                && self.is_up(former)
                && let Some(authority) = &mut self.authorities[former]
            {
                let views = authority.handle(self.now, LOCAL, event.clone());
                self.send(former, views);
            }
        }
    }

    fn end(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        (agent.life, agent.runs, agent.stopping, agent.frozen, agent.search) = (Life::Ended, None, false, false, None);
        agent.old.iter_mut().chain([&mut agent.wire]).for_each(|wire| wire.sent.push_back(Event::Closed));
        let life = agent.lives;
        self.agents.iter_mut().for_each(|agent| agent.old.retain(|wire| (wire.to, wire.life) != (at, life)));
        self.authorities[at] = None;
    }

    fn stopped(&mut self, at: usize) {
        let now = self.now;
        let agent = &mut self.agents[at];
        (agent.runs, agent.stopping, agent.looked) = (None, false, false);
        agent.client.goal = Goal::Join { since: now };
    }

    /// The agent decides until it waits.
    fn look(&mut self, at: usize) -> Result<(), String> {
        self.agents[at].looked = true;
        loop {
            let now = self.now;
            let agent = &mut self.agents[at];
            let view = agent.view.clone();
            let (action, _) = agent.client.decide(now, view.as_ref());
            if !self.carry_out(at, action)? {
                return Ok(());
            }
        }
    }

    /// Returns true if the agent decides again.
    fn carry_out(&mut self, at: usize, action: Action) -> Result<bool, String> {
        let agent = &mut self.agents[at];
        match (action, agent.client.goal.clone()) {
            (Action::Ask(request), _) => {
                agent.ask(request);
                return Ok(true);
            }
            (Action::Wait { .. }, _) => {}
            (Action::Formed(round), _) => {
                let place = (agent.client.generation, round.number);
                (agent.runs, agent.client.given, agent.client.given_in) = (Some(place), Some(place.1), place.0);
                agent.client.goal = Goal::Stay { round: round.number };
                agent.ask(Request::Took { round: round.number });
                let (id, ids) = (agent.client.node.id, self.formed.get(&place));
                if ids.is_none_or(|ids| ids.get(round.group_rank()) != Some(&id)) {
                    return Err(format!("member: node {id} runs in round {} of {ids:?}", round.number));
                }
                return Ok(true);
            }
            (Action::Done, Goal::Succeed { round }) => {
                agent.runs = None;
                agent.client.goal = Goal::Stay { round };
                return Ok(true);
            }
            (Action::Changed(change), _) if Bug::ignores(self.bug, &change) => {}
            (Action::Changed(change), _) if !matches!(*change, Change::Closed(_) | Change::AllDone) => self.stop(at),
            (Action::Done, Goal::Restart { .. }) => self.stop(at),
            (Action::Changed(_) | Action::Done | Action::Fail(_), _) => self.end(at),
        }
        Ok(false)
    }

    /// The agent stops its workers, which may take long.
    fn stop(&mut self, at: usize) {
        self.agents[at].stopping = true;
        if self.bug == Some(Bug::Hasty) {
            let runs = self.agents[at].runs;
            self.stopped(at);
            self.agents[at].runs = runs;
        }
    }

    /// The running round of this authority, if the workers of all its members run.
    pub(super) fn live(&self, at: usize) -> Option<(u64, u64)> {
        let authority = self.authorities[at].as_ref().filter(|one| one.is_established())?;
        let round = (authority.generation, authority.state.round);
        let runs = |id: NodeId| {
            let mut agents = self.agents.iter().filter(|agent| agent.client.node.id == id && agent.wire.to == at);
            agents.any(|agent| agent.life == Life::Up && agent.runs == Some(round) && !agent.stopping)
        };
        authority.state.members.iter().all(|member| runs(member.node.id)).then_some(round)
    }

    /// Equal for two worlds with the same possible futures.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (at, authority) in self.authorities.iter().enumerate() {
            if let Some(authority) = authority {
                at.hash(&mut hasher);
                authority.digest(self.now, &mut hasher);
            }
        }
        for agent in &self.agents {
            agent.digest(self.now, self.options.lease(), &mut hasher);
        }
        (&self.apart, &self.base, self.leaders.last_key_value()).hash(&mut hasher);
        (self.formed.last_key_value(), self.budget).hash(&mut hasher);
        hasher.finish()
    }
}

impl Agent {
    /// A process that has not started; `client` has its job.
    fn new(at: usize, lives: usize, mut client: Client) -> Self {
        let port = (at > 0).then_some((at + LIVES * lives) as u16);
        client.node = Node { hosts_store: at == 0, port, ..node(0, &format!("n{at}")) };
        Agent {
            at,
            life: Life::Unborn,
            lives,
            frozen: false,
            cut: false,
            wire: Wire { to: 0, life: 0, conn: conn(at, lives, 0), sent: VecDeque::new() },
            old: Vec::new(),
            opened: 0,
            client,
            view: None,
            looked: false,
            runs: None,
            stopping: false,
            silent: Duration::ZERO,
            beat: Duration::ZERO,
            membership: Membership::default(),
            search: None,
            waited: Duration::ZERO,
            follows: false,
        }
    }

    /// Opens another connection; the old one stays open.
    fn connect(&mut self, address: &str) {
        let (to, life) = place(address);
        self.opened += 1;
        let wire = Wire { to, life, conn: conn(self.at, self.lives, self.opened), sent: VecDeque::new() };
        self.old.push(std::mem::replace(&mut self.wire, wire));
    }

    fn ask(&mut self, request: Request) {
        self.membership.note(&request, self.view.as_ref());
        self.wire.sent.push_back(Event::Asks(request));
    }

    fn digest(&self, now: Duration, lease: Duration, hasher: &mut impl Hasher) {
        (self.life, self.lives, self.frozen, self.cut, self.runs, self.stopping, self.looked).hash(hasher);
        if self.life == Life::Up {
            self.client.digest(hasher);
            let beat = now.saturating_sub(self.beat).min(lease);
            let (silent, waited) = (self.silent.min(lease), self.waited.min(lease));
            (silent, waited, beat, &self.membership, self.follows).hash(hasher);
            self.search.as_ref().map(|search| search.at(now)).hash(hasher);
            let own = |view: &View| {
                let part = (view.own.clone(), view.succession.clone());
                let another = view.connection != self.client.connection;
                (view.id, view.generation, view.round, part, view.removed.is_some(), view.done, view.arrived, another)
            };
            self.view.as_ref().map(own).hash(hasher);
        }
        for wire in self.old.iter().filter(|wire| !wire.sent.is_empty() || self.life == Life::Up).chain([&self.wire]) {
            (wire.to, wire.life, wire.conn).hash(hasher);
            for event in &wire.sent {
                match event {
                    Event::Asks(Request::Join { given, round, .. }) => (1, given, round).hash(hasher),
                    Event::Asks(Request::Follow(follow)) => follow.hash(hasher),
                    Event::Asks(request) => request.hash(hasher),
                    Event::Heard | Event::Closed | Event::Broken | Event::Superseded(..) => 0.hash(hasher),
                }
            }
        }
    }
}

/// The number of a connection of an agent; the first one of the agent at the endpoint is [`LOCAL`].
fn conn(at: usize, life: usize, opened: usize) -> Conn {
    match (at, opened) {
        (0, 0) => LOCAL,
        _ => (at + LIVES * (opened + LIVES * life)) as Conn,
    }
}

/// Where a process of an agent listens.
fn address(at: usize, life: usize) -> String {
    format!("n{at}:{}", at + LIVES * life)
}

/// The agent that listens there, and which of its processes.
fn place(address: &str) -> (usize, usize) {
    let port: usize = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("an address of a world");
    (port % LIVES, port / LIVES)
}

impl World {
    /// The rules of every step.
    fn lawful(&mut self, before: &[Option<(State, bool)>]) -> Result<(), String> {
        for (at, before) in before.iter().enumerate() {
            let Some(authority) = &self.authorities[at] else { continue };
            if authority.generation > 0 && authority.leads() {
                self.has_right(at)?;
            }
            if let Some((state, moved)) = before {
                self.lawful_of(at, state, *moved)?;
            }
            self.establish(at)?;
        }
        let live: Vec<_> = (0..self.agents.len()).filter_map(|at| self.live(at)).collect();
        if live.len() > 1 { Err(format!("two: rounds {live:?} run at the same time")) } else { Ok(()) }
    }

    /// An authority leads after another one only if more than half of the last round follow it, or if that one has really ended.
    fn has_right(&mut self, at: usize) -> Result<(), String> {
        let Some(authority) = &self.authorities[at] else { return Ok(()) };
        let (generation, own) = (authority.generation, (at, self.agents[at].lives));
        let last = self.leaders.range(..generation).next_back().map_or((0, 0), |(_, leader)| *leader);
        match self.leaders.insert(generation, own) {
            Some(leader) if leader == own => return Ok(()),
            Some(leader) => return Err(format!("generation: {leader:?} and {own:?} lead in generation {generation}")),
            None => {}
        }
        let Some((base, members)) = &self.base else { return Err(format!("right: {at} leads after no round")) };
        let follows = |member: &&usize| **member == at || self.agents[**member].wire.to == at;
        let followers = members.iter().filter(follows).count();
        let has_ended = self.agents[last.0].lives != last.1 || self.agents[last.0].life == Life::Ended;
        if has_ended || 2 * followers > members.len() {
            return Ok(());
        }
        Err(format!("right: agent {at} leads with {followers} of {members:?} of {base:?}, and {last:?} has not ended"))
    }

    /// Notes a round that all members know.
    fn establish(&mut self, at: usize) -> Result<(), String> {
        let Some(authority) = self.authorities[at].as_ref().filter(|one| one.is_established()) else { return Ok(()) };
        let round = (authority.generation, authority.state.round);
        if self.base.as_ref().is_some_and(|(base, _)| *base == round) {
            return Ok(());
        }
        let ids = &self.formed[&round];
        let is_member = |of: &usize| ids.contains(&self.agents[*of].client.node.id) && self.agents[*of].wire.to == at;
        let members = (0..self.agents.len()).filter(is_member).collect();
        match &self.base {
            Some((base, _)) if *base > round => {} // it was noted before, or begins too late
            _ => self.base = Some((round, members)),
        }
        Ok(())
    }

    fn lawful_of(&mut self, at: usize, before: &State, had_moved: bool) -> Result<(), String> {
        let Some(authority) = &self.authorities[at] else { return Ok(()) };
        let state = &authority.state;
        if had_moved && before != state {
            return Err(format!("old: {} changes after another has its job", authority.generation));
        }
        if before.is_final() && before.phase != state.phase {
            return Err(format!("final: {:?} became {:?}", before.phase, state.phase));
        }
        if state.round < before.round {
            return Err(format!("round: {} follows {}", state.round, before.round));
        }
        let removed =
            |node: &&Node| before.node(node.id).is_none() && before.lost.iter().any(|lost| lost.node.id == node.id);
        if let Some(node) = state.everyone().find(removed) {
            return Err(format!("id: {node} came back under the id that was removed"));
        }
        let began = state.is_running() && (!before.is_running() || before.round != state.round);
        if began { self.begins(at) } else { Ok(()) }
    }

    /// When a round begins, all its members have come and none of their workers run; survivors keep their order.
    fn begins(&mut self, at: usize) -> Result<(), String> {
        let Some(authority) = &self.authorities[at] else { return Ok(()) };
        let (state, generation) = (&authority.state, authority.generation);
        let (count, job) = (state.members.len(), &state.job);
        if count < job.min_nodes || count > job.max_nodes {
            return Err(format!("size: a round of {count} nodes of {}:{}", job.min_nodes, job.max_nodes));
        }
        let member = |agent: &&Agent| {
            agent.wire.to == at && state.member(agent.client.node.id).is_some() && agent.runs.is_some()
        };
        if let Some(agent) = self.agents.iter().find(member) {
            return Err(format!(
                "stopped: round {} begins while {} runs {:?}",
                state.round, agent.client.node, agent.runs
            ));
        }
        let ids: Vec<NodeId> = state.members.iter().map(|member| member.node.id).collect();
        let last = self.formed.range(..=(generation, u64::MAX)).next_back();
        if let Some((_, last)) = last.filter(|((of, _), _)| *of == generation) {
            let places: Vec<_> = ids.iter().filter_map(|id| last.iter().position(|other| other == id)).collect();
            if !places.is_sorted() {
                return Err(format!("order: survivors changed it: {places:?}"));
            }
        }
        match self.formed.insert((generation, state.round), ids) {
            None => Ok(()),
            Some(last) => Err(format!("once: round {} runs again after {last:?}", state.round)),
        }
    }
}
