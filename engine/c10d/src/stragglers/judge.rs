//! Finds late ranks from the sums of all ranks over one interval, as a pure function.

use std::fmt;

use super::clock::{Sums, Waits};

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
