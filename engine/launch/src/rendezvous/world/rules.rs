//! What every step of a world keeps.

use super::{Agent, Life, World};
use crate::rendezvous::node::{Node, NodeId};
use crate::rendezvous::state::State;

impl World {
    /// The rules of every step.
    pub(super) fn lawful(&mut self, before: &[Option<(State, bool)>]) -> Result<(), String> {
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
