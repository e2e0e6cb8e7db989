//! A small world: a store, a clock, and agents that do as the driver does, one atomic thing at a time.
//!
//! What is atomic in the world is what is atomic in reality: a look at the store with the decision that follows from
//! it; a compare-and-set; a heartbeat of all; and whatever may befall an agent. Between an agent's look and its
//! compare-and-set anything may happen.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;
use std::rc::Rc;
use std::time::Duration;

use crate::rendezvous::node::tests::{job, node};
use crate::rendezvous::*;

/// A heartbeat, and the step of the clock.
pub(super) const TICK: Duration = Duration::from_secs(5);

pub(super) type Decide = fn(Duration, Option<&State>, &Me, &Memory, &Options) -> Decision;

/// What may still befall the agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    pub(super) failures: u8,
    pub(super) fatal: u8,
    pub(super) leaves: u8,
    pub(super) freezes: u8,
    pub(super) successes: u8,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) store: Option<Rc<State>>,
    pub(super) agents: Vec<Rc<Agent>>,
    pub(super) faults: Faults,
    now: Duration,
    beats: BTreeMap<NodeId, u64>,
    numbers: NodeId,
    /// Who made up each round that ran.
    formed: Rc<BTreeMap<u64, Vec<NodeId>>>,
    options: Rc<Options>,
    decide: Decide,
}

#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub(super) me: Me,
    pub(super) life: Life,
    pub(super) memory: Memory,
    /// A write under way: the version that it expects, and what it would put there.
    pub(super) pending: Option<(Option<u64>, Rc<State>)>,
    /// Its heartbeats do not arrive.
    pub(super) frozen: bool,
    /// The round that its workers run.
    pub(super) runs: Option<(u64, Vec<NodeId>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    NotStarted,
    Up,
    Dead,
    Ended,
}

/// One atomic thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Start(usize),
    Look(usize),
    Write(usize),
    Tick,
    Crash(usize),
    WorkerFails(usize),
    FailsForGood(usize),
    Succeeds(usize),
    Leaves(usize),
    Freeze(usize),
    Thaw(usize),
}

impl World {
    pub(super) fn new(nodes: usize, min: usize, max: usize, faults: Faults, decide: Decide) -> World {
        let agent = |at: usize| Agent {
            me: Me { node: node(0, ["a", "b", "c", "d"][at]), job: job(min, max) },
            life: Life::NotStarted,
            memory: Memory::new(Duration::ZERO),
            pending: None,
            frozen: false,
            runs: None,
        };
        let options = Options {
            keep_alive_interval: TICK,
            keep_alive_max_attempt: 1,
            last_call_timeout: TICK,
            join_timeout: Duration::from_secs(100_000),
            ..Options::default()
        };
        World {
            store: None,
            agents: (0..nodes).map(agent).map(Rc::new).collect(),
            faults,
            now: Duration::ZERO,
            beats: BTreeMap::new(),
            numbers: 0,
            formed: Rc::default(),
            options: Rc::new(options),
            decide,
        }
    }

    /// The same, with agents that insist on these ranks.
    pub(super) fn insisting(mut self, ranks: &[usize]) -> World {
        for (at, rank) in ranks.iter().enumerate() {
            self.agent(at).me.node.node_rank = Some(*rank);
        }
        self
    }

    /// All that may happen next.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Tick];
        for (at, agent) in self.agents.iter().enumerate() {
            match agent.life {
                // Agents are alike: which of them comes first makes no difference.
                Life::NotStarted if at == 0 || self.agents[at - 1].life != Life::NotStarted => {
                    events.push(Event::Start(at));
                }
                Life::NotStarted => {}
                Life::Up => self.events_of(at, agent, &mut events),
                Life::Dead | Life::Ended => {}
            }
        }
        events
    }

    fn events_of(&self, at: usize, agent: &Agent, events: &mut Vec<Event>) {
        events.push(if agent.pending.is_some() { Event::Write(at) } else { Event::Look(at) });
        let running = agent.runs.is_some() && matches!(agent.memory.goal, Goal::Stay { .. });
        let done = self.store.as_ref().is_some_and(|state| state.done().contains(&agent.me.node.id));
        let leaving = matches!(agent.memory.goal, Goal::Leave { .. } | Goal::Close(_));
        let left = &self.faults;
        let may = [
            (left.crashes > 0, Event::Crash(at)),
            (left.failures > 0 && running && !done, Event::WorkerFails(at)),
            (left.fatal > 0 && running && !done, Event::FailsForGood(at)),
            (left.successes > 0 && running && !done, Event::Succeeds(at)),
            (left.leaves > 0 && !leaving, Event::Leaves(at)),
            (left.freezes > 0 && !agent.frozen, Event::Freeze(at)),
            (agent.frozen, Event::Thaw(at)),
        ];
        events.extend(may.into_iter().filter(|(may, _)| *may).map(|(_, event)| event));
    }

    /// Lets `event` happen; the error tells which rule was broken.
    pub(super) fn apply(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick => self.tick(),
            Event::Start(at) => {
                self.agent(at).life = Life::Up;
                self.agent(at).memory = Memory::new(self.now);
                self.number(at);
            }
            Event::Look(at) => return self.look(at),
            Event::Write(at) => return self.write(at),
            Event::Crash(at) => {
                self.faults.crashes -= 1;
                let agent = Rc::make_mut(&mut self.agents[at]);
                (agent.life, agent.pending, agent.runs) = (Life::Dead, None, None);
            }
            Event::WorkerFails(at) => {
                self.faults.failures -= 1;
                self.wants(at, |round| Goal::Restart { round, reason: String::new() });
            }
            Event::Succeeds(at) => {
                self.faults.successes -= 1;
                self.wants(at, |round| Goal::Succeed { round });
            }
            Event::FailsForGood(at) => {
                self.faults.fatal -= 1;
                let by = self.agents[at].me.node.clone();
                let closing = Closing { by, reason: String::new(), root_cause: None };
                self.wants(at, |_| Goal::Close(Box::new(closing)));
            }
            Event::Leaves(at) => {
                self.faults.leaves -= 1;
                self.agent(at).memory.goal = Goal::Leave { why: String::new() };
            }
            Event::Freeze(at) => {
                self.faults.freezes -= 1;
                self.agent(at).frozen = true;
            }
            Event::Thaw(at) => self.agent(at).frozen = false,
        }
        Ok(())
    }

    pub(super) fn agent(&mut self, at: usize) -> &mut Agent {
        Rc::make_mut(&mut self.agents[at])
    }

    fn tick(&mut self) {
        self.now += TICK;
        for agent in self.agents.iter().filter(|agent| agent.life == Life::Up && !agent.frozen) {
            *self.beats.entry(agent.me.node.id).or_insert(1) += 1;
        }
    }

    fn number(&mut self, at: usize) {
        self.numbers += 1;
        self.beats.insert(self.numbers, 1);
        self.agent(at).me.node.id = self.numbers;
        self.agent(at).memory.renewed();
        self.agent(at).frozen = false; // else it would be struck out again and again, without end
    }

    fn wants(&mut self, at: usize, goal: impl FnOnce(u64) -> Goal) {
        let agent = Rc::make_mut(&mut self.agents[at]);
        if let Some((round, _)) = &agent.runs {
            agent.memory.goal = goal(*round);
        }
    }

    fn look(&mut self, at: usize) -> Result<(), String> {
        let state = self.store.as_deref();
        let me = self.agents[at].me.node.id;
        let ids = state.map(|state| watched(state, me)).unwrap_or_default();
        let beats: Vec<_> = ids.into_iter().map(|id| (id, self.beats.get(&id).copied().unwrap_or(0))).collect();
        let agent = Rc::make_mut(&mut self.agents[at]);
        agent.memory.observe(self.now, state, &beats, me, &self.options);
        let decision = (self.decide)(self.now, state, &agent.me, &agent.memory, &self.options);
        match decision.action {
            Action::Write(next) => agent.pending = Some((state.map(|state| state.version), Rc::new(*next))),
            Action::Renew => self.number(at),
            Action::Wait { .. } => {}
            Action::Formed(round) => return self.forms(at, &round),
            Action::Changed(change) => {
                agent.runs = None;
                match *change {
                    Change::Closed(_) | Change::AllDone | Change::StoreLost(_) => agent.life = Life::Ended,
                    _ => agent.memory.goal = Goal::Join { since: self.now },
                }
            }
            Action::Done => match &agent.memory.goal {
                Goal::Succeed { round } => agent.memory.goal = Goal::Stay { round: *round },
                Goal::Restart { .. } => {
                    agent.runs = None;
                    agent.memory.goal = Goal::Join { since: self.now };
                }
                Goal::Close(_) | Goal::Leave { .. } => (agent.life, agent.runs) = (Life::Ended, None),
                goal => return Err(format!("done, but with what? {goal:?}")),
            },
            Action::Fail(error) => match *error {
                RendezvousError::Closed(_) | RendezvousError::Finished => agent.life = Life::Ended,
                RendezvousError::Refused(refusal) if matches!(*refusal, Refusal::RankTaken { .. }) => {
                    agent.life = Life::Ended;
                }
                error => return Err(format!("agent {at} failed: {error}")),
            },
        }
        Ok(())
    }

    /// The agent is told that a round runs: is it the round that all others know?
    fn forms(&mut self, at: usize, round: &Round) -> Result<(), String> {
        let ids: Vec<NodeId> = round.members.iter().map(|member| member.node.id).collect();
        let known = Rc::make_mut(&mut self.formed).entry(round.number).or_insert_with(|| ids.clone());
        if *known != ids {
            return Err(format!("round {} has members {known:?} and {ids:?}", round.number));
        }
        let mut ranks: Vec<usize> =
            round.members.iter().flat_map(|m| m.first_rank..m.first_rank + m.node.local_world_size).collect();
        ranks.sort_unstable();
        if ranks != (0..round.world_size).collect::<Vec<_>>() {
            return Err(format!("the ranks of round {} are {ranks:?}", round.number));
        }
        let agent = Rc::make_mut(&mut self.agents[at]);
        if ids.get(round.group_rank) != Some(&agent.me.node.id) || agent.memory.given >= Some(round.number) {
            return Err(format!("agent {at} got group rank {} of round {}: {ids:?}", round.group_rank, round.number));
        }
        agent.runs = Some((round.number, ids));
        agent.memory.given = Some(round.number);
        agent.memory.goal = Goal::Stay { round: round.number };
        Ok(())
    }

    fn write(&mut self, at: usize) -> Result<(), String> {
        let Some((expected, next)) = self.agent(at).pending.take() else { return Ok(()) };
        if self.store.as_ref().map(|state| state.version) != expected {
            return Ok(()); // lost the race
        }
        next.check()?;
        if let Some(before) = &self.store {
            lawful(before, &next)?;
            self.nobody_is_left_behind(before, &next)?;
        }
        let agent = self.agent(at);
        agent.memory.wrote(&next, agent.me.node.id);
        self.store = Some(next);
        Ok(())
    }

    /// When a round begins, the workers of all its members must have ended.
    fn nobody_is_left_behind(&self, before: &State, next: &State) -> Result<(), String> {
        if before.phase != Phase::Gathering || !matches!(next.phase, Phase::Running { .. }) {
            return Ok(());
        }
        let busy = |agent: &&Rc<Agent>| agent.runs.is_some() && next.member(agent.me.node.id).is_some();
        match self.agents.iter().find(busy) {
            None => Ok(()),
            Some(agent) => Err(format!("round {} runs while {} runs {:?}", next.round, agent.me.node, agent.runs)),
        }
    }

    /// Equal for two worlds in which the same things can happen from now on.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let state = self.store.as_deref();
        hash_state(state, &mut hasher);
        let cap = self.options.lease() + TICK;
        for agent in &self.agents {
            let latest = |id| self.beats.get(&id).copied().unwrap_or(0);
            (agent.me.node.id, agent.life, agent.frozen, &agent.runs).hash(&mut hasher);
            match agent.life {
                Life::Up => agent.memory.digest(self.now, cap, &latest, &mut hasher),
                _ => continue,
            }
            if let Some((expected, next)) = &agent.pending {
                let current = *expected == state.map(|state| state.version);
                current.hash(&mut hasher);
                hash_state(current.then_some(next.as_ref()), &mut hasher);
            }
        }
        (&self.formed, self.numbers, &self.faults).hash(&mut hasher);
        hasher.finish()
    }
}

/// What must hold between a state and the one that takes its place.
fn lawful(before: &State, next: &State) -> Result<(), String> {
    if before.is_final() {
        return Err(format!("a final state was changed: {:?}", before.phase));
    }
    if next.version <= before.version {
        return Err(format!("version {} follows {}", next.version, before.version));
    }
    if next.round < before.round {
        return Err(format!("round {} follows {}", next.round, before.round));
    }
    if !before.done().is_empty() && next.phase == Phase::Gathering {
        return Err("a round gathers though some have finished already".to_owned());
    }
    let back = |node: &&Node| before.node(node.id).is_none() && before.lost.iter().any(|lost| lost.node.id == node.id);
    if let Some(node) = next.everyone().find(back) {
        return Err(format!("{node} came back under the number that was struck out"));
    }
    let order = |state: &State| state.members.iter().map(|member| member.node.id).collect::<Vec<_>>();
    match (&before.phase, &next.phase) {
        (Phase::Running { .. }, Phase::Running { .. }) if order(before) != order(next) => {
            Err("the members of a running round changed".to_owned())
        }
        (Phase::Gathering, Phase::Running { .. }) => completed(before, next),
        _ => Ok(()),
    }
}

fn completed(before: &State, next: &State) -> Result<(), String> {
    if before.members.iter().any(|member| !member.arrived) {
        return Err("a round runs before all its members have come".to_owned());
    }
    let (count, job) = (next.members.len(), &next.job);
    if count < job.min_nodes || count > job.max_nodes {
        return Err(format!("a round of {count} nodes runs, but {}:{} were asked for", job.min_nodes, job.max_nodes));
    }
    let old: Vec<usize> = next.members.iter().filter_map(|m| before.member(m.node.id)?.rank).collect();
    match old.is_sorted() {
        true => Ok(()),
        false => Err(format!("survivors changed their order: {old:?}")),
    }
}

fn hash_state(state: Option<&State>, hasher: &mut DefaultHasher) {
    let Some(state) = state else { return 0u8.hash(hasher) };
    (state.round, discriminant(&state.phase), state.done(), discriminant(&state.cause)).hash(hasher);
    for member in &state.members {
        (member.node.id, member.arrived, member.rank).hash(hasher);
    }
    for node in &state.waiting {
        node.id.hash(hasher);
    }
}
