//! timeout(1) between the launcher and a worker's program: the limit that it was given.

use std::time::Duration;

/// Programs that become the one that their arguments name.
const PREFIXES: [&str; 8] = ["env", "nice", "ionice", "numactl", "taskset", "chrt", "stdbuf", "setsid"];

/// A worker's timeout(1).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TimeOut {
    /// Its argument DURATION.
    pub(super) text: String,
    pub(super) limit: Duration,
    /// It sends SIGKILL, at once or later.
    pub(super) kills: bool,
}

impl TimeOut {
    /// Reads a worker's command line: `timeout -k 5 90m python train.py`. None without timeout(1) or a limit.
    pub(super) fn of(command: &[String]) -> Option<Self> {
        let name = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
        let begin = command.iter().position(|word| name(word) == "timeout")?;
        if begin > 0 && !PREFIXES.contains(&name(&command[0]).as_str()) {
            return None;
        }
        let mut words = command[begin + 1..].iter();
        let mut kills = false;
        let text = loop {
            let word = words.next()?;
            let Some(option) = word.strip_prefix('-') else { break word };
            let (flag, given) = match option.strip_prefix('-') {
                Some(long) => long.split_once('=').map_or((long, None), |(flag, value)| (flag, Some(value))),
                None => {
                    option.split_at_checked(1).map(|(flag, rest)| (flag, Some(rest).filter(|rest| !rest.is_empty())))?
                }
            };
            let mut value = || given.or_else(|| words.next().map(String::as_str));
            match flag {
                "k" | "kill-after" => kills |= value().is_some(),
                "s" | "signal" => kills |= value().is_some_and(|signal| ["KILL", "SIGKILL", "9"].contains(&signal)),
                _ => {}
            }
        };
        let limit = duration(text).filter(|limit| *limit > Duration::ZERO)?;
        Some(TimeOut { text: text.clone(), limit, kills })
    }
}

/// A number with `s`, `m`, `h` or `d`; 0 is no limit.
fn duration(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let unit = match &text[number.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(f64, bool)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        TimeOut::of(&words).map(|found| (found.limit.as_secs_f64(), found.kills))
    }

    #[test]
    fn finds_the_limit_on_a_workers_command_line() {
        assert_eq!(of("timeout 60 python train.py"), Some((60.0, false)));
        assert_eq!(of("/usr/bin/timeout -v --foreground 1.5h python -k train.py"), Some((5400.0, false)));
        assert_eq!(of("timeout -k 5 2m python"), Some((120.0, true)));
        assert_eq!(of("timeout --kill-after=5 --signal INT 2d python"), Some((172_800.0, true)));
        assert_eq!(of("timeout -sKILL 7s python"), Some((7.0, true)));
        assert_eq!(of("timeout -s TERM 7 python"), Some((7.0, false)));
        assert_eq!(of("env OMP_NUM_THREADS=1 nice -n 1 timeout 8 python"), Some((8.0, false)));
    }

    #[test]
    fn finds_no_limit_where_there_is_none() {
        for line in [
            "timeout 0 python",
            "timeout",
            "timeout -k",
            "timeout soon python",
            "timeout 5w python",
            "python timeout 5",
            "timeouts 5",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
