//! Finds late ranks from the sums of all ranks over one interval ([`judge`], pure), and follows the findings from interval to interval: a
//! lasting one is reported, with increasing pauses, and once more at the end.

use std::fmt;
use std::time::Duration;

use super::{Awaited, Sums, Waits};

/// An interval has at least this many periods on each rank, which three publications give.
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
        let (ranks, hosts, cause) = (vec![late], vec![now[late].host.clone()], cause_of_stall(now, &before, late));
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
fn cause_of_stall(now: &Reading, before: &Reading, late: usize) -> Cause {
    let sums = now[late].sums - before[late].sums;
    let most = |time: f64| time > 0.5 * sums.wall;
    match () {
        () if most(sums.running) => Cause::Computing,
        () if most(sums.queued) => Cause::Processor,
        () => Cause::Other,
    }
}

/// A late rank waits less than this fraction of the median rank's wait.
const LITTLE: f64 = 1.0 / 3.0;
/// Others must wait for a late rank for this fraction of their time.
const MUCH: f64 = 0.10;
/// A rank starves if it waits for batches for this fraction of its time.
const STARVES: f64 = 0.30;
/// If a thread waits for a processor for this fraction of its time, its node has too few processors.
const CROWDED: f64 = 0.05;

/// One rank's sums over an interval, and its host.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RankSums {
    pub(super) host: String,
    pub(super) sums: Sums,
    pub(super) waits: Waits,
}

/// Either ranks that the others wait for, or all ranks waiting for their loaders.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The late ranks, at most half of all; none if all ranks starve.
    pub ranks: Vec<usize>,
    /// The host of each.
    pub hosts: Vec<String>,
    /// What delays the late ranks while the others wait.
    pub cause: Cause,
    /// The fraction of the time that the others lose, or that all ranks wait for batches.
    pub share: f64,
    /// The late ranks' time from one collective to the next, as a multiple of the others' time.
    pub times: f64,
    /// The length of the interval, in seconds.
    pub seconds: f64,
    /// The seconds of the interval that each rank waited for the late ones; empty unless all ranks share memory, or the wait
    /// [goes on](Self::goes_on).
    pub waited: Vec<f64>,
    /// The interval is one wait of all others, which had not ended when this was found.
    pub goes_on: bool,
}

/// What a late rank does while the others wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It waits for a batch, or loads it.
    Loader,
    /// It computes.
    Computing,
    /// It waits for a processor that other threads use.
    Processor,
    /// None of these: it sleeps, or waits for a file, a lock or a device.
    Other,
}

impl Cause {
    /// One word, for event files.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Loader => "loader",
            Cause::Computing => "computing",
            Cause::Processor => "processor",
            Cause::Other => "other",
        }
    }

    /// The cause in words for one rank, while others wait for it.
    fn now(self) -> &'static str {
        match self {
            Cause::Computing => "it computes",
            Cause::Processor => "it waits for a processor",
            Cause::Loader | Cause::Other => "`lockstep stacks` shows where it is",
        }
    }

    fn explanation(self) -> &'static str {
        match self {
            Cause::Loader => "most of that for batches; give its loader more workers, or cache its samples",
            Cause::Computing => {
                "most of that computing; compare its share of the work and the clock of its device with those of the others"
            }
            Cause::Processor => {
                "most of that waiting for a processor; other processes take those of its node, or its threads are too many"
            }
            Cause::Other => {
                "most of that neither computing nor loading; it sleeps, or waits for a file, a lock or a device: `lockstep stacks` \
                 shows for which"
            }
        }
    }
}

/// `rank 2 on node1 is late: …`, with numbers and what to do.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, seconds) = (100.0 * self.share, self.seconds);
        if self.ranks.is_empty() {
            return write!(
                f,
                "the loaders are too slow: the ranks waited for batches for {percent:.0} % of the last {seconds:.0} s; \
                 use more loader workers, or cache the samples"
            );
        }
        let (who, [is, it, its]) =
            (self.who(), if self.ranks.len() == 1 { ["is", "it", "it"] } else { ["are", "them", "each"] });
        if self.goes_on {
            let now = self.cause.now();
            return write!(f, "{who} {is} late: the other ranks have been waiting for {it} for {seconds:.0} s; {now}");
        }
        write!(f, "{who} {is} late: the other ranks waited for {it} for {percent:.0} % of the last {seconds:.0} s; ")?;
        match self.times {
            times if times > 100.0 => write!(f, "{its} took more than 100 times")?,
            times => write!(f, "{its} took {times:.1} times")?,
        }
        write!(f, " as long as the others between collectives, {}", self.cause.explanation())
    }
}

impl Finding {
    /// `rank 2 on node1`, `ranks 2 and 3 on node1`, `ranks 2 on node1 and 5 on node2`; the first of many.
    pub(super) fn who(&self) -> String {
        const SHOWN: usize = 4;
        let one_host = self.hosts.windows(2).all(|pair| pair[0] == pair[1]);
        let named = self.ranks.iter().zip(&self.hosts).take(SHOWN);
        let mut names: Vec<String> =
            named.map(|(rank, host)| if one_host { rank.to_string() } else { format!("{rank} on {host}") }).collect();
        if self.ranks.len() > SHOWN {
            names.push(format!("{} more", self.ranks.len() - SHOWN));
        }
        let last = names.pop().unwrap_or_default();
        let list = if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) };
        let at = self.hosts.first().filter(|_| one_host).map_or(String::new(), |host| format!(" on {host}"));
        format!("rank{} {list}{at}", if self.ranks.len() == 1 { "" } else { "s" })
    }
}

/// Finds ranks that the others waited for, or starving loaders. Returns `None` if all are equally fast, or if too few
/// processors for the ranks explain the difference.
pub(super) fn judge(ranks: &[RankSums]) -> Option<Finding> {
    let shares: Vec<Shares> = ranks.iter().map(|rank| Shares::of(&rank.sums)).collect();
    let typical = median(shares.iter().map(|share| share.waited));
    let (late, others): (Vec<usize>, Vec<usize>) =
        (0..ranks.len()).partition(|&rank| shares[rank].waited < typical * LITTLE);
    let seconds = median(ranks.iter().map(|rank| rank.sums.wall));
    let (slow, fast) = (Shares::typical(&shares, &late), Shares::typical(&shares, &others));
    let lost = fast.waited - slow.waited;
    if late.is_empty() || lost < MUCH {
        let share = median(shares.iter().map(|share| share.loading));
        let (ranks, hosts, waited, cause) = (vec![], vec![], vec![], Cause::Loader);
        let starve = Finding { ranks, hosts, cause, share, times: 1.0, seconds, waited, goes_on: false };
        return (share >= STARVES).then_some(starve);
    }
    // Arrivals are known only for the default group's collectives, and within each host. So they refute the finding only if most of
    // the waiting was there.
    let waited = waited_for(ranks, &late);
    let (for_late, for_others) = (known_waits(ranks, &late), known_waits(ranks, &others));
    let all: f64 = ranks.iter().map(|rank| rank.sums.waited).sum();
    if for_late < for_others && for_late + for_others > all / 2.0 {
        return None;
    }
    let cause = cause(&slow, &fast);
    if cause == Cause::Processor && fast.queued >= CROWDED {
        return None;
    }
    let hosts = late.iter().map(|&rank| ranks[rank].host.clone()).collect();
    let times = (1.0 - slow.waited) / (1.0 - fast.waited).max(f64::EPSILON);
    Some(Finding { ranks: late, hosts, cause, share: lost, times, seconds, waited, goes_on: false })
}

/// The seconds that each rank waited for these; empty if they are unknown for a rank.
fn waited_for(ranks: &[RankSums], these: &[usize]) -> Vec<f64> {
    let of = |rank: &RankSums| these.iter().map(|&other| *rank.waits.seconds.get(other)?).sum::<Option<f64>>();
    ranks.iter().map(of).collect::<Option<_>>().unwrap_or_default()
}

/// The seconds that all ranks waited for these, as far as known.
fn known_waits(ranks: &[RankSums], these: &[usize]) -> f64 {
    let of = |rank: &RankSums| these.iter().filter_map(|&other| *rank.waits.seconds.get(other)?).sum::<f64>();
    ranks.iter().map(of).sum()
}

/// The first cause that explains half of the difference. The order matters: a loader without workers computes, and a computing
/// thread may have to wait for its processor.
fn cause(slow: &Shares, fast: &Shares) -> Cause {
    let half = (fast.waited - slow.waited) / 2.0;
    let explains = |part: fn(&Shares) -> f64| part(slow) - part(fast) >= half;
    if explains(|of| of.loading) {
        Cause::Loader
    } else if explains(|of| of.queued) {
        Cause::Processor
    } else if explains(|of| of.running) {
        Cause::Computing
    } else {
        Cause::Other
    }
}

/// Fractions of a rank's time.
#[derive(Clone, Copy, Debug)]
struct Shares {
    waited: f64,
    loading: f64,
    running: f64,
    queued: f64,
}

impl Shares {
    fn of(sums: &Sums) -> Self {
        let part = |time: f64| (time / sums.wall.max(f64::EPSILON)).clamp(0.0, 1.0);
        let Sums { waited, loading, running, queued, .. } = *sums;
        Shares { waited: part(waited), loading: part(loading), running: part(running), queued: part(queued) }
    }

    /// The medians over some of the ranks.
    fn typical(shares: &[Shares], of: &[usize]) -> Self {
        let median = |part: fn(&Shares) -> f64| median(of.iter().map(|&rank| part(&shares[rank])));
        Shares {
            waited: median(|of| of.waited),
            loading: median(|of| of.loading),
            running: median(|of| of.running),
            queued: median(|of| of.queued),
        }
    }
}

/// The upper median of an even number of values; 0 if there are none.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

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

    /// A rank's 10 s: seconds of waiting, loading, running on a processor and waiting for one.
    pub(crate) fn span([waited, loading, running, queued]: [f64; 4]) -> RankSums {
        let sums = Sums { wall: 10.0, waited, waits: 100, loading, running, queued };
        RankSums { host: "node1".into(), sums, waits: Waits::default() }
    }

    fn judged(ranks: &[[f64; 4]]) -> Option<(Vec<usize>, Cause)> {
        let ranks: Vec<RankSums> = ranks.iter().map(|numbers| span(*numbers)).collect();
        judge(&ranks).map(|finding| (finding.ranks, finding.cause))
    }

    #[test]
    fn names_the_rank_that_waits_least_and_what_it_does_instead() {
        let fast = [6.0, 0.1, 3.8, 0.0];
        for (slow, cause) in [
            ([0.1, 6.0, 3.8, 0.0], Cause::Loader),
            ([0.1, 6.0, 9.8, 0.0], Cause::Loader), // without workers: it computes while it loads
            ([0.1, 0.1, 9.7, 0.0], Cause::Computing),
            ([0.1, 0.1, 3.8, 5.9], Cause::Processor),
            ([0.1, 0.1, 3.8, 0.0], Cause::Other),
        ] {
            assert_eq!(judged(&[fast, fast, slow, fast]), Some((vec![2], cause)), "{slow:?}");
            assert_eq!(judged(&[slow, fast]), Some((vec![0], cause)), "{slow:?}");
        }
    }

    #[test]
    fn names_all_ranks_of_a_slow_node_but_never_more_than_half() {
        let (fast, slow) = ([5.0, 0.0, 5.0, 0.0], [0.2, 0.0, 9.8, 0.0]);
        assert_eq!(judged(&[fast, fast, slow, slow]), Some((vec![2, 3], Cause::Computing)));
        assert_eq!(judged(&[fast, slow, slow, slow]), None);
    }

    #[test]
    fn where_arrivals_are_known_names_only_ranks_for_which_others_waited() {
        let with = |waits: [[f64; 3]; 3]| {
            let mut ranks = [[6.0, 0.0, 4.0, 0.0], [6.0, 0.0, 4.0, 0.0], [0.0, 0.0, 10.0, 0.0]].map(span);
            ranks.iter_mut().zip(waits).for_each(|(rank, seconds)| rank.waits.seconds = seconds.map(Some).into());
            judge(&ranks).map(|finding| (finding.ranks, finding.waited))
        };
        let late = with([[0.0, 0.1, 5.8], [0.2, 0.0, 5.7], [0.0; 3]]);
        assert_eq!(late, Some((vec![2], vec![5.8, 5.7, 0.0])));
        assert_eq!(with([[0.0, 4.0, 1.0], [5.0, 0.0, 1.0], [0.0; 3]]), None);
    }

    #[test]
    fn where_only_each_host_knows_its_arrivals_what_it_knows_counts() {
        let (fast, slow) = ([6.0, 0.0, 4.0, 0.0], [0.0, 0.0, 10.0, 0.0]);
        let with = |of_own_host: f64| {
            let mut ranks = [fast, slow, fast, fast].map(span);
            // Ranks 0 and 1 are on one host, 2 and 3 on another.
            ranks[0].waits.seconds = vec![Some(0.0), Some(5.8), None, None];
            ranks[1].waits.seconds = vec![Some(0.0), Some(0.0), None, None];
            ranks[2].waits.seconds = vec![None, None, Some(0.0), Some(of_own_host)];
            ranks[3].waits.seconds = vec![None, None, Some(of_own_host), Some(0.0)];
            judge(&ranks).map(|finding| (finding.ranks, finding.waited))
        };
        assert_eq!(with(0.1), Some((vec![1], vec![])));
        assert_eq!(with(5.5), None);
    }

    #[test]
    fn blames_nobody_where_differences_are_noise() {
        for ranks in [
            vec![[0.0; 4]; 4],
            vec![[5.0, 0.0, 5.0, 0.0]; 4],                    // a slow network
            vec![[2.0, 0.0, 8.0, 0.0], [4.0, 0.0, 6.0, 0.0]], // both wait: each is late at times
            vec![[0.1, 0.0, 9.9, 0.0], [0.9, 0.0, 9.1, 0.0]], // little is lost
            vec![[0.1, 0.0, 5.0, 4.9], [3.0, 0.0, 5.0, 2.0]], // more ranks than cores
            vec![[0.1, 0.0, 2.5, 7.0], [5.0, 0.0, 2.5, 2.5], [5.0, 0.0, 2.5, 2.5]],
            vec![[0.0, 0.0, 9.9, 0.0]],
            vec![],
        ] {
            assert_eq!(judged(&ranks), None, "{ranks:?}");
        }
    }

    #[test]
    fn says_that_all_ranks_starve_only_where_none_is_late() {
        let starving = [0.5, 6.0, 3.5, 0.0];
        assert_eq!(judged(&[starving; 2]), Some((vec![], Cause::Loader)));
        assert_eq!(judged(&[[0.5, 2.0, 7.5, 0.0]; 2]), None);
        let (fast, slow) = ([5.0, 3.5, 1.5, 0.0], [0.1, 8.4, 1.5, 0.0]);
        assert_eq!(judged(&[fast, slow, fast]), Some((vec![1], Cause::Loader)));
    }

    #[test]
    fn prints_ranks_numbers_and_advice() {
        let ranks = [[6.0, 0.0, 4.0, 0.0], [6.0, 0.0, 4.0, 0.0], [0.0, 6.0, 4.0, 0.0]].map(span);
        let finding = judge(&ranks).unwrap();
        assert_eq!(
            finding.to_string(),
            "rank 2 on node1 is late: the other ranks waited for it for 60 % of the last 10 s; it took 2.5 times as long as the \
             others between collectives, most of that for batches; give its loader more workers, or cache its samples"
        );
        let two = Finding { ranks: vec![2, 3], hosts: vec!["a".into(), "a".into()], times: 1e9, ..finding.clone() };
        assert!(
            two.to_string().starts_with("ranks 2 and 3 on a are late: the other ranks waited for them for 60 %"),
            "{two}"
        );
        assert!(two.to_string().contains("each took more than 100 times as long"), "{two}");
        let apart = Finding { ranks: vec![2, 5], hosts: vec!["a".into(), "b".into()], ..finding.clone() };
        assert_eq!(apart.who(), "ranks 2 on a and 5 on b");
        let many = Finding { ranks: (0..6).collect(), hosts: vec!["a".into(); 6], ..finding.clone() };
        assert_eq!(many.who(), "ranks 0, 1, 2, 3 and 2 more on a");
        let all = Finding { ranks: vec![], hosts: vec![], ..finding };
        assert_eq!(
            all.to_string(),
            "the loaders are too slow: the ranks waited for batches for 60 % of the last 10 s; use more loader workers, or cache \
             the samples"
        );
    }
}
