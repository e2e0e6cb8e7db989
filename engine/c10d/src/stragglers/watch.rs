//! Follows the findings from interval to interval: a lasting one is reported, with increasing pauses, and once more at the
//! end.

use std::time::Duration;

use super::clock::{Awaited, Sums};
use super::judge::{Cause, Finding, RankSums, judge};

/// An interval has at least this many periods on each rank: those of three publications.
const PERIODS: f64 = 2.5;
/// And this many waits, since a wait that straddles the end of an interval counts for the wrong one.
const WAITS: u64 = 8;
/// The same ranks must be late in this many intervals in a row.
const IN_A_ROW: usize = 3;
/// Seconds until a lasting finding is reported again; doubled each time.
const AGAIN: f64 = 60.0;

/// The readings of all ranks at one time, in rank order.
pub(super) type Reading = Vec<RankSums>;

/// Compares the ranks' sums as they grow.
#[derive(Debug)]
pub(super) struct Watch {
    /// The minimum length of an interval, in seconds.
    least: f64,
    /// The start of the current interval.
    from: Option<Reading>,
    intervals: usize,
    /// The finding of the last consecutive intervals.
    streak: Option<Streak>,
    reported: Vec<Reported>,
}

#[derive(Debug)]
struct Streak {
    ranks: Vec<usize>,
    intervals: usize,
    from: Reading,
}

#[derive(Debug)]
struct Reported {
    finding: Finding,
    intervals: usize,
    lost: f64,
    /// On rank 0's clock, in seconds.
    again_at: f64,
    pause: f64,
}

impl Watch {
    /// Sums come once in a period.
    pub(super) fn new(period: Duration) -> Self {
        Watch { least: PERIODS * period.as_secs_f64(), from: None, intervals: 0, streak: None, reported: Vec::new() }
    }

    /// Takes the ranks' sums so far; returns what to report now.
    pub(super) fn take(&mut self, now: Reading) -> Option<Finding> {
        let Some(from) = self.from.take().filter(|from| from.len() == now.len()) else {
            self.from = Some(now);
            return None;
        };
        let interval = since(&now, &from);
        if interval.iter().any(|span| span.sums.wall < self.least || span.sums.waits < WAITS) {
            self.from = Some(from);
            return None;
        }
        self.intervals += 1;
        self.from = Some(now.clone());
        let found = judge(&interval);
        self.count(found.as_ref());
        self.go_on(found, from);
        self.due(&now)
    }

    /// One line for each finding that was reported.
    pub(super) fn at_end(&self) -> Vec<String> {
        let all = self.intervals;
        let line = |of: &Reported| {
            let (found, lost) = (of.intervals, of.lost);
            match of.finding.ranks.len() {
                0 => format!(
                    "in all, the loaders were too slow in {found} of {all} intervals: each rank waited {lost:.0} s for batches"
                ),
                1 => format!(
                    "in all, {} was late in {found} of {all} intervals: each of the others waited {lost:.0} s for it",
                    of.finding.who()
                ),
                _ => format!(
                    "in all, {} were late in {found} of {all} intervals: each of the others waited {lost:.0} s for them",
                    of.finding.who()
                ),
            }
        };
        self.reported.iter().map(line).collect()
    }

    /// Adds an interval to a finding that was reported before.
    fn count(&mut self, found: Option<&Finding>) {
        let Some(found) = found else { return };
        if let Some(known) = self.reported.iter_mut().find(|known| known.is_of(&found.ranks)) {
            known.intervals += 1;
            known.lost += found.share * found.seconds;
        }
    }

    /// Continues the streak with the ranks that are in both, or begins a new streak.
    fn go_on(&mut self, found: Option<Finding>, from: Reading) {
        let before = self.streak.take();
        let Some(found) = found else { return };
        let begun = Streak { ranks: found.ranks.clone(), intervals: 1, from };
        self.streak = Some(match before {
            Some(streak) => streak.and(&found.ranks).unwrap_or(begun),
            None => begun,
        });
    }

    fn due(&mut self, now: &Reading) -> Option<Finding> {
        let streak = self.streak.as_ref().filter(|streak| streak.intervals >= IN_A_ROW)?;
        let finding = judge(&since(now, &streak.from)).filter(|finding| includes(&finding.ranks, &streak.ranks))?;
        let clock = now.first()?.sums.wall;
        match self.reported.iter_mut().find(|known| known.is_of(&finding.ranks)) {
            Some(known) if clock < known.again_at => return None,
            Some(known) => {
                known.pause *= 2.0;
                known.again_at = clock + known.pause;
            }
            None => self.reported.push(Reported {
                finding: finding.clone(),
                intervals: streak.intervals,
                lost: finding.share * finding.seconds,
                again_at: clock + AGAIN,
                pause: AGAIN,
            }),
        }
        Some(finding)
    }
}

impl Streak {
    fn and(self, ranks: &[usize]) -> Option<Self> {
        let both: Vec<usize> = self.ranks.iter().copied().filter(|rank| ranks.contains(rank)).collect();
        let goes_on = !both.is_empty() || (self.ranks.is_empty() && ranks.is_empty());
        goes_on.then(|| Streak { ranks: both, intervals: self.intervals + 1, from: self.from })
    }
}

impl Reported {
    /// Returns true if these late ranks include those that were reported.
    fn is_of(&self, ranks: &[usize]) -> bool {
        includes(ranks, &self.finding.ranks)
    }
}

/// An empty list means that all ranks starve, so lists of late ranks never include it.
fn includes(ranks: &[usize], part: &[usize]) -> bool {
    ranks.is_empty() == part.is_empty() && part.iter().all(|rank| ranks.contains(rank))
}

fn since(now: &Reading, from: &Reading) -> Reading {
    let span = |(now, from): (&RankSums, &RankSums)| -> RankSums {
        let sums: Sums = now.sums - from.sums;
        RankSums { host: now.host.clone(), sums, waits: now.waits.since(&from.waits) }
    };
    now.iter().zip(from).map(span).collect()
}

// Stalls: a rank that all others wait for at this moment.

/// All others must have waited for the rank for this many seconds. The rank is reported again when they have waited twice as
/// long.
const STALL: f64 = 10.0;

/// Follows the ranks' waits from reading to reading.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    before: Option<Reading>,
    /// The length of the wait after which the present stall is reported next, in seconds.
    due: f64,
}

impl Stalls {
    pub(super) fn take(&mut self, now: &Reading) -> Option<Finding> {
        let before = self.before.replace(now.clone())?;
        let Some((late, seconds)) = awaited(now).filter(|_| grows(now, &before)) else {
            self.due = STALL;
            return None;
        };
        if seconds < self.due.max(STALL) {
            return None;
        }
        self.due = 2.0 * seconds;
        let waited = now.iter().map(|span| span.waits.now.map_or(0.0, |(_, time)| time)).collect();
        let (ranks, hosts, cause) = (vec![late], vec![now[late].host.clone()], cause(now, &before, late));
        Some(Finding { ranks, hosts, cause, share: 1.0, times: f64::INFINITY, seconds, waited, goes_on: true })
    }
}

/// The rank that all others wait for while it waits for nobody, and the shortest of their waits. Ranks on other hosts do not see
/// which rank they wait for; if all but one wait, they wait for that one.
fn awaited(now: &Reading) -> Option<(usize, f64)> {
    let mut idle = (0..now.len()).filter(|&rank| now[rank].waits.now.is_none());
    let (Some(late), None) = (idle.next(), idle.next()) else { return None };
    let waits: Vec<(Awaited, f64)> = now.iter().filter_map(|span| span.waits.now).collect();
    let all_for_it = waits.iter().all(|(of, _)| [Awaited::Rank(late), Awaited::OtherHost].contains(of));
    let shortest = waits.iter().map(|(_, time)| *time).reduce(f64::min).filter(|_| all_for_it);
    shortest.map(|time| (late, time))
}

/// Returns true if every wait has gone on since the previous reading. A stopped rank would not publish the end of its wait.
fn grows(now: &Reading, before: &Reading) -> bool {
    let longer = |now: Option<(Awaited, f64)>, before: Option<(Awaited, f64)>| match (now, before) {
        (Some((awaited, time)), Some((former, less))) => awaited == former && time > less,
        (None, None) => true,
        _ => false,
    };
    now.len() == before.len() && now.iter().zip(before).all(|(now, before)| longer(now.waits.now, before.waits.now))
}

/// What delayed the rank between the readings. Its own waits for batches count only when they have ended.
fn cause(now: &Reading, before: &Reading, late: usize) -> Cause {
    let sums = now[late].sums - before[late].sums;
    let most = |time: f64| time > 0.5 * sums.wall;
    match () {
        () if most(sums.running) => Cause::Computing,
        () if most(sums.queued) => Cause::Processor,
        () => Cause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stragglers::judge::tests::span;

    const FAST: [f64; 4] = [6.0, 0.0, 4.0, 0.0];
    const SLOW: [f64; 4] = [0.0, 0.0, 10.0, 0.0];

    /// Ranks that were watched for some intervals of 10 s.
    struct WatchedJob {
        watch: Watch,
        sums: Reading,
    }

    impl WatchedJob {
        fn of(ranks: usize) -> Self {
            let zero = RankSums { host: "node1".into(), sums: Sums::default(), waits: Default::default() };
            let mut job = WatchedJob { watch: Watch::new(Duration::from_secs(1)), sums: vec![zero; ranks] };
            assert_eq!(job.watch.take(job.sums.clone()), None);
            job
        }

        fn interval(&mut self, ranks: &[[f64; 4]]) -> Option<Finding> {
            for (sum, more) in self.sums.iter_mut().zip(ranks) {
                sum.sums = sum.sums - (Sums::default() - span(*more).sums);
                sum.sums.waits += 100;
            }
            self.watch.take(self.sums.clone())
        }
    }

    #[test]
    fn reports_a_late_rank_after_three_intervals_and_then_seldom() {
        let mut job = WatchedJob::of(3);
        let ranks = [FAST, SLOW, FAST];
        let reports: Vec<Option<f64>> =
            (0..25).map(|_| job.interval(&ranks).map(|finding| (finding.seconds).round())).collect();
        let at: Vec<usize> = (0..reports.len()).filter(|at| reports[*at].is_some()).collect();
        // At 30 s, then after 60 s and after 120 s more.
        assert_eq!(at, [2, 8, 20]);
        assert_eq!(reports[2], Some(30.0));
        assert_eq!(
            job.watch.at_end(),
            ["in all, rank 1 on node1 was late in 25 of 25 intervals: each of the others waited 150 s for it"]
        );
    }

    #[test]
    fn reports_nothing_if_the_late_rank_changes_or_only_stumbles() {
        let mut job = WatchedJob::of(2);
        for _ in 0..4 {
            assert_eq!(job.interval(&[FAST, SLOW]), None);
            assert_eq!(job.interval(&[FAST, SLOW]), None);
            assert_eq!(job.interval(&[SLOW, FAST]), None);
            assert_eq!(job.interval(&[FAST, FAST]), None);
        }
        assert!(job.watch.at_end().is_empty());
    }

    #[test]
    fn keeps_the_ranks_that_are_late_in_all_intervals() {
        let mut job = WatchedJob::of(5);
        assert_eq!(job.interval(&[SLOW, SLOW, FAST, FAST, FAST]), None);
        assert_eq!(job.interval(&[FAST, SLOW, FAST, FAST, FAST]), None);
        assert_eq!(job.interval(&[FAST, SLOW, FAST, FAST, FAST]).unwrap().ranks, [1]);
    }

    #[test]
    fn reports_loaders_that_are_too_slow() {
        let mut job = WatchedJob::of(2);
        let starving = [0.5, 6.0, 3.5, 0.0];
        let reports: Vec<_> = (0..4).filter_map(|_| job.interval(&[starving; 2])).collect();
        assert_eq!(reports.len(), 1);
        assert!(reports[0].ranks.is_empty());
        assert_eq!(
            job.watch.at_end(),
            ["in all, the loaders were too slow in 4 of 4 intervals: each rank waited 24 s for batches"]
        );
    }

    #[test]
    fn an_interval_needs_some_waits_and_some_time_on_each_rank() {
        let mut job = WatchedJob::of(2);
        for (wall, waits) in [(2.4, 100), (10.0, 7)] {
            let mut few = job.sums.clone();
            few[1].sums = Sums { wall, waits, ..Sums::default() };
            few[0].sums = Sums { wall: 10.0, waits: 100, ..Sums::default() };
            assert_eq!(job.watch.take(few), None);
            assert_eq!(job.watch.intervals, 0);
        }
        job.interval(&[FAST, SLOW]);
        assert_eq!(job.watch.intervals, 1);
    }

    const BEYOND: Option<Awaited> = Some(Awaited::OtherHost);

    fn on(rank: usize) -> Option<Awaited> {
        Some(Awaited::Rank(rank))
    }

    /// Ranks whose present waits, for these targets, began at the start; the other ranks run.
    fn reading(seconds: f64, waits: &[Option<Awaited>]) -> Reading {
        let of = |wait: &Option<Awaited>| {
            let mut span = span([0.0, 0.0, if wait.is_none() { seconds } else { 0.0 }, 0.0]);
            span.sums.wall = seconds;
            span.waits.now = wait.map(|rank| (rank, seconds));
            span
        };
        waits.iter().map(of).collect()
    }

    fn reports(waits: &[Option<Awaited>], seconds: impl IntoIterator<Item = u32>) -> Vec<(u32, Finding)> {
        let mut stalls = Stalls::default();
        let find = |at: u32| Some((at, stalls.take(&reading(f64::from(at), waits))?));
        seconds.into_iter().filter_map(find).collect()
    }

    #[test]
    fn names_the_rank_for_which_all_others_wait_and_again_after_twice_the_time() {
        let found = reports(&[on(1), None, on(1)], 1..60);
        assert_eq!(found.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [10, 20, 40]);
        let (_, finding) = &found[0];
        assert_eq!((finding.ranks.as_slice(), finding.cause), (&[1][..], Cause::Computing));
        assert_eq!(finding.waited, [10.0, 0.0, 10.0]);
        let text = "rank 1 on node1 is late: the other ranks have been waiting for it for 10 s; it computes";
        assert_eq!(finding.to_string(), text);
    }

    #[test]
    fn names_a_rank_of_another_host_if_it_alone_does_not_wait() {
        for waits in [&[on(2), BEYOND, None, BEYOND][..], &[None, BEYOND], &[BEYOND, BEYOND, None]] {
            let found = reports(waits, 1..15);
            let late = waits.iter().position(Option::is_none).unwrap();
            assert_eq!(
                found.iter().map(|(at, found)| (*at, found.ranks.clone())).collect::<Vec<_>>(),
                [(10, vec![late])]
            );
        }
    }

    #[test]
    fn names_nobody_where_ranks_wait_for_different_ones_or_for_each_other() {
        for waits in [
            &[on(1), None, None][..],
            &[on(1), None, on(0)],
            &[on(1), on(0)],
            &[on(1), on(2), on(2)],
            &[BEYOND, BEYOND],
            &[BEYOND, None, None],
            &[BEYOND, None, on(0)],
            &[None, None],
            &[None],
            &[],
        ] {
            assert!(reports(waits, 1..60).is_empty(), "{waits:?}");
        }
    }

    #[test]
    fn a_wait_that_is_not_published_again_counts_for_nothing() {
        assert!(reports(&[on(1), None], [30, 30, 30]).is_empty());
    }
}
