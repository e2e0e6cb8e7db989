//! Simulated workers. You do not change this file.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The command of one worker, which records its rank and then takes ten short naps: half a second, and more on a busy machine. If the
/// program that started it has ended by then, it keeps running, like a worker that no process waits for.
pub fn worker(rank: usize, world_size: usize) -> Command {
    let mut command = Command::new("sh");
    let naps = "for nap in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done";
    command.args(["-c", &format!("echo $RANK >> \"$NOTES\"; {naps}; if [ -e \"$OVER\" ]; then sleep 60; fi")]);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
    command.env("NOTES", file("notes")).env("OVER", file("over"));
    command
}

/// Runs a program. Returns the sorted ranks of the workers that it started, and its result.
pub fn watch<T>(program: impl FnOnce() -> T) -> (Vec<usize>, T) {
    for name in ["notes", "over"] {
        let _ = fs::remove_file(file(name)); // absent before the first program
    }
    let returned = program();
    let _ = fs::write(file("over"), ""); // only workers that still run read it
    let text = fs::read_to_string(file("notes")).unwrap_or_default();
    let mut ranks: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
    ranks.sort_unstable();
    (ranks, returned)
}

fn file(name: &str) -> PathBuf {
    format!("{name}-{}", std::process::id()).into()
}
