//! Whether ranks stand still: every thread asleep, for seconds on end, without any time on a core.
//!
//! A rank that waits for a message sleeps; one that computes, or would if a busy machine let it, does not. So a deadlock is known
//! long before the deadline, and a slow machine is not taken for one.

use std::fs;
use std::time::{Duration, Instant};

/// After so long without a sign of life, none is expected.
pub(super) const STILL: Duration = Duration::from_secs(5);
/// What the threads that answer roll calls use in that time, and more, in clock ticks (10 ms each).
const NOTHING: u64 = 10;

/// Since when the ranks have stood still.
#[derive(Debug, Default)]
pub(super) struct Stillness {
    since: Option<(Instant, u64)>,
}

impl Stillness {
    /// Whether these processes have stood still for [`STILL`] by `now`. To be asked often.
    pub(super) fn lasts(&mut self, pids: &[u32], now: Instant) -> bool {
        self.look(pids.iter().map(|pid| threads(*pid)), now)
    }

    /// The same of what was seen: asleep or not, and ticks on cores so far.
    fn look(&mut self, seen: impl Iterator<Item = Option<(bool, u64)>>, now: Instant) -> bool {
        let all: Option<Vec<(bool, u64)>> = seen.collect();
        let asleep = all.filter(|all| !all.is_empty() && all.iter().all(|(asleep, _)| *asleep));
        let Some(ticks) = asleep.map(|all| all.iter().map(|(_, ticks)| ticks).sum()) else {
            self.since = None;
            return false;
        };
        match self.since {
            Some((since, begun)) if ticks <= begun + NOTHING => now - since >= STILL,
            _ => {
                self.since = Some((now, ticks));
                false
            }
        }
    }
}

/// Whether all threads of a process sleep, and their ticks on cores (proc_pid_stat(5)); `None` if it has ended.
fn threads(pid: u32) -> Option<(bool, u64)> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let threads: Vec<(bool, u64)> = stats.filter_map(|stat| parse(&stat)).collect();
    let ticks = threads.iter().map(|(_, ticks)| ticks).sum();
    (!threads.is_empty()).then(|| (threads.iter().all(|(asleep, _)| *asleep), ticks))
}

/// State, and the ticks in user and kernel mode: the 3rd, 14th and 15th field. The 2nd is the name, which may hold anything.
fn parse(stat: &str) -> Option<(bool, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let asleep = fields.next()? == "S";
    let mut ticks = fields.skip(10).map(|field| field.parse::<u64>().ok());
    Some((asleep, ticks.next()?? + ticks.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_state_and_ticks_of_a_thread_with_any_name() {
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194304 90 0 0 0 30 12 0 0 20 0 4 0 100";
        assert_eq!(parse(stat), Some((true, 42)));
        assert_eq!(parse("7 (a) R 1 7 7 0 -1 4194304 90 0 0 0 1 2 0 0"), Some((false, 3)));
        assert_eq!(parse("7 (a) S 1"), None);
    }

    #[test]
    fn is_over_with_any_sign_of_life() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut still = Stillness::default();
        let mut look = |all: &[(bool, u64)], seconds| still.look(all.iter().copied().map(Some), at(seconds));
        assert!(!look(&[(true, 5), (true, 5)], 0));
        assert!(!look(&[(true, 5), (true, 6)], 4));
        assert!(look(&[(true, 5), (true, 6)], 5), "5 s");
        assert!(!look(&[(true, 5), (false, 6)], 6), "one runs");
        assert!(!look(&[(true, 5), (true, 6)], 7) && !look(&[(true, 5), (true, 900)], 12), "one has run");
        assert!(!look(&[(true, 5), (true, 900)], 16) && look(&[(true, 5), (true, 900)], 17));
        assert!(!look(&[], 30), "nobody");
    }

    #[test]
    fn sees_that_this_process_does_not_sleep() {
        assert_eq!(threads(std::process::id()).map(|(asleep, _)| asleep), Some(false));
        assert_eq!(threads(u32::MAX), None);
    }
}
