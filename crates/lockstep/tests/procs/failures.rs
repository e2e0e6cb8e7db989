//! How the surviving ranks of a real job learn that one died or left the common sequence of calls. Each is a separate process
//! without a launcher that could stop the others, so every survivor has to find out by itself. Also what ranks do that cannot share
//! memory.

use std::process::{Command, Output};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use crate::{KillOnDrop, Test, finish, killed, program, program_after, soak, text};
use anyhow::Context;
use c10d::{Endpoint, GroupOptions, ReduceOp, Store, TcpStoreOptions};
use lockstep::events::{self, Event};
use lockstep::optim::named_parameters;
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Rank, init_process_group, spawn};
use lockstep_process::free_port;
use lockstep_process::watchdog::scaled;
use rustix::process::{Signal, getpid, kill_process};
use tch::nn::{self, VarStore};
use tch::{Device, Kind, Tensor};

const WORLD: usize = 3;
/// The timeout of groups in which a wait has to expire: longer than any step.
const TIMEOUT: Duration = Duration::from_secs(8);
/// That of others. Ranks start at different times, and a loss is noticed long before.
const PATIENCE: Duration = Duration::from_secs(600);
/// The variable with it in milliseconds, more on a busy machine, but the same on all ranks: who waits for longer than the others is
/// the last to give up, and they name that rank.
const TIMEOUT_MS: &str = "LOCKSTEP_TEST_TIMEOUT_MS";
/// What a desync report says of rank 1.
const DEAD: &str = "rank 1 did not answer";
const LEFT: &str = "rank 1 has left the group";

pub(crate) const TESTS: &[Test] = &[
    ("survivors_name_a_rank_that_was_stopped", || survivors_name("halts", DEAD)),
    ("survivors_name_a_rank_that_exited", || survivors_name("exits", DEAD)),
    ("survivors_name_a_rank_that_panicked", || survivors_name("panics", "rank 1 panicked")),
    ("survivors_name_a_rank_that_returned_early", || survivors_name("returns", LEFT)),
    ("survivors_name_a_rank_that_called_another_collective", || {
        survivors_name("strays", "call 4, broadcast from rank 0 of [2] Float");
    }),
    ("survivors_of_a_backward_pass_name_the_killed_rank", || survivors_name("ddp", DEAD)),
    ("survivors_on_several_hosts_name_a_rank_that_was_stopped", || survivors_over_hosts("halts", DEAD)),
    ("survivors_on_several_hosts_name_a_rank_that_returned_early", || survivors_over_hosts("returns", LEFT)),
    ("survivors_on_several_hosts_name_a_rank_that_called_another_collective", || {
        survivors_on(FIRST_OF_TWO, "strays", "call 4, broadcast from rank 0 of [2] Float");
    }),
    ("survivors_on_several_hosts_of_a_backward_pass_name_the_killed_rank", || {
        survivors_on(FIRST_OF_TWO, "ddp", DEAD);
    }),
    ("survivors_name_a_rank_that_was_killed_and_leave_no_shared_memory", leaves_no_shared_memory),
    ("ranks_that_cannot_share_memory_use_gloo_and_their_events_say_why", chooses),
    ("ranks_share_memory_where_dev_shm_is_full", shares_where_dev_shm_is_full),
    ("survivors_name_the_lost_rank_at_a_few_moments", || survive_a_few(1)),
    ("survivors_on_several_hosts_name_the_lost_rank_at_a_few_moments", || survive_a_few(2)),
    ("soak_at_200_moments", || soak(1)),
    ("soak_over_hosts_at_200_moments", || soak(2)),
    ("ddp_ends_with_the_same_bits_when_ranks_are_killed", || killed::ends_with_the_same_bits("ddp")),
    ("zero_ends_with_the_same_bits_when_ranks_are_killed", || killed::ends_with_the_same_bits("zero")),
    ("tensor_parallelism_ends_with_the_same_bits_when_ranks_are_killed", || killed::ends_with_the_same_bits("tensor")),
    ("a_pipeline_ends_with_the_same_bits_when_ranks_are_killed", || killed::ends_with_the_same_bits("pipeline")),
    ("a_sharded_run_ends_with_the_same_bits_when_ranks_are_killed", || killed::ends_with_the_same_bits("sharded")),
    ("a_lost_store_host_is_named_by_address", names_the_store),
    ("a_stopped_store_host_does_not_hold_the_others_beyond_their_deadline", survives_a_stopped_host),
    ("a_rank_that_never_starts_is_named_when_the_others_give_up", names_who_never_came),
    ("spawn_reports_the_rank_that_died_in_a_collective", spawn_reports),
];

// ---- the program -------------------------------------------------------------------------------------------------

pub(crate) fn case(name: &str) -> anyhow::Result<()> {
    match name {
        "spawned" => Ok(spawn(WORLD, &"killed".to_owned(), |env, fault| work(env, &fault))?),
        _ => match name.split_once(' ') {
            Some((soak::CASE, seed)) => soak::work(&LaunchEnv::from_env()?, seed),
            Some((killed::CASE, scheme)) => killed::work(&LaunchEnv::from_env()?, scheme),
            _ => work(&LaunchEnv::from_env()?, name),
        },
    }
}

/// Three successful collectives, then the fault on rank 1.
fn work(env: &LaunchEnv, fault: &str) -> anyhow::Result<()> {
    if fault == "absent" {
        meet(env)?;
    }
    let patient = on_host(env);
    let short = GroupOptions { timeout: timeout()?, ..patient.clone() };
    let group = Rc::new(init_process_group(env, Device::Cpu, if fault == "absent" { &short } else { &patient })?);
    if matches!(fault, "halts" | "stopped") {
        group.set_timeout(short.timeout)?;
    }
    let mut t = Tensor::ones([2], (Kind::Float, Device::Cpu));
    for _ in 0..3 {
        group.all_reduce(&mut t, ReduceOp::Max)?;
    }
    println!("rank {} is in step", env.rank);
    if env.rank == Rank::new(1) {
        match fault {
            "killed" | "ddp" => kill_process(getpid(), Signal::KILL)?,
            "halts" => kill_process(getpid(), Signal::STOP)?,
            "exits" => std::process::exit(3),
            "panics" => panic!("a bug in rank 1"),
            "returns" => return Ok(()),
            "strays" => group.broadcast(&mut t, Rank::ZERO)?,
            "store" | "stopped" | "nothing" | "large" => {}
            other => anyhow::bail!("no fault {other:?}"),
        }
    }
    match fault {
        "ddp" => backward(&group),
        "store" => lose_the_store(env, &group),
        "stopped" if env.rank.is_zero() => Ok(kill_process(getpid(), Signal::STOP)?),
        "large" => Ok(group.all_reduce(&mut Tensor::ones([4_000_000], (Kind::Float, Device::Cpu)), ReduceOp::Sum)?),
        _ => Ok(group.all_reduce(&mut t, ReduceOp::Sum)?),
    }
}

/// Waits until ranks 0 and 2 have started: one that is late would count as one that never came, too.
fn meet(env: &LaunchEnv) -> anyhow::Result<()> {
    let store = Store::tcp(&env.master_addr, env.master_port, &TcpStoreOptions::default())?;
    store.set(&format!("started/{}", env.rank), "1")?;
    Ok(store.wait(&["started/0", "started/2"], PATIENCE)?)
}

pub(crate) fn timeout() -> anyhow::Result<Duration> {
    Ok(Duration::from_millis(std::env::var(TIMEOUT_MS)?.parse()?))
}

pub(crate) fn set_timeout(command: &mut Command) -> &mut Command {
    command.env(TIMEOUT_MS, scaled(TIMEOUT).as_millis().to_string())
}

/// The variable with each rank's host in a job over several hosts, which are simulated: `0,1,0`.
const HOSTS: &str = "LOCKSTEP_TEST_HOSTS";

/// Options of a rank on its host.
pub(crate) fn on_host(env: &LaunchEnv) -> GroupOptions {
    let hosts = std::env::var(HOSTS).unwrap_or_default();
    let simulated_host = hosts.split(',').nth(env.rank.get()).filter(|host| !host.is_empty()).map(str::to_owned);
    GroupOptions { timeout: PATIENCE, endpoint: Endpoint::Interface("lo".into()), simulated_host, ..Default::default() }
}

fn backward(group: &Rc<c10d::ProcessGroup>) -> anyhow::Result<()> {
    let vs = VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 4, 1, Default::default());
    let model = DistributedDataParallel::new(net, &vs, Rc::clone(group), &DdpOptions::default())?;
    let loss = model.forward(&Tensor::ones([1, 4], (Kind::Float, Device::Cpu)))?.sum(Kind::Float);
    model.backward(&loss)?;
    anyhow::ensure!(named_parameters(&vs)[0].1.grad().defined());
    Ok(())
}

/// Rank 0, which hosts the store here, exits; the others look for something in it.
fn lose_the_store(env: &LaunchEnv, group: &c10d::ProcessGroup) -> anyhow::Result<()> {
    if env.rank.is_zero() {
        kill_process(getpid(), Signal::KILL)?;
    }
    group.store().get("never set").map(drop).context("the store")
}

// ---- the tests ---------------------------------------------------------------------------------------------------

/// Starts the given ranks of a job of three and returns their output, in order.
fn job(case: &str, ranks: &[usize], agent_store: bool, port: u16) -> Vec<Output> {
    job_on("gloo", case, ranks, agent_store, port)
}

/// The variable that names a worker's backend.
const BACKEND: &str = "LOCKSTEP_BACKEND";

/// A backend's name and, if the ranks are on several hosts, those of all ranks.
fn use_backend(command: &mut Command, (name, hosts): (&str, &str)) {
    command.env(BACKEND, name).env(HOSTS, hosts);
}

fn job_on(backend: &'static str, case: &str, ranks: &[usize], agent_store: bool, port: u16) -> Vec<Output> {
    job_over((backend, ""), case, ranks, agent_store, port)
}

fn job_over(
    backend: (&'static str, &'static str),
    case: &str,
    ranks: &[usize],
    agent_store: bool,
    port: u16,
) -> Vec<Output> {
    let start = |rank: &usize| {
        let mut command = worker(case, *rank, agent_store, port);
        use_backend(&mut command, backend);
        thread::spawn(move || finish(command))
    };
    let ranks: Vec<_> = ranks.iter().map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn worker(case: &str, rank: usize, agent_store: bool, port: u16) -> Command {
    of_rank(program(case), rank, agent_store, port)
}

fn of_rank(mut command: Command, rank: usize, agent_store: bool, port: u16) -> Command {
    set_timeout(&mut command)
        .envs(
            [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", WORLD), ("LOCAL_WORLD_SIZE", WORLD)]
                .map(|(name, value)| (name, value.to_string())),
        )
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("TORCHELASTIC_USE_AGENT_STORE", if agent_store { "True" } else { "False" });
    command
}

fn host() -> (Store, u16) {
    let options = TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() };
    let store = Store::tcp("127.0.0.1", 0, &options).unwrap();
    let port = store.port().unwrap();
    (store, port)
}

/// On every backend, at once: the survivors spend their time on waits that expire.
fn survivors_name(case: &str, words: &str) {
    survivors_on_each([("gloo", ""), ("shm", "")], case, words);
}

/// Rank 1 is alone on its host, not the first one there, or the first of two.
fn survivors_over_hosts(case: &str, words: &str) {
    survivors_on_each([("auto", "0,1,0"), ("auto", "0,0,1"), FIRST_OF_TWO], case, words);
}

/// Rank 1 has a peer on its own host and one on another. Where it is makes no difference to which call it was in.
const FIRST_OF_TWO: (&str, &str) = ("auto", "0,1,1");

fn survivors_on_each<const N: usize>(backends: [(&'static str, &'static str); N], case: &str, words: &str) {
    thread::scope(|scope| {
        for backend in backends {
            scope.spawn(move || survivors_on(backend, case, words));
        }
    });
}

fn survivors_on(backend: (&'static str, &'static str), case: &str, words: &str) {
    let (_store, port) = host();
    let halted = (case == "halts").then(|| {
        let mut command = worker(case, 1, true, port);
        use_backend(&mut command, backend);
        KillOnDrop(command.spawn().unwrap())
    });
    let ranks: &[usize] = if halted.is_some() { &[0, 2] } else { &[0, 1, 2] };
    let outputs = job_over(backend, case, ranks, true, port);
    let outputs = ranks.iter().copied().zip(&outputs);
    for (rank, output) in outputs.filter(|(rank, _)| *rank != 1) {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "rank {rank}: {error}");
        assert!(text(&output.stdout).contains("is in step"), "rank {rank} failed before the fault: {error}");
        assert!(error.contains(words), "rank {rank} does not say {words:?}: {error}");
    }
}

/// It takes half an hour: `cargo nextest run --workspace --run-ignored only soak`. `SOAK=FIRST..END` gives other seeds.
fn soak(hosts: usize) {
    let seeds = std::env::var("SOAK").unwrap_or("0..200".into());
    let (first, end) = seeds.split_once("..").expect("SOAK=FIRST..END");
    survive(first.parse().unwrap()..end.parse().unwrap(), hosts);
}

/// Moments with 2 to 4 ranks: one is killed, returns early, and stops.
const FEW: [u32; 3] = [8, 0, 35];

/// Two at a time.
fn survive_a_few(hosts: usize) {
    thread::scope(|scope| {
        for seeds in FEW.chunks(2) {
            scope.spawn(move || survive(seeds.iter().copied(), hosts));
        }
    });
}

/// Ranks on shared memory, on one host or several, lose one of them at the moments of these seeds.
fn survive(moments: impl IntoIterator<Item = u32>, hosts: usize) {
    soak::run(moments, hosts, |case, layout| {
        let (store, port) = host();
        let (name, layout) = (if hosts == 1 { "shm" } else { "auto" }, layout.to_vec());
        let words: Vec<String> = layout.iter().map(usize::to_string).collect();
        let command = |rank| {
            let mut command = worker(case, rank, true, port);
            let sizes = [("WORLD_SIZE", layout.len()), ("LOCAL_WORLD_SIZE", layout.len())];
            command.envs(sizes.map(|(name, value)| (name, value.to_string())));
            use_backend(&mut command, (name, &words.join(",")));
            command
        };
        (store, (0..layout.len()).map(command).collect())
    });
}

fn leaves_no_shared_memory() {
    let files = || {
        let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = files();
    survivors_name("killed", DEAD);
    survivors_over_hosts("killed", DEAD);
    // Other programs may have made or removed files meanwhile, but none has this project's name.
    let ours = |name: &&std::ffi::OsString| name.to_string_lossy().contains("lockstep");
    assert_eq!(files().difference(&before).find(ours), None);
}

/// A limit of file sizes leaves no room for a rank's memory file, one of address space no room to map it.
fn chooses() {
    for (prelude, hosts, chosen, why) in [
        (":", "", "shm", "all ranks are on one host"),
        (":", "0,1,0", "shm+gloo", "2 hosts: memory within each, Gloo between them"),
        ("ulimit -f 64", "", "gloo", "rank 1: a limit of file sizes: File too large"),
        ("ulimit -f 64", "0,1,0", "gloo", "rank 1: a limit of file sizes: File too large"),
        ("ulimit -v 50000000", "", "gloo", "rank 1: mapping shared memory: Cannot allocate memory"),
    ] {
        assert_chosen(["", prelude, ""], hosts, chosen, why);
    }
}

/// As in a container, where /dev/shm has 64 MB by default.
fn shares_where_dev_shm_is_full() {
    let private = Command::new("unshare").args(["-m", "true"]).output();
    if !private.is_ok_and(|output| output.status.success()) {
        println!("not verified here: ranks next to a full /dev/shm (unshare -m is not possible)");
        return;
    }
    let full = r#"exec unshare -m sh -c 'mount -t tmpfs -o size=4k tmpfs /dev/shm && ! head -c 8192 /dev/zero 2>/dev/null >/dev/shm/full && exec "$0"' "$0""#;
    assert_chosen([full; WORLD], "", "shm", "all ranks are on one host");
}

/// The ranks' events name this backend and the reason, and their sums succeed. `preludes` are shell lines before each rank's program.
fn assert_chosen(preludes: [&str; WORLD], hosts: &str, chosen: &str, why: &str) {
    let ((_store, port), folder) = (host(), tempfile::tempdir().unwrap());
    let start = |rank: usize| {
        let prelude = if preludes[rank].is_empty() { ":" } else { preludes[rank] };
        let mut command = of_rank(program_after(prelude, "large"), rank, true, port);
        command.env(events::FOLDER, folder.path()).env_remove(BACKEND).env(HOSTS, hosts);
        thread::spawn(|| finish(command))
    };
    let ranks: Vec<_> = (0..WORLD).map(start).collect();
    for rank in ranks {
        let output = rank.join().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let logs = events::read_folder(folder.path()).unwrap();
    assert_eq!(logs.len(), WORLD);
    for log in logs.values() {
        let expected = Event::Group { world_size: WORLD, backend: chosen.into(), reason: Some(why.into()) };
        assert!(log.records.iter().any(|record| record.event == expected), "{:?}", log.records);
    }
}

fn names_the_store() {
    // Rank 0 hosts the store, so the others must know the port beforehand.
    let port = free_port().unwrap();
    let outputs = job("store", &[0, 1, 2], false, port);
    for output in &outputs[1..] {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("TCPStore at 127.0.0.1:{port}")), "{error}");
    }
}

fn survives_a_stopped_host() {
    let port = free_port().unwrap();
    let host = KillOnDrop(worker("stopped", 0, false, port).spawn().unwrap());
    for output in job("stopped", &[1, 2], false, port) {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("the store did not answer a request for a desync report either"), "{error}");
    }
    drop(host);
}

fn names_who_never_came() {
    for backend in ["gloo", "auto"] {
        let (_store, port) = host();
        for output in job_on(backend, "absent", &[0, 2], true, port) {
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains("never came: rank 1"), "{error}");
        }
    }
}

fn spawn_reports() {
    let mut command = program("spawned");
    set_timeout(&mut command);
    let output = finish(command);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("process 1 terminated with signal SIGKILL"), "{error}");
}
