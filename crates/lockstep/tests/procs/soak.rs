//! Ranks that share memory, on one host or on several, lose one of them at moments drawn from a seed, most of them inside collectives: it
//! is killed, it stops, or it returns early. Every survivor names that rank, and none hangs.

use std::process::{Command, Output};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use c10d::{Backend, ProcessGroup, ReduceOp, Store};
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Rank, init_process_group};
use rand_mt::Mt;
use rustix::process::{Signal, getpid, kill_process};
use tch::nn::{self, VarStore};
use tch::{Device, Kind, Tensor};

use crate::failures::{on_host, timeout};
use crate::{KillOnDrop, text};

/// The test's case for a program that takes part.
pub(crate) const CASE: &str = "soak";
/// Calls of a rank whose peers never fail; more than any moment.
const CALLS: u32 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Killed,
    Stopped,
    Returns,
}

/// When which rank is lost. As text: the case of the program.
#[derive(Clone, Debug)]
struct Moment {
    seed: u32,
    /// Each rank's host.
    hosts: Vec<usize>,
    victim: usize,
    loss: Loss,
    call: u32,
    /// After the call's start.
    microseconds: u64,
}

impl Moment {
    /// With several hosts there is one rank more, so that two are on one host.
    fn draw(seed: u32, hosts: usize) -> Self {
        let mut random = Mt::new(seed);
        let mut below = |n: u32| random.next_u32() % n;
        let world = 1 + hosts + below(3) as usize;
        let (victim, loss) =
            (below(world as u32) as usize, [Loss::Killed, Loss::Stopped, Loss::Returns][below(3) as usize]);
        let (call, microseconds) = (3 + below(40), u64::from(below(3000)));
        let mut of_ranks: Vec<usize> = (0..world).map(|_| below(hosts as u32) as usize).collect();
        // Each host has a rank.
        (0..hosts).for_each(|host| of_ranks[host + 1] = host);
        Moment { seed, hosts: of_ranks, victim, loss, call, microseconds }
    }

    fn world(&self) -> usize {
        self.hosts.len()
    }
}

// ---- the program

/// Calls the same collectives on all ranks, drawn from the seed, until one fails.
pub(crate) fn work(env: &LaunchEnv, seed: &str) -> anyhow::Result<()> {
    let (seed, hosts) = seed.split_once(' ').context("a seed and a number of hosts")?;
    let moment = Moment::draw(seed.parse()?, hosts.parse()?);
    // Ranks start at different times, so that joining may take longer than a wait for a lost rank.
    let group = Rc::new(init_process_group(env, Device::Cpu, &on_host(env))?);
    group.set_timeout(timeout()?)?;
    let chosen = if moment.hosts.contains(&1) { Backend::TwoLevels } else { Backend::SharedMemory };
    ensure!(group.backend() == chosen, "{:?}", group.why_backend());
    let model = model(&group)?;
    let mut random = Mt::new(moment.seed ^ 0x5eed);
    for call in 0..CALLS {
        if call == moment.call && env.rank == Rank::new(moment.victim) {
            match moment.loss {
                Loss::Returns => return Ok(()),
                Loss::Killed => end_within(Signal::KILL, moment.microseconds),
                Loss::Stopped => end_within(Signal::STOP, moment.microseconds),
            }
        }
        collective(&group, &model, &mut random).with_context(|| format!("call {call}"))?;
    }
    bail!("no rank was lost");
}

/// Sends this process the signal after a time, most likely in the middle of a call.
fn end_within(signal: Signal, microseconds: u64) {
    thread::spawn(move || {
        thread::sleep(Duration::from_micros(microseconds));
        kill_process(getpid(), signal)
    });
}

type Model = DistributedDataParallel<nn::Linear>;

/// With buckets that are summed in place.
fn model(group: &Rc<ProcessGroup>) -> anyhow::Result<Model> {
    let vs = VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 500, 600, Default::default());
    Ok(DistributedDataParallel::new(net, &vs, Rc::clone(group), &DdpOptions::default())?)
}

fn collective(group: &Rc<ProcessGroup>, model: &Model, random: &mut Mt) -> c10d::Result<()> {
    let (size, me) = (group.size().get(), group.rank().get());
    let kind = random.next_u32() % 9;
    let root = Rank::new(random.next_u32() as usize % size);
    // Of one slot, and of many.
    let numbers = [16, 400_000][random.next_u32() as usize % 2];
    let ones = |n: i64| Tensor::ones([n], (Kind::Float, Device::Cpu));
    let mut tensor = ones(numbers * size as i64);
    let mut part = ones(numbers);
    match kind {
        0 | 1 => group.all_reduce(&mut tensor, ReduceOp::Sum),
        2 => group.broadcast(&mut tensor, root),
        3 => group.all_gather_into_tensor(&mut tensor, &part),
        4 => group.reduce_scatter_tensor(&mut part, &tensor, ReduceOp::Sum),
        5 => group.barrier(),
        6 => group.reduce(&mut tensor, root, ReduceOp::Sum),
        7 => {
            // A ring of messages.
            let sent = group.isend(part, Rank::new((me + 1) % size), 0)?;
            group.recv(&mut ones(numbers), Rank::new((me + size - 1) % size), 0)?;
            sent.wait().map(drop)
        }
        _ => {
            let loss = model.forward(&ones(500).unsqueeze(0))?.sum(Kind::Float);
            model.backward(&loss)
        }
    }
}

// ---- the test

/// Loses a rank at one moment after the other. `job` returns the store and a command for each rank, whose hosts it gets.
pub(crate) fn run(
    seeds: impl IntoIterator<Item = u32>,
    hosts: usize,
    job: impl Fn(&str, &[usize]) -> (Store, Vec<Command>),
) {
    let mut wrong = vec![];
    for moment in seeds.into_iter().map(|seed| Moment::draw(seed, hosts)) {
        let (store, commands) = job(&format!("{CASE} {} {hosts}", moment.seed), &moment.hosts);
        let survivors = survivors(&moment, commands);
        let names_it =
            |output: &Output| output.status.code() == Some(1) && blamed(&text(&output.stderr)) == Some(moment.victim);
        if !survivors.iter().all(|(_, output)| names_it(output)) {
            let says = |(rank, output): &(usize, Output)| {
                let right = if names_it(output) { "" } else { "not " };
                format!("\nrank {rank} ({right}right) ended with {:?}: {}", output.status, text(&output.stderr))
            };
            wrong.push(format!("{moment:?}: {}", survivors.iter().map(says).collect::<String>()));
        }
        drop(store);
    }
    assert!(
        wrong.is_empty(),
        "the lost rank was not named by all survivors of {} moments:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// What they printed.
fn survivors(moment: &Moment, mut commands: Vec<Command>) -> Vec<(usize, Output)> {
    let victim = KillOnDrop(commands.remove(moment.victim).spawn().unwrap());
    let ranks = (0..moment.world()).filter(|rank| *rank != moment.victim);
    let started = ranks
        .zip(commands)
        .map(|(rank, command)| (rank, thread::spawn(|| lockstep_process::watchdog::output(command))));
    let started: Vec<_> = started.collect();
    let ended = started.into_iter().map(|(rank, output)| (rank, output.join().unwrap())).collect();
    drop(victim);
    ended
}

/// The rank that an error gives as the cause. Who is late over Gloo, only the desync report knows.
fn blamed(error: &str) -> Option<usize> {
    let number = |words: &str| {
        let (_, rest) = error.split_once(words)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    if error.contains(" over Gloo") {
        let (before, _) = error.split_once(" did not answer within")?;
        return before.rsplit(' ').next()?.parse().ok();
    }
    ["because of rank ", "closed by peer: rank ", "waiting for rank ", "ms for rank ", "message of or to rank "]
        .into_iter()
        .find_map(number)
}
