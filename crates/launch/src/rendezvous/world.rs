//! A few agents, their connections and their authority, step by step, and the rules that every step keeps.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::authority::{Authority, Conn, Event};
use super::check::Bug;
use super::client::{Action, Client, Goal};
use super::error::Change;
use super::message::{Request, View};
use super::node::tests::{job, node};
use super::node::{Node, NodeId};
use super::options::RendezvousOptions;
use super::state::State;

/// A tick of the clock: an interval of beats.
pub(super) const TICK: Duration = Duration::from_secs(5);

/// What may still go wrong.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Budget {
    pub(super) kills: u32,
    pub(super) freezes: u32,
    pub(super) cuts: u32,
    pub(super) returns: u32,
    pub(super) restarts: u32,
    pub(super) leaves: u32,
    pub(super) successes: u32,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// An agent starts, for the first time or again.
    Start(usize),
    /// The authority handles the next message of an agent.
    Deliver(usize),
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
    /// It continues.
    Thaw(usize),
    /// No message of it, or to it, arrives any more.
    Cut(usize),
    /// Its workers fail.
    Restart(usize),
    /// It is asked to end.
    Leave(usize),
    /// Its workers succeed.
    Succeed(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Unborn,
    Up,
    Ended,
}

#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub(super) life: Life,
    pub(super) frozen: bool,
    pub(super) cut: bool,
    conn: Conn,
    pub(super) client: Client,
    /// Messages on the way to the authority.
    sent: VecDeque<Event>,
    /// The latest view that has arrived, and whether the agent has looked at it.
    pub(super) view: Option<View>,
    looked: bool,
    /// The round whose workers run here.
    pub(super) runs: Option<u64>,
    stopping: bool,
    /// How long the authority has been silent.
    silent: Duration,
}

/// A state of everything.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) authority: Authority,
    pub(super) agents: Vec<Agent>,
    pub(super) budget: Budget,
    pub(super) bug: Option<Bug>,
    options: RendezvousOptions,
    conns: Conn,
    /// The members of each round that has run.
    formed: BTreeMap<u64, Vec<NodeId>>,
}

impl World {
    /// Agents that have not started; the first is in the authority's process.
    pub(super) fn new(agents: usize, min: usize, max: usize, budget: Budget) -> World {
        let options = RendezvousOptions {
            keep_alive_interval: TICK,
            keep_alive_max_attempt: 2,
            last_call_timeout: TICK,
            join_timeout: Duration::from_secs(1 << 30),
            ..RendezvousOptions::default()
        };
        let agent = |at: usize| {
            let node = Node { hosts_store: at == 0, ..node(0, &format!("n{at}")) };
            let client = Client::new(node, job(min, max), options.clone());
            Agent {
                life: Life::Unborn,
                frozen: false,
                cut: false,
                conn: at as Conn,
                client,
                sent: VecDeque::new(),
                view: None,
                looked: false,
                runs: None,
                stopping: false,
                silent: Duration::ZERO,
            }
        };
        World {
            now: Duration::ZERO,
            authority: Authority::new(Duration::ZERO, job(min, max), options.clone()),
            agents: (0..agents).map(agent).collect(),
            budget,
            bug: None,
            options: options.clone(),
            conns: agents as Conn,
            formed: BTreeMap::new(),
        }
    }

    /// All steps that are possible.
    pub(super) fn acts(&self) -> Vec<Act> {
        use Act::{Cut, Deliver, Freeze, Kill, Leave, Look, Restart, Start, Stopped, Succeed, Thaw};
        let kinds = [Start, Deliver, Look, Stopped, Kill, Freeze, Thaw, Cut, Restart, Leave, Succeed];
        let all = (0..self.agents.len()).flat_map(|at| kinds.map(|kind| kind(at)));
        all.chain([Act::Tick]).filter(|act| self.can(*act)).collect()
    }

    pub(super) fn can(&self, act: Act) -> bool {
        let up = |at: usize| self.agents[at].life == Life::Up && !self.agents[at].frozen;
        let busy = |at: usize| up(at) && self.agents[at].runs.is_some() && !self.agents[at].stopping;
        // The agent in the authority's process is not separated from it.
        let other = |at: usize| at > 0 && self.agents[at].life == Life::Up;
        match act {
            Act::Start(at) => match self.agents[at].life {
                Life::Unborn => at == 0 || self.agents[0].life != Life::Unborn,
                Life::Up => false,
                // The end of its connection arrives first, unless it is cut off.
                Life::Ended => {
                    at > 0 && self.budget.returns > 0 && (self.agents[at].sent.is_empty() || self.agents[at].cut)
                }
            },
            Act::Deliver(at) => !self.agents[at].sent.is_empty() && !self.agents[at].cut,
            Act::Look(at) => up(at) && !self.agents[at].looked && !self.agents[at].stopping,
            Act::Stopped(at) => up(at) && self.agents[at].stopping,
            Act::Tick => true,
            Act::Kill(at) => self.budget.kills > 0 && other(at),
            Act::Freeze(at) => self.budget.freezes > 0 && other(at) && !self.agents[at].frozen,
            Act::Thaw(at) => self.agents[at].frozen,
            Act::Cut(at) => self.budget.cuts > 0 && other(at) && !self.agents[at].cut,
            Act::Restart(at) => self.budget.restarts > 0 && busy(at),
            Act::Leave(at) => self.budget.leaves > 0 && at > 0 && busy(at),
            Act::Succeed(at) => {
                self.budget.successes > 0 && busy(at) && matches!(self.agents[at].client.goal, Goal::Stay { .. })
            }
        }
    }

    /// Takes a step; the error names the rule that it breaks.
    pub(super) fn apply(&mut self, act: Act) -> Result<(), String> {
        let before = self.authority.state.clone();
        match act {
            Act::Start(at) => self.start(at),
            Act::Deliver(at) => self.deliver(at),
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
        }
        self.lawful(&before)
    }

    fn start(&mut self, at: usize) {
        if self.agents[at].life == Life::Ended {
            self.budget.returns -= 1;
            self.conns += 1;
            let fresh = World::new(
                self.agents.len(),
                self.authority.state.job.min_nodes,
                self.authority.state.job.max_nodes,
                self.budget,
            );
            let conn = self.conns;
            self.agents[at] = Agent { conn, ..fresh.agents[at].clone() };
        }
        let now = self.now;
        let agent = &mut self.agents[at];
        agent.life = Life::Up;
        agent.client.goal = Goal::Join { since: now };
    }

    fn want(&mut self, at: usize, goal: impl Fn(u64) -> Goal) {
        let agent = &mut self.agents[at];
        agent.client.goal = goal(agent.client.given.unwrap_or_default());
        agent.looked = false;
    }

    fn deliver(&mut self, at: usize) {
        let Some(event) = self.agents[at].sent.pop_front() else { return };
        let conn = self.agents[at].conn;
        let mut views = Vec::new();
        for event in Bug::on_the_way(self.bug, &mut self.authority, conn, event) {
            views.extend(self.authority.handle(self.now, conn, event));
        }
        Bug::after(self.bug, &mut self.authority);
        self.send(Bug::sent(self.bug, conn, views));
    }

    fn send(&mut self, views: Vec<(Conn, View)>) {
        for (conn, view) in views {
            let agent = self.agents.iter_mut().find(|agent| agent.conn == conn && agent.life == Life::Up && !agent.cut);
            if let Some(agent) = agent {
                (agent.view, agent.looked) = (Some(view), false);
            }
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        for at in 0..self.agents.len() {
            let agent = &mut self.agents[at];
            if agent.life == Life::Up && !agent.frozen {
                agent.silent = if agent.cut { agent.silent + TICK } else { Duration::ZERO };
                if !agent.cut {
                    let conn = agent.conn;
                    let views = self.authority.handle(self.now, conn, Event::Heard);
                    self.send(views);
                } else if agent.silent >= self.options.lease() {
                    self.end(at); // it has lost its authority
                }
            }
        }
        let views = self.authority.tick(self.now);
        Bug::after(self.bug, &mut self.authority);
        self.send(views);
    }

    fn end(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        (agent.life, agent.runs, agent.stopping, agent.frozen) = (Life::Ended, None, false, false);
        agent.sent.push_back(Event::Closed);
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
                agent.sent.push_back(Event::Asks(request));
                return Ok(true);
            }
            (Action::Wait { .. }, _) => {}
            (Action::Formed(round), _) => {
                (agent.runs, agent.client.given) = (Some(round.number), Some(round.number));
                agent.client.goal = Goal::Stay { round: round.number };
                let (id, ids) = (agent.client.node.id, self.formed.get(&round.number));
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

    /// The rules of every step.
    fn lawful(&mut self, before: &State) -> Result<(), String> {
        let state = &self.authority.state;
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
        if began { self.begins() } else { Ok(()) }
    }

    /// When a round begins, all its members have come and none of their workers run; survivors keep their order.
    fn begins(&mut self) -> Result<(), String> {
        let state = &self.authority.state;
        let (count, job) = (state.members.len(), &state.job);
        if count < job.min_nodes || count > job.max_nodes {
            return Err(format!("size: a round of {count} nodes of {}:{}", job.min_nodes, job.max_nodes));
        }
        let member = |agent: &&Agent| state.member(agent.client.node.id).is_some() && agent.runs.is_some();
        if let Some(agent) = self.agents.iter().find(member) {
            return Err(format!(
                "stopped: round {} begins while {} runs {:?}",
                state.round, agent.client.node, agent.runs
            ));
        }
        let ids: Vec<NodeId> = state.members.iter().map(|member| member.node.id).collect();
        if let Some((_, last)) = self.formed.last_key_value() {
            let places: Vec<_> = ids.iter().filter_map(|id| last.iter().position(|other| other == id)).collect();
            if !places.is_sorted() {
                return Err(format!("order: survivors changed it: {places:?}"));
            }
        }
        match self.formed.insert(state.round, ids) {
            None => Ok(()),
            Some(last) => Err(format!("once: round {} runs again after {last:?}", state.round)),
        }
    }

    /// Equal for two worlds with the same possible futures.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.authority.digest(self.now, &mut hasher);
        for agent in &self.agents {
            (agent.life, agent.frozen, agent.cut, agent.conn, agent.runs, agent.stopping, agent.looked)
                .hash(&mut hasher);
            if agent.life == Life::Up {
                agent.client.digest(&mut hasher);
                agent.silent.hash(&mut hasher);
                let own = |view: &View| {
                    (view.id, view.round, view.own.clone(), view.removed.is_some(), view.done, view.arrived)
                };
                agent.view.as_ref().map(own).hash(&mut hasher);
            }
            for event in &agent.sent {
                match event {
                    Event::Asks(Request::Join { given, round, .. }) => (1, given, round).hash(&mut hasher),
                    Event::Asks(request) => request.hash(&mut hasher),
                    Event::Heard | Event::Closed => 0.hash(&mut hasher),
                }
            }
        }
        (self.formed.last_key_value(), self.budget).hash(&mut hasher);
        hasher.finish()
    }
}
