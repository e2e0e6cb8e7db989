//! Inflicting faults on request on this very process, for tests of recovery. When and which: [`lockstep_contract::fault`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockstep_contract::fault::Act;
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGTERM;

use crate::snapshot;

/// A deadly signal may be delivered to another thread, which then ends this one: so long is waited for that, at most.
const TO_DIE: Duration = Duration::from_millis(500);

/// How long to wait between a signal that Rust's handler swallows and the same signal again.
const SWALLOWED: [Duration; 3] = [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(250)];

/// What the events call an act.
pub(crate) fn name(act: &Act) -> String {
    match act {
        Act::Signal(number) => format!("signal {number}"),
        Act::Exit(code) => format!("exit {code}"),
        Act::Panic => "panic".to_owned(),
        Act::IgnoreTerm => "ignore SIGTERM".to_owned(),
        Act::TearSnapshot => "tear the newest snapshot".to_owned(),
        Act::FlipSnapshotBit => "flip a bit of the newest snapshot".to_owned(),
        Act::NoSpace => "no space left on device".to_owned(),
    }
}

/// Inflicts `act`; snapshots are in `folder`.
///
/// # Errors
/// Those that the act is to make, and those of harming a snapshot that is not there.
///
/// # Panics
/// If that is the act.
pub(crate) fn inflict(act: &Act, folder: Option<&Path>) -> io::Result<()> {
    match act {
        Act::Signal(number) => signal(*number),
        Act::Exit(code) => signal_hook::low_level::exit(*code),
        Act::Panic => panic!("a panic was asked for (LOCKSTEP_FAULTS)"),
        // A handler that does nothing but raise a flag that nobody reads.
        Act::IgnoreTerm => signal_hook::flag::register(SIGTERM, Arc::default()).map(drop),
        Act::TearSnapshot => tear(&newest(folder)?),
        Act::FlipSnapshotBit => flip(&newest(folder)?),
        Act::NoSpace => Err(Errno::NOSPC.into()),
    }
}

fn signal(number: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
    // Rust's own handler of these two takes the first for a stack that overflowed, finds that it is not, and leaves the
    // next to the system. A second that comes before the first was handled is lost, hence more than one pause.
    let swallowed = matches!(signal, Signal::SEGV | Signal::BUS);
    for pause in if swallowed { &SWALLOWED[..] } else { &[] } {
        kill_process(getpid(), signal)?;
        thread::sleep(*pause);
    }
    kill_process(getpid(), signal)?;
    thread::sleep(TO_DIE);
    Ok(())
}

fn newest(folder: Option<&Path>) -> io::Result<File> {
    let path = folder.and_then(|folder| snapshot::list(folder).ok()?.into_iter().next());
    OpenOptions::new().read(true).write(true).open(path.ok_or(io::ErrorKind::NotFound)?.path)
}

fn tear(file: &File) -> io::Result<()> {
    file.set_len(file.metadata()?.len() / 2)
}

fn flip(file: &File) -> io::Result<()> {
    let middle = file.metadata()?.len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle)?;
    file.write_all_at(&[byte[0] ^ 1], middle)
}
