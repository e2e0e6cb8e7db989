//! The leader's actions in the model: take over, look, write.

use std::mem::take;
use std::rc::Rc;

use super::rules::{complete, lawful};
use super::world::{Agent, World};
use crate::rendezvous::*;

/// The state of a leading agent.
#[derive(Clone, Debug)]
pub(super) struct Leading {
    pub(super) term: u64,
    /// The version of the state in the store, as far as it knows.
    pub(super) version: u64,
    pub(super) draft: Draft,
    pub(super) peers: Peers,
    /// True if it is about to write its draft.
    pub(super) writes: bool,
}

impl World {
    pub(super) fn take_over(&mut self, at: usize, expected: Option<u64>, lost: Option<NodeId>) -> Result<(), String> {
        self.agent(at).leads = None;
        if self.store.as_ref().map(|state| state.version) != expected {
            return Ok(()); // lost the race
        }
        let (now, me) = (self.now, self.agents[at].me.clone());
        let mut next = self.store.as_deref().cloned().unwrap_or_else(|| State::empty(me.job));
        let (version, term) = (next.version + 1, next.term + 1);
        (next.version, next.term, next.leader) = (version, term, Some(me.node.clone()));
        let mut peers = Peers::new(now);
        peers.watch(now, next.everyone().map(|node| node.id).filter(|id| *id != me.node.id));
        lost.into_iter().for_each(|id| peers.give_up(id, String::new()));
        let draft = Draft::new(next.clone(), now);
        self.agent(at).leads = Some(Rc::new(Leading { term, version, draft, peers, writes: false }));
        self.put(next)
    }

    pub(super) fn leader_looks(&mut self, at: usize) {
        let (now, options, lead) = (self.now, Rc::clone(&self.options), self.rules.lead);
        let current = self.store.as_ref().map_or(0, |state| state.version);
        let agent = Rc::make_mut(&mut self.agents[at]);
        let Some(leading) = agent.leads.as_mut().map(Rc::make_mut) else { return };
        if leading.version != current {
            agent.leads = None; // another one leads
            return;
        }
        let requests = self.requests.contains_key(&leading.term).then(|| Rc::make_mut(&mut self.requests));
        let requests = requests.and_then(|requests| requests.get_mut(&leading.term)).map(take).unwrap_or_default();
        requests.into_iter().for_each(|request| leading.draft.grant(request));
        let me = agent.me.node.id;
        leading.peers.watch(now, leading.draft.state.everyone().map(|node| node.id).filter(|id| *id != me));
        let beat = |id: NodeId| (id, self.beats.get(&id).copied().unwrap_or(0));
        let beats: Vec<_> = leading.draft.state.everyone().map(|node| beat(node.id)).collect();
        leading.peers.observe(now, &beats, &options);
        match lead(&mut leading.draft, now, me, &leading.peers, &options).0 {
            LeaderAction::Write { news } => {
                leading.writes = true;
                leading.draft.state.news += u64::from(news);
            }
            LeaderAction::Wait { .. } => {}
            LeaderAction::End => agent.leads = None,
        }
    }

    pub(super) fn leader_writes(&mut self, at: usize) -> Result<(), String> {
        let (now, agent) = (self.now, Rc::make_mut(&mut self.agents[at]));
        let Some(leading) = agent.leads.as_mut().map(Rc::make_mut) else { return Ok(()) };
        leading.writes = false;
        if self.store.as_ref().map(|state| state.version) != Some(leading.version) {
            agent.leads = None;
            return Ok(());
        }
        leading.version += 1;
        leading.draft.state.version = leading.version;
        leading.draft.wrote(now);
        let next = leading.draft.state.clone();
        self.put(next)
    }

    /// Stores `next`, if that keeps the rules.
    fn put(&mut self, next: State) -> Result<(), String> {
        next.check()?;
        if let Some(before) = &self.store {
            lawful(before, &next)?;
        }
        let runs = self
            .store
            .as_ref()
            .filter(|state| matches!(state.phase, RoundPhase::Running { .. }))
            .map(|state| state.round);
        if matches!(next.phase, RoundPhase::Running { .. }) && runs != Some(next.round) {
            self.begins(&next)?;
        }
        self.store = Some(Rc::new(next));
        Ok(())
    }

    /// When a round begins, the workers of all its members have ended, and survivors keep their order.
    fn begins(&mut self, next: &State) -> Result<(), String> {
        complete(next)?;
        let busy = |agent: &&Rc<Agent>| agent.runs.is_some() && next.member(agent.me.node.id).is_some();
        if let Some(agent) = self.agents.iter().find(busy) {
            return Err(format!("round {} runs while {} runs {:?}", next.round, agent.me.node, agent.runs));
        }
        let ids: Vec<NodeId> = next.members.iter().map(|member| member.node.id).collect();
        if let Some((_, before)) = self.formed.last_key_value() {
            let places: Vec<_> = ids.iter().filter_map(|id| before.iter().position(|other| other == id)).collect();
            if !places.is_sorted() && next.members.iter().all(|member| member.node.node_rank.is_none()) {
                return Err(format!("survivors changed their order: {places:?}"));
            }
        }
        match Rc::make_mut(&mut self.formed).insert(next.round, ids) {
            None => Ok(()),
            Some(before) => Err(format!("round {} runs twice: {before:?}", next.round)),
        }
    }
}
