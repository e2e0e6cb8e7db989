//! Grades `resume`: a training that is never stopped, two that are stopped in the middle of epochs and go on with other numbers of ranks,
//! and one that is stopped at the end of an epoch. Overflows come at given places of an epoch's order: on two ranks at once, one after
//! another, and at a scale that has grown.

use lockstep_grading::{Claim, Runner, Verdict, counted, explain, joined};
use serde::{Deserialize, Serialize};

/// The processes; a start uses the first ones.
const PROCESSES: usize = 4;
const SCALE: f64 = 65536.0;

#[derive(Clone, Debug, Serialize)]
struct Job {
    epochs: u64,
    windows: usize,
    batch: usize,
    growth_interval: u64,
    warmup: u64,
    seed: u64,
    /// Epoch, place in its order, and the largest scale at which the window there does not overflow.
    loud: Vec<(u64, usize, f64)>,
    /// The number of ranks, and the batches until the stop.
    starts: Vec<(usize, Option<usize>)>,
}

/// A batch of one rank.
#[derive(Clone, Debug, Deserialize)]
struct Batch {
    epoch: u64,
    windows: Vec<usize>,
    scale: f64,
    rate: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Done {
    starts: Vec<Vec<Batch>>,
    orders: Vec<Vec<usize>>,
    rates: Vec<f64>,
}

/// A batch of the training that is never stopped.
struct Expected {
    epoch: u64,
    /// Its place in the epoch's order.
    at: usize,
    windows: Vec<usize>,
    scale: f64,
    /// The steps before it.
    steps: u64,
    overflows: bool,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Overflows: epoch, batch, place in it, and the largest scale without one. The last of five batches has fewer windows than some starts ranks.
    let mut job = |starts: &[(usize, Option<usize>)], loud: &[(u64, usize, Option<usize>, f64)]| {
        let (windows, batch) = (random.below(25..27), 6);
        let mut place = |within: Option<usize>| within.unwrap_or_else(|| random.below(0..batch));
        let loud = loud.iter().map(|(epoch, number, within, most)| (*epoch, number * batch + place(*within), *most));
        let loud = loud.collect();
        let seed = random.below(0..1000) as u64;
        Job { epochs: 2, windows, batch, growth_interval: 3, warmup: 3, seed, loud, starts: starts.to_vec() }
    };
    let (half, low) = (SCALE / 2.0, SCALE / 16.0);
    let jobs = [
        job(&[(2, None)], &[(0, 2, None, half), (1, 1, None, half)]),
        job(
            &[(3, Some(2)), (2, Some(2)), (1, Some(3)), (4, None)],
            &[(0, 1, Some(0), half), (0, 1, Some(5), half), (1, 3, None, SCALE)],
        ),
        job(&[(1, Some(2)), (4, Some(3)), (2, None)], &[(0, 1, None, low), (0, 2, None, low), (0, 3, None, low)]),
        job(&[(2, Some(5)), (3, None)], &[(0, 2, None, half)]),
    ];
    let outputs = runner.call::<_, Done>(PROCESSES, &jobs).map_err(|error| {
        explain(error, |finding| {
            finding.ranks_wait().then(|| {
                "some ranks wait for others in a batch, or in the exchange of overflows: all ranks train each batch together, even a rank \
                 without windows, and in each batch all exchange whether a gradient has overflowed"
                    .into()
            })
        })
    })?;
    jobs.iter().enumerate().try_for_each(|(number, job)| {
        let ranks: Vec<&Done> = outputs.all(number).collect();
        check(job, &ranks)
    })
}

/// The batches of the training that is never stopped.
fn uninterrupted(job: &Job, orders: &[Vec<usize>]) -> Vec<Expected> {
    let (mut scale, mut steps, mut clean, mut all) = (SCALE, 0, 0, Vec::new());
    for (epoch, order) in (0..).zip(orders) {
        for (number, windows) in order.chunks(job.batch).enumerate() {
            let at = number * job.batch;
            let here = |place: usize| (at..at + windows.len()).contains(&place);
            let overflows = job.loud.iter().any(|(of, place, most)| *of == epoch && here(*place) && scale > *most);
            all.push(Expected { epoch, at, windows: windows.to_vec(), scale, steps, overflows });
            if overflows {
                (scale, clean) = (scale / 2.0, 0);
            } else {
                (steps, clean) = (steps + 1, clean + 1);
            }
            if clean == job.growth_interval {
                (scale, clean) = (2.0 * scale, 0);
            }
        }
    }
    all
}

/// One start of a job, and what the starts before it have trained.
struct Start<'a> {
    job: &'a Job,
    number: usize,
    all: &'a [Expected],
    done: &'a Done,
    /// How many batches the starts before this one have trained.
    before: usize,
}

fn check(job: &Job, ranks: &[&Done]) -> anyhow::Result<()> {
    let all = uninterrupted(job, &ranks[0].orders);
    let mut before = 0;
    for (number, (members, until)) in job.starts.iter().enumerate() {
        let start = Start { job, number, all: &all, done: ranks[0], before };
        let lists: Vec<&[Batch]> = ranks[..*members].iter().map(|done| &*done.starts[number]).collect();
        let lengths: Vec<usize> = lists.iter().map(|list| list.len()).collect();
        Claim::that(
            lengths.iter().all(|length| *length == lengths[0]),
            "snapshots of the same batch on all ranks",
            format!("by rank, batches before the newest snapshot: {}", joined(&lengths, ", ")),
        )
        .given(start.described(0))
        .verdict(Verdict::RanksDisagree)
        .or_fail("all ranks call `save`, after the same batches")?;
        for of in 0..lengths[0] {
            let batch: Vec<&Batch> = lists.iter().map(|list| &list[of]).collect();
            start.check_batch(of, &batch)?;
        }
        before += lengths[0];
        let expected = until.unwrap_or(all.len() - start.before);
        Claim::that(lengths[0] == expected, counted(expected, "batch"), counted(lengths[0], "batch"))
            .given(start.described(lengths[0]))
            .diagnose_if(
                until.is_some(),
                "batches were trained after the newest snapshot and are lost: save after each batch",
            )
            .or_fail("the training ends before its last batch")?;
    }
    Ok(())
}

impl Start<'_> {
    fn described(&self, batch: usize) -> String {
        let Job { windows, batch: size, epochs, growth_interval, starts, .. } = self.job;
        let start = |(ranks, until): &(usize, Option<usize>)| match until {
            Some(until) => format!("{}, stopped after {}", counted(*ranks, "rank"), counted(*until, "batch")),
            None => format!("{}, to the end", counted(*ranks, "rank")),
        };
        let starts = joined(&starts.iter().map(start).collect::<Vec<_>>(), "; ");
        format!(
            "{epochs} epochs of {windows} windows in batches of {size}, growth interval {growth_interval}; starts: {starts}. This is batch {} of \
             start {}, batch {} of all",
            batch + 1,
            self.number + 1,
            self.before + batch + 1
        )
    }

    fn check_batch(&self, number: usize, ranks: &[&Batch]) -> anyhow::Result<()> {
        let next = self.before + number;
        let Some(expected) = self.all.get(next) else {
            return Claim::that(false, format!("{} batches", self.all.len()), "one more")
                .given(self.described(number))
                .or_fail("the training goes on after its last batch");
        };
        self.check_agreement(number, ranks)?;
        self.check_windows(number, expected, ranks)?;
        self.check_scale(number, expected, ranks[0].scale)?;
        self.check_rate(number, expected, ranks[0].rate)
    }

    fn check_agreement(&self, number: usize, ranks: &[&Batch]) -> anyhow::Result<()> {
        let scales: Vec<f64> = ranks.iter().map(|batch| batch.scale).collect();
        let rates: Vec<String> = ranks.iter().map(|batch| rate(batch.rate)).collect();
        let one_overflow = "an overflow on one rank counts on all, since gradients are averaged: exchange it, so that all ranks leave out \
             the step";
        Claim::that(
            ranks.iter().all(|batch| batch.rate.is_some() == ranks[0].rate.is_some()),
            "a step on all ranks, or on none",
            format!("by rank: {}", joined(&rates, ", ")),
        )
        .given(self.described(number))
        .verdict(Verdict::RanksDisagree)
        .or_fail(one_overflow)?;
        Claim::that(
            scales.iter().all(|scale| *scale == scales[0]),
            "the same scale on all ranks",
            format!("by rank: {}", joined(&scales, ", ")),
        )
        .given(self.described(number))
        .verdict(Verdict::RanksDisagree)
        .or_fail(one_overflow)?;
        Claim::that(
            rates.iter().all(|rate| *rate == rates[0]),
            "the same learning rate on all ranks",
            format!("by rank: {}", joined(&rates, ", ")),
        )
        .given(self.described(number))
        .verdict(Verdict::RanksDisagree)
        .or_fail("the schedule must depend only on what is the same on all ranks")
    }

    fn check_windows(&self, number: usize, expected: &Expected, ranks: &[&Batch]) -> anyhow::Result<()> {
        let (order, resumed) = (&self.done.orders[expected.epoch as usize], self.number > 0 && number == 0);
        let shares: Vec<usize> = ranks.iter().map(|batch| batch.windows.len()).collect();
        let mut found: Vec<usize> = ranks.iter().flat_map(|batch| batch.windows.clone()).collect();
        found.sort_unstable();
        let (trained, mut once) = (found.len(), found.clone());
        once.dedup();
        let of = |windows: &[usize]| {
            let mut sorted = windows.to_vec();
            sorted.sort_unstable();
            sorted
        };
        let right = of(&expected.windows);
        let next = self.before + number;
        let same_epoch = ranks.iter().all(|batch| batch.epoch == expected.epoch);
        let place = once.iter().filter_map(|window| order.iter().position(|other| other == window)).min();
        let previous = self.number.checked_sub(1).map_or(1, |last| self.job.starts[last].0);
        let own = expected.at / previous * ranks.len();
        let is_at = |at: usize| resumed && place == Some(at);
        Claim::that(
            trained == once.len(),
            "each window on one rank",
            format!("{trained} windows on all ranks, {} of them different", once.len()),
        )
        .given(self.described(number))
        .or_fail("ranks train with the same windows: each window of the batch belongs to one rank")?;
        Claim::that(
            same_epoch && found == right,
            format!("the windows {}", joined(&right, ", ")),
            format!("the windows {}", joined(&found, ", ")),
        )
        .given(self.described(number))
        .diagnose_if(
            resumed && ranks[0].scale == SCALE && expected.scale != SCALE && found == of(&self.all[0].windows),
            "the training begins again: it does not read the snapshot",
        )
        .diagnose_if(
            resumed && expected.at == 0 && expected.epoch.checked_sub(1) == Some(ranks[0].epoch),
            "the snapshot has all batches of an epoch, and that epoch is trained again: begin the next one",
        )
        .diagnose_if(
            !same_epoch && expected.windows.len() < self.job.batch && ranks[0].epoch == expected.epoch + 1,
            "the last batch of the epoch is left out: it has fewer windows, and they count, too",
        )
        .diagnose_if(!same_epoch, format!("this is epoch {}, not {}", ranks[0].epoch, expected.epoch))
        .diagnose_if(
            !resumed && next.checked_sub(1).is_some_and(|last| self.all[last].overflows && found == of(&self.all[last].windows)),
            "a batch that has overflowed is trained with again: its step is left out, and the next batch follows",
        )
        .diagnose_if(
            !resumed && expected.at == 0 && place.is_some_and(|place| place > 0),
            "the epoch begins in the middle: the position is that of an epoch before, and each one begins at 0",
        )
        .diagnose_if(is_at(0) && expected.at > 0, "the epoch begins again: the windows before the stop are trained with twice")
        .diagnose_if(
            is_at(own) && own != expected.at,
            "the position counts the windows of one rank: with another number of ranks that is another place",
        )
        .diagnose_if(
            place.is_some_and(|place| place < expected.at),
            "windows are trained with again that the snapshot's model has seen",
        )
        .diagnose_if(
            place.is_some_and(|place| place >= expected.at + expected.windows.len()),
            "windows are left out: the snapshot's position is beyond what its model has seen",
        )
        .diagnose_if(
            once.iter().all(|window| right.contains(window)),
            "windows of the batch are left out: the ranks' shares together must be the whole batch, also if they are not equal",
        )
        .or_fail("the next windows of the epoch's order belong to this batch, as many as all ranks together take")?;
        let (least, most) = (shares.iter().min(), shares.iter().max());
        Claim::that(
            most.zip(least).is_some_and(|(most, least)| most - least <= 1),
            "shares that differ by one window at most",
            format!("by rank: {}", joined(&shares, ", ")),
        )
        .given(self.described(number))
        .or_fail("the others wait for a rank with more windows: divide the batch as equally as possible")
    }

    fn check_scale(&self, number: usize, expected: &Expected, found: f64) -> anyhow::Result<()> {
        let resumed = self.number > 0 && number == 0;
        let last = (self.before + number).checked_sub(1).and_then(|last| self.all.get(last));
        let in_start = last.filter(|_| number > 0);
        let clean_here = (number as u64) >= self.job.growth_interval;
        Claim::that(found == expected.scale, format!("a scale of {}", expected.scale), found.to_string())
            .given(self.described(number))
            .diagnose_if(
                resumed && found != SCALE && last.is_some_and(|last| last.overflows && found == last.scale),
                "this is the scale from before the overflow: the snapshot is saved before the scale changes",
            )
            .diagnose_if(
                resumed && found == SCALE,
                "the scale begins again: it is not taken from the snapshot, or is saved there before it changes",
            )
            .diagnose_if(
                in_start.is_some_and(|last| last.overflows && found == last.scale),
                "the scale stays as it is after an overflow: halve it",
            )
            .diagnose_if(
                last.is_some_and(|last| last.overflows && found < expected.scale),
                "the scale is less than half of the one that overflowed: it is halved once, on however many ranks it overflows",
            )
            .diagnose_if(
                expected.at == 0 && found == SCALE,
                "the scale begins again with the epoch: it goes on, as the count of steps since the last overflow does",
            )
            .diagnose_if(
                last.is_some_and(|last| found == last.scale && found == SCALE && expected.scale > SCALE),
                "the scale does not grow: it may rise above the first one, and the steps since the last overflow belong in the snapshot",
            )
            .diagnose_if(
                last.is_some_and(|last| found == last.scale && expected.scale > found)
                    && expected.at < self.job.batch * self.job.growth_interval as usize
                    && expected.epoch > 0
                    && number as u64 >= self.job.growth_interval,
                "the scale does not grow: double it after `growth_interval` steps without an overflow, which are counted on from epoch to epoch",
            )
            .diagnose_if(
                in_start.is_some_and(|last| last.overflows && found > last.scale),
                "the scale grows after an overflow: halve it",
            )
            .diagnose_if(
                last.is_some_and(|last| found == last.scale && expected.scale > found) && !clean_here && self.number > 0,
                "the scale grows too late: the number of steps since the last overflow belongs in the snapshot, too",
            )
            .diagnose_if(
                last.is_some_and(|last| found == last.scale && expected.scale > found),
                "the scale does not grow: double it after `growth_interval` steps without an overflow",
            )
            .diagnose_if(
                in_start.is_some_and(|last| !last.overflows && found == 2.0 * last.scale),
                "the scale grows too early: an overflow, and each growth, begins the count again",
            )
            .or_fail("the scale is halved after an overflow, and doubled after `growth_interval` steps without one")
    }

    fn check_rate(&self, number: usize, expected: &Expected, found: Option<f64>) -> anyhow::Result<()> {
        let of = |steps: u64| self.done.rates.get(steps as usize).copied();
        let right = of(expected.steps).filter(|_| !expected.overflows);
        let is = |steps: u64| found.is_some() && found == of(steps);
        Claim::that(found == right, rate(right), rate(found))
            .given(self.described(number))
            .diagnose_if(
                right.is_none(),
                "the optimizer takes a step with gradients that have overflowed: leave this step out, on all ranks",
            )
            .diagnose_if(found.is_none(), "no step follows, although all gradients are finite")
            .diagnose_if(
                self.number > 0 && is(expected.steps - self.all[self.before].steps),
                "the schedule begins again with this start: the number of steps belongs in the snapshot, too",
            )
            .diagnose_if(
                is((self.before + number) as u64),
                "this is the learning rate after so many batches: one whose step was left out does not count",
            )
            .diagnose_if(
                is(expected.steps + 1),
                "this is the learning rate of the next step: `steps` are those before this one",
            )
            .or_fail(format!("the number of steps before this one is {}", expected.steps))
    }
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "no step".to_owned(), |rate| format!("a step with learning rate {rate:.4}"))
}
