//! The threads of a rank that run without its doing anything have names of their own.

use std::fs;

use c10d::Backend;
use lockstep_contract::background::{DESYNC_REPORT, GLOO};
use lockstep_process::watchdog::until;

use crate::common::{options, ranks_on};

#[test]
fn background_threads_have_their_names() {
    let names = || -> Vec<String> {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok()).collect()
    };
    ranks_on(Backend::Gloo, 2, &options(), |_group| {
        for name in [DESYNC_REPORT, GLOO] {
            // A thread that has not run yet has its parent's name.
            let is_there = || names().iter().any(|thread| thread.trim_end() == name);
            until(is_there).unwrap_or_else(|why| panic!("{name} in {:?}: {why}", names()));
        }
    });
}
