//! The search itself, the worlds that it starts from, and rules that are broken on purpose to see that it finds them.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use super::world::{Event, Faults, Life, Rules, World};
use crate::rendezvous::*;

/// The number of heartbeats without faults after which the agents must have recovered: 1 until a dead node's lease
/// ends, 1 because it may have sent a heartbeat just before it died, 1 because only observed silence counts, and 1 for
/// the last call.
const SOON: u32 = 4;

/// The result of a search, and its size.
#[derive(Debug)]
struct Found {
    worlds: usize,
    complete: bool,
    broken: Option<String>,
}

/// Explores at most `most` worlds from `start`.
fn explore(start: World, most: usize) -> Found {
    let mut seen = HashSet::from([start.digest()]);
    let mut settled = HashMap::new();
    let mut story: Vec<(usize, Option<Event>)> = vec![(0, None)];
    let mut level = vec![(0, start)];
    while !level.is_empty() {
        let mut next = Vec::new();
        for (at, world) in level {
            for event in world.events() {
                let mut after = world.clone();
                let outcome = after.apply(event);
                if outcome.is_ok() && !seen.insert(after.digest()) {
                    continue;
                }
                story.push((at, Some(event)));
                if let Err(broken) = outcome.and_then(|()| settles(&after, &mut settled)) {
                    let broken = format!("{broken}\n  after {:?}", events_of(&story));
                    return Found { worlds: seen.len(), complete: false, broken: Some(broken) };
                }
                if seen.len() >= most {
                    return Found { worlds: seen.len(), complete: false, broken: None };
                }
                next.push((story.len() - 1, after));
            }
        }
        level = next;
    }
    Found { worlds: seen.len(), complete: true, broken: None }
}

fn events_of(story: &[(usize, Option<Event>)]) -> Vec<Event> {
    let mut at = story.len() - 1;
    let mut events = Vec::new();
    while let (before, Some(event)) = story[at] {
        events.push(event);
        at = before;
    }
    events.reverse();
    events
}

/// Checks that the live agents soon run together without further faults. `settled` keeps how many heartbeats each world
/// took.
fn settles(world: &World, settled: &mut HashMap<u64, u32>) -> Result<(), String> {
    let mut world = world.clone();
    world.faults = CALM;
    (0..world.agents.len()).for_each(|at| world.agent(at).frozen = false);
    let (mut path, mut spent) = (Vec::new(), 0);
    let left = loop {
        path.push((spent, world.digest()));
        if let Some(known) = settled.get(&path[path.len() - 1].1) {
            break *known;
        }
        sweep(&mut world)?;
        match unsettled(&world) {
            None => {
                succeeds(&world)?;
                break 0;
            }
            Some(why) if spent == SOON => return Err(format!("after {SOON} heartbeats {why}\n  {:?}", world.store)),
            Some(_) => world.apply(Event::Tick)?,
        }
        spent += 1;
    };
    let all = spent + left;
    settled.extend(path.into_iter().map(|(spent, digest)| (digest, all - spent)));
    match all > SOON {
        true => Err(format!("it takes {all} heartbeats until the agents have recovered")),
        false => Ok(()),
    }
}

/// Lets each live agent act until all wait.
fn sweep(world: &mut World) -> Result<(), String> {
    for _ in 0..40 {
        let before = world.digest();
        for at in 0..world.agents.len() {
            match (world.agents[at].life, &world.agents[at].pending) {
                (Life::Up, Some(_)) => world.apply(Event::Act(at))?,
                (Life::Up, None) => world.apply(Event::Look(at))?,
                _ => {}
            }
            match &world.agents[at].leads {
                Some(leads) if leads.writes => world.apply(Event::LeaderWrites(at))?,
                Some(_) => world.apply(Event::LeaderLooks(at))?,
                None => {}
            }
        }
        if world.digest() == before {
            return Ok(());
        }
    }
    Err(format!("the agents never come to rest\n  {:?}", world.store))
}

/// Describes why the agents have not recovered yet, if they have not.
fn unsettled(world: &World) -> Option<String> {
    let up: Vec<_> = world.agents.iter().filter(|agent| agent.life == Life::Up).collect();
    let state = match &world.store {
        Some(state) if !up.is_empty() => state,
        _ => return None,
    };
    if state.is_final() {
        return Some(format!("{} agents still wait though the job has ended", up.len()));
    }
    let is_alive = |id: NodeId| up.iter().any(|agent| agent.me.node.id == id);
    if !state.leader.as_ref().is_some_and(|leader| is_alive(leader.id)) {
        return Some("there is no leader".to_owned());
    }
    if let Some(dead) = state.everyone().find(|node| !is_alive(node.id) && !state.done().contains(&node.id)) {
        return Some(format!("{dead} is dead and still a member"));
    }
    let (min, max) = (state.job.min_nodes, state.job.max_nodes);
    let ending = !state.done().is_empty();
    let in_it = |id: NodeId| state.member(id).is_some() || state.waits(id) || ending;
    if let Some(out) = up.iter().find(|agent| !in_it(agent.me.node.id)) {
        return Some(format!("{} is alive and not a member", out.me.node));
    }
    if up.len() < min && !ending {
        return (state.phase != RoundPhase::Gathering).then(|| format!("{} nodes cannot run", up.len()));
    }
    let ids: Vec<NodeId> = state.members.iter().map(|member| member.node.id).collect();
    let runs = up.iter().filter(|agent| agent.runs.as_ref() == Some(&(state.round, ids.clone()))).count();
    let wanted = if ending { ids.iter().filter(|id| is_alive(**id)).count() } else { up.len().min(max) };
    (runs != wanted).then(|| format!("{runs} of {wanted} agents run together"))
}

/// For a world in which the agents have recovered: once every running agent's workers succeed, the job ends for all.
fn succeeds(world: &World) -> Result<(), String> {
    let enough = world.store.as_ref().is_some_and(|state| matches!(state.phase, RoundPhase::Running { .. }));
    if !enough {
        return Ok(());
    }
    let mut world = world.clone();
    for agent in &mut world.agents {
        if let (Life::Up, Some((round, _))) = (agent.life, &agent.runs) {
            let round = *round;
            let agent = Rc::make_mut(agent);
            agent.memory.goal = Goal::Succeed { round };
        }
    }
    sweep(&mut world)?;
    match world.agents.iter().any(|agent| agent.life == Life::Up) {
        false => Ok(()),
        true => Err(format!("all workers succeeded, but an agent still waits\n  {:?}", world.store)),
    }
}

/// Explores `most` worlds, or the number in LOCKSTEP_CHECK_WORLDS: the larger searches are for nightly runs.
fn holds(name: &str, world: World, most: usize) {
    let asked = std::env::var("LOCKSTEP_CHECK_WORLDS").ok().and_then(|worlds| worlds.parse().ok());
    let found = explore(world, asked.unwrap_or(most));
    let extent = if found.complete { "all of them" } else { "those of the fewest steps" };
    println!("{name}: {} worlds, {extent}", found.worlds);
    assert!(found.broken.is_none(), "{name}: {}", found.broken.unwrap_or_default());
}

const CALM: Faults = Faults { crashes: 0, failures: 0, fatal: 0, leaves: 0, freezes: 0, successes: 0 };
const RULES: Rules = Rules { decide, lead: Draft::decide };

#[test]
fn one_node_survives_every_order_of_failures_and_success() {
    let faults = Faults { failures: 2, fatal: 1, leaves: 1, successes: 1, ..CALM };
    holds("1 node of 1:1", World::new(1, 1, 1, faults, RULES), 50_000);
}

#[test]
fn two_nodes_survive_every_order_of_a_crash_and_a_failure() {
    let faults = Faults { crashes: 1, failures: 1, ..CALM };
    holds("2 nodes of 1:2, crash and failure", World::new(2, 1, 2, faults, RULES), 1_000_000);
}

#[test]
fn two_nodes_survive_a_leave_and_a_failure_in_the_orders_of_few_steps() {
    let faults = Faults { leaves: 1, failures: 1, ..CALM };
    holds("2 nodes of 1:2, leave and failure", World::new(2, 1, 2, faults, RULES), 25_000);
}

#[test]
fn a_node_that_is_removed_by_mistake_comes_back_in_the_orders_of_few_steps() {
    let faults = Faults { freezes: 1, ..CALM };
    holds("2 nodes of 1:2, freeze", World::new(2, 1, 2, faults, RULES), 25_000);
}

#[test]
fn two_nodes_of_two_end_the_job_in_every_order_of_success_failure_and_crash() {
    let faults = Faults { crashes: 1, failures: 1, fatal: 1, successes: 2, ..CALM };
    holds("2 nodes of 2:2", World::new(2, 2, 2, faults, RULES), 1_000_000);
}

#[test]
fn three_nodes_survive_a_crash_and_a_failure_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, failures: 1, ..CALM };
    holds("3 nodes of 2:3", World::new(3, 2, 3, faults, RULES), 20_000);
}

#[test]
fn a_spare_takes_the_place_of_a_node_that_crashes_or_leaves_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, leaves: 1, ..CALM };
    holds("3 nodes of 2:2", World::new(3, 2, 2, faults, RULES), 20_000);
}

#[test]
fn four_nodes_keep_the_rules_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, ..CALM };
    holds("4 nodes of 2:3", World::new(4, 2, 3, faults, RULES), 10_000);
}

#[test]
fn a_successor_takes_the_rank_of_a_dead_node_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, ..CALM };
    let world = World::new(3, 2, 2, faults, RULES).insisting(&[0, 1, 1]);
    holds("3 nodes of 2:2 with ranks 0, 1, 1", world, 20_000);
}

/// Rules with one mistake each, the smallest world that shows it (nodes, and how many are requested), and the error
/// that the search must report.
const BROKEN: [(Rules, [usize; 3], &str); 8] = [
    (Rules { lead: runs_before_all_are_back, ..RULES }, [2, 1, 2], "a round runs before all its members have come"),
    (Rules { lead: runs_with_too_few, ..RULES }, [2, 2, 3], "a round of 1 nodes runs, but 2:3 were requested"),
    (Rules { lead: removes_no_node, ..RULES }, [2, 1, 2], "is dead and still a member"),
    (Rules { lead: opens_what_is_closed, ..RULES }, [1, 1, 1], "a final state was changed"),
    (Rules { lead: shuffles_survivors, ..RULES }, [2, 2, 2], "survivors changed their order"),
    (Rules { decide: stays_when_a_peer_restarts, ..RULES }, [2, 2, 2], "agents run together"),
    (Rules { decide: never_takes_over, ..RULES }, [2, 1, 2], "there is no leader"),
    (Rules { decide: asks_only_once, ..RULES }, [2, 1, 2], "is alive and not a member"),
];

macro_rules! leads {
    ($($name:ident: $rule:expr;)*) => {$(
        fn $name(draft: &mut Draft, now: Duration, me: NodeId, peers: &Peers, options: &Options) -> (LeaderAction, Reason) {
            let (lead, reason) = draft.decide(now, me, peers, options);
            let rule: fn(&mut Draft, &LeaderAction, &Reason) -> Option<LeaderAction> = $rule;
            (rule(draft, &lead, &reason).unwrap_or(lead), reason)
        }
    )*};
}

fn complete(draft: &mut Draft) -> Option<LeaderAction> {
    draft.state = draft.state.clone().complete();
    Some(LeaderAction::Write { news: true })
}

leads! {
    runs_before_all_are_back: |draft, _, reason| {
        if matches!(reason, Reason::Expecting { .. }) { complete(draft) } else { None }
    };
    runs_with_too_few: |draft, _, reason| {
        if matches!(reason, Reason::TooFew { came: 1, .. }) { complete(draft) } else { None }
    };
    opens_what_is_closed: |draft, lead, _| {
        let over = *lead == LeaderAction::End && draft.state.is_final();
        over.then(|| {
            draft.state.phase = RoundPhase::Gathering;
            LeaderAction::Write { news: true }
        })
    };
    shuffles_survivors: |draft, lead, reason| {
        if matches!((lead, reason), (LeaderAction::Write { .. }, Reason::Complete { .. })) && draft.state.round > 0 {
            draft.state.members.reverse();
        }
        None
    };
}

fn removes_no_node(
    draft: &mut Draft,
    now: Duration,
    me: NodeId,
    _: &Peers,
    options: &Options,
) -> (LeaderAction, Reason) {
    draft.decide(now, me, &Peers::new(now), options)
}

fn stays_when_a_peer_restarts(
    now: Duration,
    view: Option<&View>,
    me: &Me,
    memory: &Memory,
    options: &Options,
) -> Decision {
    let decision = decide(now, view, me, memory, options);
    let peer = matches!(&decision.action, Action::Changed(c) if matches!(**c, Change::PeerRestarts { .. }));
    if peer { Decision { action: Action::Wait { until: None }, ..decision } } else { decision }
}

fn never_takes_over(now: Duration, view: Option<&View>, me: &Me, memory: &Memory, options: &Options) -> Decision {
    let decision = decide(now, view, me, memory, options);
    let takes = matches!(decision.action, Action::Lead { .. }) && view.is_some();
    if takes { Decision { action: Action::Wait { until: None }, ..decision } } else { decision }
}

/// As if a request survived the leader that received it.
fn asks_only_once(now: Duration, view: Option<&View>, me: &Me, memory: &Memory, options: &Options) -> Decision {
    let decision = decide(now, view, me, memory, options);
    let again = match (&decision.action, &memory.asked) {
        (Action::Ask { want, .. }, Some((_, before))) => **want == *before,
        (Action::Renew, _) => !memory.entered,
        _ => false,
    };
    if again { Decision { action: Action::Wait { until: None }, ..decision } } else { decision }
}

#[test]
fn finds_every_rule_that_is_broken_on_purpose() {
    for (rules, [nodes, min, max], expected) in BROKEN {
        let faults = Faults { crashes: 1, failures: 1, fatal: 1, ..CALM };
        let found = explore(World::new(nodes, min, max, faults, rules), 100_000);
        let text = found.broken.unwrap_or_default();
        println!("{expected}: found after {} worlds", found.worlds);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
