//! Support for tests, without libtorch: jobs in private folders, whose ranks are started directly and restarted after a fault, as a
//! launcher would do; and comparisons with Python's PyTorch.
//!
//! System errors are panics, as usual in tests. Not here: launchers, and the promises of each lab.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // only for tests

mod job;
pub mod margin;
pub mod python;

use std::path::Path;

pub use job::{Attempt, Job, kill, undisturbed, while_saving};
pub use lockstep_contract::clear_launcher;
pub use lockstep_process::KillOnDrop;
pub use lockstep_process::watchdog::Running;

/// What a process printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number after `words` in each line that has one there; a comma or a blank ends it.
pub fn numbers(printed: &str, words: &str) -> Vec<f64> {
    let number = |line: &str| line.split_once(words)?.1.split([',', ' ']).next()?.parse().ok();
    printed.lines().filter_map(number).collect()
}

/// Returns true if this process has a socket that listens on the TCP port `port`. To bind the port proves less: once it is free, another
/// process may have taken it.
pub fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A"; // the kernel's include/net/tcp_states.h
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let own: Vec<_> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    // As proc(5) shows it: number, local address, remote address, state, …, and the inode as the tenth field.
    let sockets =
        ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default());
    sockets.iter().flat_map(|table| table.lines().skip(1)).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[1].ends_with(&format!(":{port:04X}"))
            && fields[3] == LISTEN
            && own.contains(&format!("socket:[{}]", fields[9]))
    })
}

/// The names of the files and folders in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
