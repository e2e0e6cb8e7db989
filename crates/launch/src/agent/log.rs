//! Logs the agent's steps to stderr, for users who set LOGLEVEL as for torchrun.

use std::io::{self, Write};

use tracing::level_filters::LevelFilter;

use crate::output::Console;

/// From now on `console` shows log messages of LOGLEVEL and above; if it is not set, warnings and errors.
pub(super) fn to(console: &Console) {
    let level = std::env::var("LOGLEVEL").map_or(LevelFilter::WARN, |name| level(&name));
    let console = console.clone();
    let log = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(false).without_time();
    // A program that embeds the agent keeps its own logger.
    let _ = log.with_writer(move || Lines(console.clone())).try_init();
}

/// Parses Python's names and numbers (logging.getLevelName); other texts mean torchrun's default.
fn level(name: &str) -> LevelFilter {
    match name.to_ascii_uppercase().as_str() {
        "DEBUG" | "10" => LevelFilter::DEBUG,
        "INFO" | "20" => LevelFilter::INFO,
        "ERROR" | "CRITICAL" | "FATAL" | "40" | "50" => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    }
}

/// Writes each log message as a line of the console.
struct Lines(Console);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.say(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_pythons_names_of_levels() {
        let names = ["INFO", "debug", "Warning", "CRITICAL", "10", "loud"].map(level);
        let [info, debug, warn, error] = [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::WARN, LevelFilter::ERROR];
        assert_eq!(names, [info, debug, warn, error, debug, warn]);
    }
}
