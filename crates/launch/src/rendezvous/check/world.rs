//! A small model: a store, a clock, and agents that act like the driver, one atomic step at a time.
//!
//! A step is atomic in the model if it is atomic in reality: a read of the store with the decision that follows from
//! it; a compare-and-set; a request that is put into a queue; a heartbeat of all agents; and every fault of an agent.
//! Anything may happen between an agent's read and its next action, and between the leader's read and its write.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::leading::Leading;
use crate::rendezvous::node::tests::{job, node};
use crate::rendezvous::*;

/// A heartbeat, and the step of the clock.
pub(super) const TICK: Duration = Duration::from_secs(5);

pub(super) type Decide = fn(Duration, Option<&View>, &Me, &Memory, &Options) -> Decision;
pub(super) type DecideAsLeader = fn(&mut Draft, Duration, NodeId, &Peers, &Options) -> (LeaderAction, Reason);

/// The functions that make the agents' decisions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) decide: Decide,
    pub(super) lead: DecideAsLeader,
}

/// The faults that may still happen to agents.
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
    pub(super) now: Duration,
    pub(super) beats: BTreeMap<NodeId, u64>,
    pub(super) numbers: NodeId,
    /// Requests to the leader of each term.
    pub(super) requests: Rc<BTreeMap<u64, Vec<Request>>>,
    /// The members of each round that ran.
    pub(super) formed: Rc<BTreeMap<u64, Vec<NodeId>>>,
    pub(super) options: Rc<Options>,
    pub(super) rules: Rules,
}

#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub(super) me: Me,
    pub(super) life: Life,
    pub(super) memory: Memory,
    /// What it is about to do.
    pub(super) pending: Option<Pending>,
    pub(super) leads: Option<Rc<Leading>>,
    /// True if its heartbeats do not arrive.
    pub(super) frozen: bool,
    /// The round that its workers run.
    pub(super) runs: Option<(u64, Vec<NodeId>)>,
}

/// What an agent is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pending {
    /// To take over from the state of this version.
    Lead {
        expected: Option<u64>,
        lost: Option<NodeId>,
    },
    Ask {
        term: u64,
        want: Want,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    NotStarted,
    Up,
    Dead,
    Ended,
}

/// One atomic step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Start(usize),
    Look(usize),
    Act(usize),
    LeaderLooks(usize),
    LeaderWrites(usize),
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
    pub(super) fn new(nodes: usize, min: usize, max: usize, faults: Faults, rules: Rules) -> World {
        let agent = |at: usize| Agent {
            me: Me { node: node(0, ["a", "b", "c", "d"][at]), job: job(min, max) },
            life: Life::NotStarted,
            memory: Memory::new(Duration::ZERO),
            pending: None,
            leads: None,
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
            requests: Rc::default(),
            formed: Rc::default(),
            options: Rc::new(options),
            rules,
        }
    }

    /// The same with agents that request these ranks.
    pub(super) fn insisting(mut self, ranks: &[usize]) -> World {
        for (at, rank) in ranks.iter().enumerate() {
            self.agent(at).me.node.node_rank = Some(*rank);
        }
        self
    }

    /// All possible next steps.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Tick];
        for (at, agent) in self.agents.iter().enumerate() {
            match agent.life {
                // Agents are identical, so it does not matter which one comes first.
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
        events.push(if agent.pending.is_some() { Event::Act(at) } else { Event::Look(at) });
        if let Some(leading) = &agent.leads {
            events.push(if leading.writes { Event::LeaderWrites(at) } else { Event::LeaderLooks(at) });
        }
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

    /// Executes `event`; the error names the rule that was broken.
    pub(super) fn apply(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick => self.tick(),
            Event::Start(at) => {
                self.agent(at).life = Life::Up;
                self.agent(at).memory = Memory::new(self.now);
                self.number(at);
            }
            Event::Look(at) => return self.look(at),
            Event::Act(at) => return self.act(at),
            Event::LeaderLooks(at) => self.leader_looks(at),
            Event::LeaderWrites(at) => return self.leader_writes(at),
            Event::Crash(at) => {
                self.faults.crashes -= 1;
                let agent = Rc::make_mut(&mut self.agents[at]);
                (agent.life, agent.pending, agent.leads, agent.runs) = (Life::Dead, None, None, None);
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
        self.agent(at).leads = None;
        self.agent(at).frozen = false; // otherwise it would be removed again and again
    }

    fn wants(&mut self, at: usize, goal: impl FnOnce(u64) -> Goal) {
        let agent = Rc::make_mut(&mut self.agents[at]);
        if let Some((round, _)) = &agent.runs {
            agent.memory.goal = goal(*round);
        }
    }

    fn look(&mut self, at: usize) -> Result<(), String> {
        let me = self.agents[at].me.node.id;
        let view = self.store.as_deref().map(|state| View::of(state, me));
        let leader = self.store.as_ref().and_then(|state| state.leader.as_ref()).map(|leader| leader.id);
        let beat = leader.map(|id| (id, self.beats.get(&id).copied().unwrap_or(0)));
        let agent = Rc::make_mut(&mut self.agents[at]);
        agent.memory.observe(self.now, view.as_ref(), beat, me, &self.options);
        agent.memory.leads = agent.leads.is_some();
        let decision = (self.rules.decide)(self.now, view.as_ref(), &agent.me, &agent.memory, &self.options);
        match decision.action {
            Action::Lead { lost, .. } => {
                let expected = self.store.as_ref().map(|state| state.version);
                agent.pending = Some(Pending::Lead { expected, lost: lost.map(|(id, _)| id) });
            }
            Action::Ask { term, want } => agent.pending = Some(Pending::Ask { term, want: *want }),
            Action::Renew => self.number(at),
            Action::Survey => return Err("no agent waits until its timeout in the model".to_owned()),
            Action::Wait { .. } => {}
            Action::Formed(round) => return self.forms(at, &round),
            Action::Changed(change) => {
                agent.runs = None;
                match *change {
                    Change::Closed(_) | Change::AllDone | Change::StoreLost(_) => agent.end(),
                    _ => agent.memory.goal = Goal::Join { since: self.now },
                }
            }
            Action::Done => match &agent.memory.goal {
                Goal::Succeed { round } => agent.memory.goal = Goal::Stay { round: *round },
                Goal::Restart { .. } => {
                    agent.runs = None;
                    agent.memory.goal = Goal::Join { since: self.now };
                }
                Goal::Close(_) | Goal::Leave { .. } => agent.end(),
                goal => return Err(format!("done without a goal that can be done: {goal:?}")),
            },
            Action::Fail(error) => match *error {
                RendezvousError::Closed(_) | RendezvousError::Finished => agent.end(),
                RendezvousError::Refused(refusal) if matches!(*refusal, Refusal::RankTaken { .. }) => {
                    match agent.leads {
                        Some(_) => agent.memory.goal = Goal::Leave { why: String::new() },
                        None => agent.end(),
                    }
                }
                error => return Err(format!("agent {at} failed: {error}")),
            },
        }
        Ok(())
    }

    /// The agent sees that a round runs: checks that it is the round that was written.
    fn forms(&mut self, at: usize, round: &Round) -> Result<(), String> {
        let ids = self.formed.get(&round.number).cloned().unwrap_or_default();
        let agent = Rc::make_mut(&mut self.agents[at]);
        let first = round.me.first_rank;
        if ids.get(round.group_rank) != Some(&agent.me.node.id) || agent.memory.given >= Some(round.number) {
            return Err(format!("agent {at} got group rank {} of round {}: {ids:?}", round.group_rank, round.number));
        }
        // Each agent has one worker.
        if (round.nodes, round.world_size, first) != (ids.len(), ids.len(), round.group_rank) {
            return Err(format!(
                "agent {at} got rank {first} of {} in round {}: {ids:?}",
                round.world_size, round.number
            ));
        }
        agent.runs = Some((round.number, ids));
        agent.memory.given = Some(round.number);
        agent.memory.goal = Goal::Stay { round: round.number };
        Ok(())
    }

    fn act(&mut self, at: usize) -> Result<(), String> {
        match self.agent(at).pending.take() {
            Some(Pending::Ask { term, want }) => {
                let agent = Rc::make_mut(&mut self.agents[at]);
                agent.memory.asked(term, want.clone());
                let request = Request { from: agent.me.node.id, want };
                Rc::make_mut(&mut self.requests).entry(term).or_default().push(request);
            }
            Some(Pending::Lead { expected, lost }) => return self.take_over(at, expected, lost),
            None => {}
        }
        Ok(())
    }
}

impl Agent {
    fn end(&mut self) {
        (self.life, self.runs, self.leads, self.pending) = (Life::Ended, None, None, None);
    }
}
