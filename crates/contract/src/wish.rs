//! Wishes for a snapshot, which reach a training program as signals.
//!
//! A scheduler or a person sends them to `lockstep run`, which passes them on to ranks that handle them, or to the ranks themselves.
//! SIGTERM is no wish: launchers end the survivors of a failure with it.

/// Save a snapshot after this step, and go on: SIGUSR1 (signal(7)).
pub const SAVE: i32 = 10;

/// Save a snapshot after this step, then exit with [`SAVED`]: SIGUSR2 (signal(7)).
pub const SAVE_AND_END: i32 = 12;

/// The exit code of a program that has saved a snapshot and ended as a signal asked: start it again to go on. It is `EX_TEMPFAIL`, "the
/// user is invited to retry" (sysexits.h).
pub const SAVED: u8 = 75;
