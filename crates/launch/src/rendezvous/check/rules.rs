//! The invariants of every write, and the equality of worlds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;

use super::world::{Agent, Life, Pending, TICK, World};
use crate::rendezvous::*;

impl World {
    /// Equal for two worlds with the same possible futures.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let state = self.store.as_deref();
        hash_state(state, &mut hasher);
        let (version, term) = state.map_or((0, 0), |state| (state.version, state.term));
        let latest = |id| self.beats.get(&id).copied().unwrap_or(0);
        for agent in &self.agents {
            (agent.me.node.id, agent.life, agent.frozen, &agent.runs).hash(&mut hasher);
            if agent.life == Life::Up {
                self.digest_agent(agent, version, term, &latest, &mut hasher);
            }
        }
        if let Some(requests) = self.requests.get(&term) {
            requests.hash(&mut hasher);
        }
        (self.formed.last_key_value(), self.numbers, &self.faults).hash(&mut hasher);
        hasher.finish()
    }

    fn digest_agent(
        &self,
        agent: &Agent,
        version: u64,
        term: u64,
        latest: &dyn Fn(NodeId) -> u64,
        hasher: &mut DefaultHasher,
    ) {
        let cap = self.options.lease() + TICK;
        agent.memory.digest(self.now, cap, latest, term, hasher);
        match &agent.pending {
            None => 0u8.hash(hasher),
            Some(Pending::Lead { expected, lost }) => (1u8, expected.unwrap_or(0) == version, lost).hash(hasher),
            Some(Pending::Ask { term: of, want }) => (2u8, *of == term, want).hash(hasher),
        }
        let Some(leading) = &agent.leads else { return 0u8.hash(hasher) };
        let current = leading.version == version;
        (1u8, current, leading.writes).hash(hasher);
        if current {
            hash_state(Some(&leading.draft.state), hasher);
            leading.draft.digest(self.now, cap, hasher);
            let contested = leading.draft.state.contests().next().is_some();
            leading.peers.digest(self.now, cap, latest, contested, hasher);
        }
    }
}

/// The invariants between a state and its successor.
pub(super) fn lawful(before: &State, next: &State) -> Result<(), String> {
    if before.is_final() {
        return Err(format!("a final state was changed: {:?}", before.phase));
    }
    if next.version <= before.version || next.term < before.term {
        return Err(format!(
            "version {} of term {} follows {} of {}",
            next.version, next.term, before.version, before.term
        ));
    }
    if next.round < before.round {
        return Err(format!("round {} follows {}", next.round, before.round));
    }
    if !before.done().is_empty() && next.phase == RoundPhase::Gathering {
        return Err("a round gathers though some have finished already".to_owned());
    }
    let back = |node: &&Node| before.node(node.id).is_none() && before.lost.iter().any(|lost| lost.node.id == node.id);
    if let Some(node) = next.everyone().find(back) {
        return Err(format!("{node} came back under the id that was removed"));
    }
    let order = |state: &State| state.members.iter().map(|member| member.node.id).collect::<Vec<_>>();
    match (&before.phase, &next.phase) {
        (RoundPhase::Running { .. }, RoundPhase::Running { .. })
            if before.round == next.round && order(before) != order(next) =>
        {
            Err("the members of a running round changed".to_owned())
        }
        _ => Ok(()),
    }
}

pub(super) fn complete(next: &State) -> Result<(), String> {
    if next.members.iter().any(|member| !member.arrived) {
        return Err("a round runs before all its members have come".to_owned());
    }
    let (count, job) = (next.members.len(), &next.job);
    if count < job.min_nodes || count > job.max_nodes {
        return Err(format!("a round of {count} nodes runs, but {}:{} were requested", job.min_nodes, job.max_nodes));
    }
    Ok(())
}

fn hash_state(state: Option<&State>, hasher: &mut DefaultHasher) {
    let Some(state) = state else { return 0u8.hash(hasher) };
    (state.round, discriminant(&state.phase), state.done(), discriminant(&state.cause)).hash(hasher);
    state.leader.as_ref().map(|leader| leader.id).hash(hasher);
    for member in &state.members {
        (member.node.id, member.arrived, member.rank).hash(hasher);
    }
    for node in &state.waiting {
        node.id.hash(hasher);
    }
}
