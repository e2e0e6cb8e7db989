//! Injects faults into this very process, for tests of recovery. [`lockstep_contract::fault`] defines when and which.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_contract::fault::{Act, LONGEST_WAIT};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGTERM;

use crate::snapshot;

/// How long to wait at most for a deadly signal, which may be delivered to another thread that then ends this one.
const TO_DIE: Duration = Duration::from_millis(500);

/// How long to wait between a signal that Rust's handler consumes and the same signal again.
const SWALLOWED: [Duration; 3] = [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(250)];

/// How often to look for the file of [`Act::AwaitHarness`].
const LOOK: Duration = Duration::from_millis(1);

/// The name of an act in events.
pub(crate) fn name(act: &Act) -> String {
    match act {
        Act::Signal(number) => format!("signal {number}"),
        Act::Exit(code) => format!("exit {code}"),
        Act::Panic => "panic".to_owned(),
        Act::IgnoreTerm => "ignore SIGTERM".to_owned(),
        Act::TearSnapshot => "tear the newest snapshot".to_owned(),
        Act::FlipSnapshotBit => "flip a bit of the newest snapshot".to_owned(),
        Act::NoSpace => "no space left on device".to_owned(),
        Act::AwaitHarness => "wait for the harness".to_owned(),
    }
}

/// Carries out `act`; snapshots are in `folder`, and the harness creates the file `came`.
///
/// Errors: the error that the act asks for, or that damaging a snapshot failed.
///
/// # Panics
/// Does not return if the act ends the process.
pub(crate) fn inject(act: &Act, folder: Option<&Path>, came: &Path) -> io::Result<()> {
    match act {
        Act::Signal(number) => signal(*number),
        Act::Exit(code) => signal_hook::low_level::exit(*code),
        Act::Panic => panic!("a panic was asked for (LOCKSTEP_FAULTS)"),
        // A handler that only sets a flag, which nobody reads.
        Act::IgnoreTerm => signal_hook::flag::register(SIGTERM, Arc::default()).map(drop),
        Act::TearSnapshot => tear(&newest(folder)?),
        Act::FlipSnapshotBit => flip(&newest(folder)?),
        Act::NoSpace => Err(Errno::NOSPC.into()),
        Act::AwaitHarness => {
            let begun = Instant::now();
            while !came.exists() {
                if begun.elapsed() >= LONGEST_WAIT {
                    let late = format!("the harness had not come after {} s", LONGEST_WAIT.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, late));
                }
                thread::sleep(LOOK);
            }
            Ok(())
        }
    }
}

fn signal(number: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
    // Rust's own handler of these two signals first suspects a stack overflow, finds that it was none, and leaves the next
    // signal to the system. A second signal that arrives before the first was handled is lost, hence several pauses.
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
