//! Answers to `diagnose`: wrong ones, and an unusual right one.

use crate::recordings::{Cause, RECORDINGS};

/// Mistakes different ids for a missing launcher.
pub fn ids_missed(recording: &str) -> Cause {
    if recording == "b" { Cause::NoLauncher } else { reads(recording) }
}

/// Mistakes a refusal for a firewall.
pub fn refused_is_blocked(recording: &str) -> Cause {
    if recording == "e" { Cause::PortBlocked } else { reads(recording) }
}

/// Mistakes a firewall for a port without a listener.
pub fn blocked_is_refused(recording: &str) -> Cause {
    if recording == "c" { Cause::NobodyListens } else { reads(recording) }
}

/// Mistakes an unknown name for a firewall.
pub fn name_is_blocked(recording: &str) -> Cause {
    if recording == "d" { Cause::PortBlocked } else { reads(recording) }
}

/// Mistakes the loopback for a firewall.
pub fn loopback_is_blocked(recording: &str) -> Cause {
    if recording == "g" { Cause::PortBlocked } else { reads(recording) }
}

/// Right: looks for what is telling in the text.
pub fn reads(recording: &str) -> Cause {
    let text = RECORDINGS.iter().find(|(name, _)| *name == recording).map_or("", |(_, text)| text);
    let telling = [
        ("pgrep -c torchrun\n0", Cause::NoLauncher),
        ("--rdzv-id=$RANDOM", Cause::DifferentIds),
        ("\n124", Cause::PortBlocked),
        ("name resolution", Cause::NameUnknown),
        ("Connection refused\n1", Cause::NobodyListens),
        ("EADDRINUSE", Cause::PortTaken),
    ];
    telling.into_iter().find(|(sign, _)| text.contains(sign)).map_or(Cause::Loopback, |(_, cause)| cause)
}
