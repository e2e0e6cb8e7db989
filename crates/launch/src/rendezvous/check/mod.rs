//! Model checking: the orders in which a few agents may come, look, write, fail, freeze, leave and die. For two agents to the
//! end; for more, as many worlds as seconds allow, those of the fewest steps first.
//!
//! The search visits each distinguishable world once, breadth first, so that a broken rule is told by one of the shortest
//! stories that break it. From each world it also lets time go by without further faults, and demands that the live
//! agents soon run together, and that their success then ends the job.

mod world;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use self::world::{Decide, Event, Faults, Life, World};
use super::*;

/// In so many heartbeats without faults all must be well: 1 until a dead node's lease ends, 1 more since it may have
/// beaten just before it died, 1 more since its silence counts only while it is looked at, and 1 of last call.
const SOON: u32 = 4;

/// A search: what it found, and how large it was.
#[derive(Debug)]
struct Found {
    worlds: usize,
    complete: bool,
    broken: Option<String>,
}

/// Explores from `start`, at most `most` worlds.
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
                    let broken = format!("{broken}\n  after {:?}", told(&story));
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

fn told(story: &[(usize, Option<Event>)]) -> Vec<Event> {
    let mut at = story.len() - 1;
    let mut events = Vec::new();
    while let (before, Some(event)) = story[at] {
        events.push(event);
        at = before;
    }
    events.reverse();
    events
}

/// Without further faults, do the live agents soon run together? `settled` keeps how many heartbeats each world took.
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
        true => Err(format!("it takes {all} heartbeats until all is well")),
        false => Ok(()),
    }
}

/// Lets each live agent do what it has to do until all wait.
fn sweep(world: &mut World) -> Result<(), String> {
    for _ in 0..40 {
        let before = world.digest();
        for at in 0..world.agents.len() {
            match (world.agents[at].life, &world.agents[at].pending) {
                (Life::Up, Some(_)) => world.apply(Event::Write(at))?,
                (Life::Up, None) => world.apply(Event::Look(at))?,
                _ => {}
            }
        }
        if world.digest() == before {
            return Ok(());
        }
    }
    Err(format!("the agents never come to rest\n  {:?}", world.store))
}

/// What is not yet well, if anything.
fn unsettled(world: &World) -> Option<String> {
    let up: Vec<_> = world.agents.iter().filter(|agent| agent.life == Life::Up).collect();
    let state = match &world.store {
        Some(state) if !up.is_empty() => state,
        _ => return None,
    };
    if state.is_final() {
        return Some(format!("{} agents still wait though the job has ended", up.len()));
    }
    let lives = |id: NodeId| up.iter().any(|agent| agent.me.node.id == id);
    if let Some(dead) = state.everyone().find(|node| !lives(node.id) && !state.done().contains(&node.id)) {
        return Some(format!("{dead} is dead and still there"));
    }
    let (min, max) = (state.job.min_nodes, state.job.max_nodes);
    let ending = !state.done().is_empty();
    let in_it = |id: NodeId| state.member(id).is_some() || state.waits(id) || ending;
    if let Some(out) = up.iter().find(|agent| !in_it(agent.me.node.id)) {
        return Some(format!("{} lives and is left out", out.me.node));
    }
    if up.len() < min && !ending {
        return (state.phase != Phase::Gathering).then(|| format!("{} nodes cannot run", up.len()));
    }
    let ids: Vec<NodeId> = state.members.iter().map(|member| member.node.id).collect();
    let runs = up.iter().filter(|agent| agent.runs.as_ref() == Some(&(state.round, ids.clone()))).count();
    let wanted = if ending { ids.iter().filter(|id| lives(**id)).count() } else { up.len().min(max) };
    (runs != wanted).then(|| format!("{runs} of {wanted} agents run together"))
}

/// From a world where all is well: once every running agent's workers succeed, the job ends for all.
fn succeeds(world: &World) -> Result<(), String> {
    let enough = world.store.as_ref().is_some_and(|state| matches!(state.phase, Phase::Running { .. }));
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
        true => Err(format!("all workers succeeded, and some agent still waits\n  {:?}", world.store)),
    }
}

/// Explores `most` worlds, or as many as LOCKSTEP_CHECK_WORLDS says: the larger searches are for nightly runs.
fn holds(name: &str, world: World, most: usize) {
    let asked = std::env::var("LOCKSTEP_CHECK_WORLDS").ok().and_then(|worlds| worlds.parse().ok());
    let found = explore(world, asked.unwrap_or(most));
    let extent = if found.complete { "all of them" } else { "those of the fewest steps" };
    println!("{name}: {} worlds, {extent}", found.worlds);
    assert!(found.broken.is_none(), "{name}: {}", found.broken.unwrap_or_default());
}

const CALM: Faults = Faults { crashes: 0, failures: 0, fatal: 0, leaves: 0, freezes: 0, successes: 0 };
/// More than any search that is meant to be complete takes.
const ALL: usize = 1_000_000;

#[test]
fn two_nodes_survive_every_order_of_a_crash_and_a_failure() {
    let faults = Faults { crashes: 1, failures: 1, ..CALM };
    holds("2 nodes of 1:2, crash and failure", World::new(2, 1, 2, faults, decide), ALL);
}

#[test]
fn two_nodes_survive_a_leave_and_a_failure_in_the_orders_of_few_steps() {
    let faults = Faults { leaves: 1, failures: 1, ..CALM };
    holds("2 nodes of 1:2, leave and failure", World::new(2, 1, 2, faults, decide), 25_000);
}

#[test]
fn a_node_that_is_struck_out_by_mistake_comes_back_in_the_orders_of_few_steps() {
    let faults = Faults { freezes: 1, ..CALM };
    holds("2 nodes of 1:2, freeze", World::new(2, 1, 2, faults, decide), 25_000);
}

#[test]
fn two_nodes_of_two_end_the_job_in_every_order_of_success_failure_and_crash() {
    let faults = Faults { crashes: 1, failures: 1, fatal: 1, successes: 2, ..CALM };
    holds("2 nodes of 2:2", World::new(2, 2, 2, faults, decide), ALL);
}

#[test]
fn three_nodes_survive_a_crash_and_a_failure_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, failures: 1, ..CALM };
    holds("3 nodes of 2:3", World::new(3, 2, 3, faults, decide), 20_000);
}

#[test]
fn a_spare_takes_the_place_of_a_node_that_crashes_or_leaves_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, leaves: 1, ..CALM };
    holds("3 nodes of 2:2", World::new(3, 2, 2, faults, decide), 20_000);
}

#[test]
fn four_nodes_keep_the_rules_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, ..CALM };
    holds("4 nodes of 2:3", World::new(4, 2, 3, faults, decide), 10_000);
}

#[test]
fn a_successor_takes_the_rank_of_a_dead_node_in_the_orders_of_few_steps() {
    let faults = Faults { crashes: 1, ..CALM };
    let world = World::new(3, 2, 2, faults, decide).insisting(&[0, 1, 1]);
    holds("3 nodes of 2:2 with ranks 0, 1, 1", world, 20_000);
}

/// Machines with one rule broken each, and what the search says of them.
const BROKEN: [(Decide, &str); 6] = [
    (runs_before_all_are_back, "a round runs before all its members have come"),
    (runs_with_too_few, "a round of 1 nodes runs, but 2:3 were asked for"),
    (strikes_nobody_out, "is dead and still there"),
    (opens_what_is_closed, "a final state was changed"),
    (stays_when_a_peer_restarts, "agents run together"),
    (shuffles_survivors, "survivors changed their order"),
];

fn broken(now: Duration, state: Option<&State>, me: &Me, memory: &Memory, options: &Options, rule: Rule) -> Decision {
    let mut decision = decide(now, state, me, memory, options);
    if let Some(action) = state.and_then(|state| rule(&decision, state)) {
        decision.action = action;
    }
    decision
}

type Rule = fn(&Decision, &State) -> Option<Action>;

macro_rules! broken {
    ($($name:ident: $rule:expr;)*) => {$(
        fn $name(now: Duration, state: Option<&State>, me: &Me, memory: &Memory, options: &Options) -> Decision {
            broken(now, state, me, memory, options, $rule)
        }
    )*};
}

broken! {
    runs_before_all_are_back: |decision, state| {
        matches!(decision.reason, Reason::Expecting { .. }).then(|| Action::Write(Box::new(state.clone().complete())))
    };
    runs_with_too_few: |decision, state| {
        matches!(decision.reason, Reason::TooFew { .. }).then(|| Action::Write(Box::new(state.clone().complete())))
    };
    strikes_nobody_out: |decision, _| {
        matches!(decision.reason, Reason::Strikes { .. }).then_some(Action::Wait { until: None })
    };
    opens_what_is_closed: |decision, state| {
        matches!(&decision.action, Action::Fail(_)).then(|| {
            let mut next = State::empty(state.job.clone());
            next.version = state.version + 1;
            Action::Write(Box::new(next))
        })
    };
    stays_when_a_peer_restarts: |decision, _| {
        let peer = matches!(&decision.action, Action::Changed(c) if matches!(**c, Change::PeerRestarts { .. }));
        peer.then_some(Action::Wait { until: None })
    };
    shuffles_survivors: |decision, _| match &decision.action {
        Action::Write(next) if matches!(next.phase, Phase::Running { .. }) && next.round > 0 => {
            let mut next = next.clone();
            next.members.reverse();
            Some(Action::Write(next))
        }
        _ => None,
    };
}

#[test]
fn finds_every_rule_that_is_broken_on_purpose() {
    for (decide, expected) in BROKEN {
        let faults = Faults { crashes: 1, failures: 1, fatal: 1, ..CALM };
        let found = explore(World::new(3, 2, 3, faults, decide), 20_000);
        let told = found.broken.unwrap_or_default();
        println!("{expected}: found after {} worlds", found.worlds);
        assert!(told.contains(expected), "{expected}: {told}");
    }
}
