//! A rank for which all others wait at this moment, while it lasts.

use super::arrivals::Awaited;
use super::judge::{Cause, Finding};
use super::watch::Reading;

/// All others must have waited for the rank for this many seconds. It is reported again when they have waited twice as long.
const STALL: f64 = 10.0;

/// Follows from reading to reading for whom the ranks wait.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    before: Option<Reading>,
    /// The wait after which the present stall is reported next, in seconds.
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

/// The rank for which all others wait while it waits for nobody, and the shortest of their waits. Ranks on other hosts do not see for
/// whom they wait; if all but one wait, it is for that one.
fn awaited(now: &Reading) -> Option<(usize, f64)> {
    let mut idle = (0..now.len()).filter(|&rank| now[rank].waits.now.is_none());
    let (Some(late), None) = (idle.next(), idle.next()) else { return None };
    let waits: Vec<(Awaited, f64)> = now.iter().filter_map(|span| span.waits.now).collect();
    let all_for_it = waits.iter().all(|(of, _)| [Awaited::Rank(late), Awaited::OtherHost].contains(of));
    let shortest = waits.iter().map(|(_, time)| *time).reduce(f64::min).filter(|_| all_for_it);
    shortest.map(|time| (late, time))
}

/// Returns true if every wait has gone on since the reading before: a rank that has stopped publishes no end of its own.
fn grows(now: &Reading, before: &Reading) -> bool {
    let longer = |now: Option<(Awaited, f64)>, before: Option<(Awaited, f64)>| match (now, before) {
        (Some((awaited, time)), Some((former, less))) => awaited == former && time > less,
        (None, None) => true,
        _ => false,
    };
    now.len() == before.len() && now.iter().zip(before).all(|(now, before)| longer(now.waits.now, before.waits.now))
}

/// What the rank did between the readings. Its own waits for batches count only when they have ended.
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
    use super::super::judge::tests::span;
    use super::*;

    const BEYOND: Option<Awaited> = Some(Awaited::OtherHost);

    fn on(rank: usize) -> Option<Awaited> {
        Some(Awaited::Rank(rank))
    }

    /// Ranks that wait for these, all since the beginning; the rest of the time they run.
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
