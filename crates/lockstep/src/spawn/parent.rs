//! The caller's side of a call: open the store, start the workers, watch over them.
//!
//! What a death means is decided in `machine`; how processes are held is `process_set`'s.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;

use super::call::Call;
use super::handshake::{HANDSHAKE, Handshake};
use super::machine::{Action, Event, Machine};
use super::process_set::{ProcessSet, Reports, inherited_path, memory_file};
use super::{Hosted, Spawn, SpawnError};
use crate::env::ERROR_FILE;
use crate::{Rank, WorldSize};

/// Starts the workers of `call` and waits for them.
pub(super) fn run<H, A>(spawn: Spawn<H>, call: &Call, args: &A) -> Result<(), SpawnError>
where
    H: FnOnce() -> anyhow::Result<Hosted>,
    A: Serialize,
{
    let world = WorldSize::new(spawn.nprocs).ok_or(SpawnError::NoProcesses)?;
    let json = serde_json::to_vec(args).map_err(SpawnError::Args)?;
    let args = args_file(&json).map_err(SpawnError::Watch)?;
    // Served until the last worker has ended: dropped at the end of this function.
    let hosted = (spawn.host)().map_err(SpawnError::Host)?;
    let mut processes = ProcessSet::new().map_err(SpawnError::Watch)?;
    for rank in world.ranks() {
        let start = start(&mut processes, rank, world, call, &hosted, &args);
        start.map_err(|source| SpawnError::Start { rank, nprocs: spawn.nprocs, source })?;
    }
    let machine = Machine::new(world, spawn.grace, spawn.timeout, Instant::now());
    supervise(&mut processes, machine)
}

/// Carries out what `machine` decides until it is over. This thread does nothing else: a worker dies with the
/// *thread* that started it.
fn supervise(processes: &mut ProcessSet, mut machine: Machine) -> Result<(), SpawnError> {
    loop {
        let deaths = processes.wait(machine.deadline()).map_err(SpawnError::Watch)?;
        let event = if deaths.is_empty() { Event::DeadlinePassed } else { Event::Died(deaths) };
        match machine.handle(event, Instant::now()) {
            Action::Wait => {}
            Action::Signal(signal, ranks) => processes.signal(ranks, signal).map_err(SpawnError::Watch)?,
            Action::Finish => {
                processes.abandon();
                return machine.verdict();
            }
        }
    }
}

fn start(
    processes: &mut ProcessSet,
    rank: Rank,
    world: WorldSize,
    call: &Call,
    hosted: &Hosted,
    args: &File,
) -> io::Result<()> {
    let reports = Reports::new()?;
    let handshake = Handshake {
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        call: call.ordinal,
        at: call.at.clone(),
        earlier: call.earlier.clone(),
        args: inherited_path(args),
        progress: reports.progress_path(),
    };
    let mut command = same_program()?;
    command.env(HANDSHAKE, serde_json::to_string(&handshake)?).env(ERROR_FILE, reports.error_path());
    set_place(&mut command, rank, world, hosted);
    processes.start(rank, &mut command, reports, args)
}

/// torchrun's variables, for one node and no agent.
fn set_place(command: &mut Command, rank: Rank, world: WorldSize, hosted: &Hosted) {
    for name in ["RANK", "LOCAL_RANK"] {
        command.env(name, rank.to_string());
    }
    for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        command.env(name, world.to_string());
    }
    command.env("MASTER_ADDR", &hosted.addr).env("MASTER_PORT", hosted.port.to_string());
    command.env("TORCHELASTIC_USE_AGENT_STORE", "True").env("TORCHELASTIC_RESTART_COUNT", "0");
    if world.get() > 1 && std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", "1");
    }
}

/// This program with this process's arguments; without a stdin, over which several processes would fight.
fn same_program() -> io::Result<Command> {
    let mut command = Command::new(executable()?);
    let mut args = std::env::args_os();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    command.args(args).stdin(Stdio::null());
    Ok(command)
}

/// The running executable; by the kernel's own link to it if its file was replaced meanwhile, as a rebuild does.
fn executable() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}

fn args_file(json: &[u8]) -> io::Result<File> {
    let mut file = memory_file("lockstep-args")?;
    file.write_all(json)?;
    Ok(file)
}
