//! The filters of snapshots: replace whatever differs from run to run or from machine to machine.

use std::path::Path;

use insta::Settings;
use insta::internals::SettingsBindDropGuard;

/// Until the guard is dropped, this thread's snapshots show the text unchanged.
pub(crate) fn plain() -> SettingsBindDropGuard {
    unnamed().bind_to_scope()
}

/// Until the guard is dropped, this thread's snapshots show `[pid]`, `[port]`, `[time]`, `[seconds]`, `[host]`, `[logs]`, and
/// `[folder]` for the test's own folder, if it has one. Loopback addresses keep their last number, which is the node's.
pub(crate) fn filtered(folder: Option<&Path>) -> SettingsBindDropGuard {
    let mut settings = unnamed();
    if let Some(folder) = folder {
        settings.add_filter(&regex::escape(folder.to_str().unwrap()), "[folder]");
    }
    settings.add_filter(r"\blockstep_\w+/[0-9a-f-]+_\w+", "[logs]");
    settings.add_filter(r"20\d\d-\d\d-\d\d[ _T]\d\d:\d\d:\d\d", "[time]");
    settings.add_filter(r"127\.\d+\.\d+\.(\d+)", "127.[net].$1");
    settings.add_filter(r"(127\.\[net\]\.\d+|localhost|nc -vz \S+)[: ]\d{4,5}\b", "$1:[port]");
    settings.add_filter(r"\bport \d{4,5}\b", "port [port]");
    settings.add_filter(r"\b(pid|PID)(:?) \d+", "$1$2 [pid]");
    settings.add_filter(r"\b\d+\.\d+ s\b", "[seconds] s");
    settings.add_filter(r"\b(within|came|for) \d+ s\b", "$1 [seconds] s");
    settings.add_filter(&format!(r"( : | node | on ){}\b", regex::escape(&host())), "$1[host]");
    settings.bind_to_scope()
}

/// A snapshot's file does not depend on the spelling of the test's expression.
pub(crate) fn unnamed() -> Settings {
    let mut settings = Settings::clone_current();
    settings.set_omit_expression(true);
    settings
}

fn host() -> String {
    rustix::system::uname().nodename().to_str().unwrap().to_owned()
}
