//! Wishes for a snapshot, which reach a training program as signals.
//!
//! A scheduler or a person sends them to `lockstep run`, which passes them on to ranks that handle them, or to the ranks themselves.
//!
//! SIGTERM is ambiguous: a scheduler sends it at the time limit, to all processes of a job, and a launcher ends the survivors of a
//! failure with it. The sender distinguishes the two: a launcher names the signals that are wishes in [`SNAPSHOT_ON`] and itself in
//! [`LAUNCHER`]; from the launcher such a signal orders the end, from anyone else it is a wish like [`SAVE_AND_END`].

use std::time::Duration;

/// Save a snapshot after this step, and go on: SIGUSR1 (signal(7)).
pub const SAVE: i32 = 10;

/// Save a snapshot after this step, then exit with [`SAVED`]: SIGUSR2 (signal(7)).
pub const SAVE_AND_END: i32 = 12;

/// The exit code of a program that has saved a snapshot and ended as a signal asked: start it again to go on. It is `EX_TEMPFAIL`, "the
/// user is invited to retry" (sysexits.h).
pub const SAVED: u8 = 75;

/// A scheduler sends SIGTERM several times: Slurm 22.05 to all processes of a step and of the job, within a millisecond; timeout(1) to its
/// child and to its group. What comes within this time of the first is not a second signal.
pub const REPETITION: Duration = Duration::from_secs(2);

/// The variable with the names of further signals that are a wish like [`SAVE_AND_END`], joined by commas: `SIGTERM`. A program that
/// does not read it keeps their default action.
pub const SNAPSHOT_ON: &str = "LOCKSTEP_SNAPSHOT_ON";

/// The variable with the process id of the launcher, whose own signals are no wishes; set together with [`SNAPSHOT_ON`].
pub const LAUNCHER: &str = "LOCKSTEP_LAUNCHER";
