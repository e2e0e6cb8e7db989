//! The hidden subcommands of an executable that starts processes by this crate.

use std::ffi::OsString;

use super::{DIES_WITH_PARENT, REAPER, parent_death, reaper_main};

/// Runs a hidden subcommand of this executable by its name, [`DIES_WITH_PARENT`] or [`REAPER`], with the arguments after the
/// name; `None` for any other name. An executable that starts workers calls it before anything else, in particular before it
/// starts a thread.
///
/// [`DIES_WITH_PARENT`] returns only when it could not become the program.
pub fn helper(name: &str, args: &[OsString]) -> Option<anyhow::Result<()>> {
    match name {
        DIES_WITH_PARENT => Some(parent_death::exec(args)),
        REAPER => Some(reaper_main::run(args)),
        _ => None,
    }
}
