//! The curves of a run: numbers by step, of each attempt and each rank, from its history. Pure; [`super::page`] draws them.
//!
//! Training goes through places: a place is the number of steps that are done, counted through all epochs. Steps of a later attempt have
//! the places of those that they repeat.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_contract::events::{AgentEvent, Event};
use serde::Serialize;

use crate::report::count;
use crate::report::history::{Attempt, Generation, History};
use crate::report::timeline::MarkKind;

/// A job that has written nothing for this many seconds, and for this many times its usual step, does not run any more.
const SILENT: (f64, f64) = (60.0, 10.0);

/// The curves of a run.
#[derive(Debug, Default)]
pub(crate) struct Curves {
    /// In their order.
    pub(crate) attempts: Vec<AttemptCurves>,
    /// The epochs that have steps, each with the place before its first one.
    pub(crate) epochs: Vec<(u64, u64)>,
    /// The time of the first event, in seconds since the Unix epoch.
    pub(crate) began: f64,
    /// Of the last event, in seconds since then.
    pub(crate) ended: f64,
    pub(crate) state: State,
    /// What makes the curves incomplete.
    pub(crate) notes: Vec<String>,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Its last event is recent.
    #[default]
    Running,
    /// All launchers have ended, the worst with this code.
    Ended(i32),
    /// There is no end, and no recent event.
    Silent,
}

/// Ranks that ran together, until one of them failed or all had finished.
#[derive(Debug, Default)]
pub(crate) struct AttemptCurves {
    /// From 0.
    pub(crate) number: usize,
    /// Sorted; those that have written events.
    pub(crate) ranks: Vec<RankCurve>,
    /// How many were started.
    pub(crate) size: usize,
    pub(crate) evaluations: Vec<Evaluation>,
    pub(crate) marks: Vec<PlacedMark>,
    /// The first and the last place of the steps that an earlier attempt had done.
    pub(crate) repeated: Option<(u64, u64)>,
    /// Seconds since the run's first event.
    pub(crate) began: f64,
    pub(crate) ended: f64,
}

/// The steps of a rank.
#[derive(Debug)]
pub(crate) struct RankCurve {
    pub(crate) rank: usize,
    pub(crate) steps: Vec<Sample>,
    /// How it failed.
    pub(crate) failed: Option<String>,
}

/// A step of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) place: u64,
    t: f64,
    epoch: u64,
    step: u64,
    loss: f64,
    learning_rate: Option<f64>,
    samples: u64,
    /// Since the step before it, or the epoch's beginning; unknown of a process's first step.
    seconds: Option<f64>,
    repeated: bool,
}

/// An evaluation on what is held out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    pub(crate) place: u64,
    t: f64,
    pub(crate) epoch: u64,
    pub(crate) loss: f64,
    pub(crate) accuracy: f64,
    samples: u64,
}

/// An event at a place.
#[derive(Clone, Debug)]
pub(crate) struct PlacedMark {
    pub(crate) place: u64,
    t: f64,
    pub(crate) rank: usize,
    pub(crate) kind: MarkKind,
    pub(crate) detail: String,
}

/// What a curve shows of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Loss,
    LearningRate,
    /// Samples a second.
    Speed,
}

/// A point of a curve: the mean of some values, and the extremes among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dot {
    /// The first and the last place for which it stands, and how many these are.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) places: u64,
    pub(crate) mean: f64,
    pub(crate) least: f64,
    pub(crate) greatest: f64,
    weight: f64,
}

impl Curves {
    /// Reads the history, at a time in seconds since the Unix epoch.
    pub(crate) fn of(history: &History<'_>, now: f64) -> Self {
        let places = Places::of(history);
        let (began, ended) = history.bounds();
        let mut generations: BTreeMap<Generation, Vec<&Attempt<'_>>> = BTreeMap::new();
        for attempt in &history.attempts {
            generations.entry(attempt.generation).or_default().push(attempt);
        }
        let mut curves = Curves {
            epochs: places.begins.iter().map(|(epoch, begins)| (*epoch, *begins)).collect(),
            began,
            ended: ended - began,
            ..Curves::default()
        };
        let mut furthest = None;
        for (number, attempts) in generations.into_values().enumerate() {
            let found = AttemptCurves::of(number, &attempts, &places, began, furthest);
            furthest = furthest.max(found.last_place());
            curves.attempts.push(found);
        }
        curves.state = curves.state_at(history, now - began);
        curves.notes = curves.doubts(&places);
        curves
    }

    fn state_at(&self, history: &History<'_>, now: f64) -> State {
        let end = |records: &Vec<(f64, &AgentEvent)>| match records.last() {
            Some((_, AgentEvent::Finished { code })) => Some(*code),
            _ => None,
        };
        // A node that was lost before has no end; those of the newest attempt count.
        let newest = history.attempts.iter().map(|attempt| attempt.generation).max();
        let last = history.attempts.iter().filter(|attempt| Some(attempt.generation) == newest);
        let nodes: BTreeSet<&str> = last.filter_map(|attempt| attempt.node).collect();
        let here = |node: &str| nodes.is_empty() || nodes.contains(node);
        let mut agents = history.agents.iter().filter(|(node, _)| here(node)).peekable();
        if agents.peek().is_some()
            && let Some(codes) = agents.map(|(_, records)| end(records)).collect::<Option<Vec<i32>>>()
        {
            return State::Ended(codes.into_iter().max().unwrap_or_default());
        }
        let mut pauses: Vec<f64> = self.samples().filter_map(|sample| sample.seconds).collect();
        pauses.sort_by(f64::total_cmp);
        let usual = pauses.get(pauses.len() / 2).copied().unwrap_or_default();
        if now - self.ended < SILENT.0.max(SILENT.1 * usual) { State::Running } else { State::Silent }
    }

    /// All steps of all ranks.
    fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.attempts.iter().flat_map(|attempt| &attempt.ranks).flat_map(|curve| &curve.steps)
    }

    /// The first and the last place that has something.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        let steps = self.samples().map(|sample| sample.place);
        let evaluations = self.attempts.iter().flat_map(|attempt| &attempt.evaluations).map(|found| found.place);
        let all = steps.chain(evaluations).map(|place| (place, place));
        all.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// All ranks that have steps.
    pub(crate) fn ranks(&self) -> BTreeSet<usize> {
        let curves = self.attempts.iter().flat_map(|attempt| &attempt.ranks);
        curves.filter(|curve| !curve.steps.is_empty()).map(|curve| curve.rank).collect()
    }

    fn doubts(&self, places: &Places) -> Vec<String> {
        let mut notes = Vec::new();
        let lengths: BTreeSet<u64> = places.declared.iter().copied().collect();
        if lengths.len() > 1 {
            let words: Vec<String> = lengths.iter().take(4).map(u64::to_string).collect();
            notes.push(format!(
                "epochs differ in their number of steps ({}): the number of ranks or the batch size changed",
                words.join(", ")
            ));
        }
        for attempt in &self.attempts {
            for curve in &attempt.ranks {
                let mut bad = curve.steps.iter().filter(|sample| !sample.loss.is_finite());
                if let Some(first) = bad.next() {
                    notes.push(format!(
                        "attempt {}, rank {}: the loss is {} at epoch {} step {}{}",
                        attempt.number,
                        curve.rank,
                        first.loss,
                        first.epoch,
                        first.step,
                        match bad.count() {
                            0 => String::new(),
                            more => format!(" and not finite at {}", count(more, "later step")),
                        }
                    ));
                }
            }
        }
        notes.truncate(MOST_NOTES);
        notes
    }

    /// All that the curves show, in order of time within each attempt, not thinned.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for attempt in &self.attempts {
            let first = rows.len();
            for curve in &attempt.ranks {
                rows.extend(curve.steps.iter().map(|sample| Row {
                    what: "step",
                    attempt: attempt.number,
                    rank: Some(curve.rank),
                    seconds: sample.t,
                    steps_done: sample.place,
                    epoch: Some(sample.epoch),
                    step: Some(sample.step),
                    loss: Some(sample.loss),
                    learning_rate: sample.learning_rate,
                    samples: Some(sample.samples),
                    samples_per_second: sample.speed(),
                    repeated: Some(sample.repeated),
                    ..Row::default()
                }));
            }
            rows.extend(attempt.evaluations.iter().map(|found| Row {
                what: "held out",
                attempt: attempt.number,
                seconds: found.t,
                steps_done: found.place,
                epoch: Some(found.epoch),
                loss: Some(found.loss),
                accuracy: Some(found.accuracy),
                samples: Some(found.samples),
                ..Row::default()
            }));
            rows.extend(attempt.marks.iter().map(|mark| Row {
                what: match mark.kind {
                    MarkKind::Snapshot => "snapshot",
                    MarkKind::Resumed => "resumed",
                    MarkKind::Restarting => "started from the beginning",
                    MarkKind::Died => "died",
                    _ => "fault",
                },
                attempt: attempt.number,
                rank: Some(mark.rank),
                seconds: mark.t,
                steps_done: mark.place,
                detail: &mark.detail,
                ..Row::default()
            }));
            rows[first..].sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        }
        rows
    }
}

/// Notes of a run that became nonsense end after this many.
const MOST_NOTES: usize = 20;

/// A line of the numbers as CSV and JSON. Fields that `what` does not have are empty.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Row<'a> {
    pub(crate) what: &'static str,
    attempt: usize,
    rank: Option<usize>,
    /// Since the run's first event.
    seconds: f64,
    steps_done: u64,
    epoch: Option<u64>,
    step: Option<u64>,
    loss: Option<f64>,
    learning_rate: Option<f64>,
    samples: Option<u64>,
    samples_per_second: Option<f64>,
    accuracy: Option<f64>,
    repeated: Option<bool>,
    pub(crate) detail: &'a str,
}

impl AttemptCurves {
    fn of(number: usize, attempts: &[&Attempt<'_>], places: &Places, began: f64, furthest: Option<u64>) -> Self {
        let times = attempts.iter().map(|attempt| (attempt.first() - began, attempt.last() - began));
        let (first, last) = times.fold((f64::INFINITY, 0.0_f64), |all, one| (all.0.min(one.0), all.1.max(one.1)));
        let size = attempts.iter().map(|attempt| attempt.rank).collect::<BTreeSet<_>>().len();
        let mut found = AttemptCurves { number, size, began: first, ended: last, ..AttemptCurves::default() };
        for attempt in attempts {
            found.add(attempt, places, began, furthest);
        }
        found.ranks.sort_by_key(|curve| curve.rank);
        found.evaluations.sort_by(|one, other| {
            (one.place, one.t).partial_cmp(&(other.place, other.t)).unwrap_or(std::cmp::Ordering::Equal)
        });
        // All ranks say the same of an evaluation, of where they resume, and of a snapshot in parts.
        found.evaluations.dedup_by_key(|found| (found.place, found.epoch, found.loss.to_bits()));
        found.marks.sort_by_key(|mark| (mark.kind, mark.place, mark.rank));
        found.marks.dedup_by(|one, other| {
            let of_all = [MarkKind::Resumed, MarkKind::Restarting, MarkKind::Snapshot];
            of_all.contains(&one.kind) && (one.kind, one.place) == (other.kind, other.place)
        });
        found
    }

    fn add(&mut self, attempt: &Attempt<'_>, places: &Places, began: f64, furthest: Option<u64>) {
        let mut curve = RankCurve { rank: attempt.rank, steps: Vec::new(), failed: None };
        let (mut before, mut place, mut resumed) = (None, None, false);
        for (t, event) in &attempt.records {
            let mark = |place, kind, detail| PlacedMark { place, t: t - began, rank: attempt.rank, kind, detail };
            match event {
                Event::Epoch { epoch, .. } => {
                    place.get_or_insert(places.before(*epoch, 0));
                    // What lies between two epochs is no step's time, and the first step's begins with the process.
                    before = before.map(|_| *t);
                }
                Event::Step { epoch, step, loss, samples, lr } => {
                    let here = places.before(*epoch, *step).saturating_add(1);
                    if curve.steps.is_empty() && !resumed && self.number > 0 {
                        let detail = format!("starts at epoch {epoch} step {step} without a snapshot");
                        self.marks.push(mark(here - 1, MarkKind::Restarting, detail));
                    }
                    let repeated = furthest.is_some_and(|furthest| here <= furthest);
                    if repeated {
                        let (from, to) = self.repeated.unwrap_or((here, here));
                        self.repeated = Some((from.min(here), to.max(here)));
                    }
                    curve.steps.push(Sample {
                        place: here,
                        t: t - began,
                        epoch: *epoch,
                        step: *step,
                        loss: *loss,
                        learning_rate: *lr,
                        samples: *samples,
                        seconds: before.map(|before: f64| t - before).filter(|seconds| *seconds > 0.0),
                        repeated,
                    });
                    (before, place) = (Some(*t), Some(here));
                }
                Event::Eval { epoch, accuracy, loss, samples } => {
                    let (epoch, accuracy, loss, samples) = (*epoch, *accuracy, *loss, *samples);
                    let place = place.unwrap_or(places.before(epoch, 0));
                    self.evaluations.push(Evaluation { place, t: t - began, epoch, loss, accuracy, samples });
                    before = before.map(|_| *t);
                }
                Event::Snapshot { epoch, step, path, .. } => {
                    let detail = format!("saved for epoch {epoch} step {step}: {path}");
                    self.marks.push(mark(places.before(*epoch, *step), MarkKind::Snapshot, detail));
                }
                Event::Resume { epoch, step, path } => {
                    let detail = format!("resumed at epoch {epoch} step {step} from {path}");
                    place = Some(places.before(*epoch, *step));
                    resumed = true;
                    self.marks.push(mark(places.before(*epoch, *step), MarkKind::Resumed, detail));
                }
                Event::Fault { message } => {
                    self.marks.push(mark(place.unwrap_or_default(), MarkKind::Fault, message.clone()));
                }
                _ => {}
            }
        }
        if let Some(end) = attempt.ended.filter(|end| end.is_failure()) {
            let detail = format!("rank {} {}", attempt.rank, end.manner());
            let place = place.unwrap_or_default();
            self.marks.push(PlacedMark {
                place,
                t: end.t - began,
                rank: attempt.rank,
                kind: MarkKind::Died,
                detail: detail.clone(),
            });
            curve.failed = Some(detail);
        }
        // The steps of a rank are in their order, unless its file was put together by hand.
        curve.steps.sort_by_key(|sample| sample.place);
        if !attempt.records.is_empty() {
            self.ranks.push(curve);
        }
    }

    fn last_place(&self) -> Option<u64> {
        self.ranks.iter().filter_map(|curve| curve.steps.last()).map(|sample| sample.place).max()
    }

    /// The first and the last place.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        let first = self.ranks.iter().filter_map(|curve| curve.steps.first()).map(|sample| sample.place).min()?;
        Some((first, self.last_place()?))
    }

    /// How it ended, in words; of the newest one, `newest` is the run's state.
    pub(crate) fn end(&self, newest: Option<State>) -> String {
        let failures: Vec<&str> = self.ranks.iter().filter_map(|curve| curve.failed.as_deref()).collect();
        let died = self.marks.iter().filter(|mark| mark.kind == MarkKind::Died).map(|mark| mark.detail.as_str());
        let all: BTreeSet<&str> = failures.into_iter().chain(died).collect();
        match (all.len(), newest) {
            (0, Some(State::Running)) => "still runs".into(),
            (0, Some(State::Ended(0))) => "finished".into(),
            (0, Some(State::Silent)) => "no more events".into(),
            (0, _) => "was stopped".into(),
            (1..=3, _) => all.into_iter().collect::<Vec<_>>().join("; "),
            (more, _) => {
                let first: Vec<&str> = all.into_iter().take(2).collect();
                format!("{}; and {} more", first.join("; "), more - 2)
            }
        }
    }

    /// The mean of the last values of its ranks.
    pub(crate) fn last(&self, quantity: Quantity) -> Option<f64> {
        self.dots(quantity, None).last().map(|dot| dot.mean)
    }

    /// A curve of one rank, or of all together, not thinned. What is not a number is left out.
    pub(crate) fn dots(&self, quantity: Quantity, rank: Option<usize>) -> Vec<Dot> {
        let mut dots: BTreeMap<u64, (Dot, usize)> = BTreeMap::new();
        let mut ranks = 0;
        for curve in self.ranks.iter().filter(|curve| rank.is_none_or(|rank| curve.rank == rank)) {
            let mut any = false;
            for sample in &curve.steps {
                let Some((value, weight)) = quantity.of(sample) else { continue };
                any = true;
                let new = Dot::new(sample.place, value, weight);
                let (dot, ranks) = dots.entry(sample.place).or_insert((Dot::new(sample.place, 0.0, 0.0), 0));
                if quantity == Quantity::Speed {
                    dot.mean += value;
                    (dot.least, dot.greatest, dot.weight) = (dot.mean, dot.mean, weight);
                } else if *ranks == 0 {
                    *dot = new;
                } else {
                    dot.join(&new);
                    dot.places = 1;
                }
                *ranks += 1;
            }
            ranks += usize::from(any);
        }
        // The speed of some ranks is not that of the job.
        let whole = |of: usize| quantity != Quantity::Speed || of >= ranks;
        dots.into_values().filter(|(_, of)| whole(*of)).map(|(dot, _)| dot).collect()
    }
}

impl Sample {
    fn speed(&self) -> Option<f64> {
        self.seconds.map(|seconds| self.samples as f64 / seconds)
    }
}

impl Quantity {
    /// A step's value, with its weight in a mean.
    fn of(self, sample: &Sample) -> Option<(f64, f64)> {
        let (value, weight) = match self {
            Quantity::Loss => (sample.loss, sample.samples.max(1) as f64),
            Quantity::LearningRate => (sample.learning_rate?, 1.0),
            Quantity::Speed => (sample.speed()?, sample.seconds?),
        };
        (value.is_finite() && weight.is_finite()).then_some((value, weight))
    }
}

impl Dot {
    fn new(place: u64, value: f64, weight: f64) -> Self {
        Dot { from: place, to: place, places: 1, mean: value, least: value, greatest: value, weight }
    }

    /// Where it is drawn.
    pub(crate) fn place(&self) -> f64 {
        f64::midpoint(self.from as f64, self.to as f64)
    }

    fn join(&mut self, other: &Dot) {
        let weight = self.weight + other.weight;
        // Each part first: a sum of huge values would be none.
        self.mean = self.mean * (self.weight / weight) + other.mean * (other.weight / weight);
        (self.least, self.greatest) = (self.least.min(other.least), self.greatest.max(other.greatest));
        self.weight = weight;
        self.places += other.places;
        self.to = self.to.max(other.to);
    }
}

/// At most this many dots of a curve whose axis has these ends: neighbours become one, with their mean and their extremes.
pub(crate) fn thinned(dots: &[Dot], (from, to): (f64, f64), most: usize) -> Vec<Dot> {
    let group = |dot: &Dot| {
        let part = (dot.from as f64 - from) / (to - from).max(1.0);
        ((part * most as f64) as usize).min(most - 1)
    };
    let mut thin: Vec<(usize, Dot)> = Vec::new();
    for dot in dots {
        match thin.last_mut() {
            Some((last, joined)) if *last == group(dot) => joined.join(dot),
            _ => thin.push((group(dot), *dot)),
        }
    }
    thin.into_iter().map(|(_, dot)| dot).collect()
}

/// Where each epoch begins.
#[derive(Debug, Default)]
struct Places {
    begins: BTreeMap<u64, u64>,
    /// The numbers of steps that ranks said an epoch has.
    declared: Vec<u64>,
    /// Steps are numbered through all epochs, as some programs do.
    through: bool,
}

impl Places {
    fn of(history: &History<'_>) -> Self {
        let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
        let mut steps: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut places = Places::default();
        for (_, event) in history.attempts.iter().flat_map(|attempt| &attempt.records) {
            match event {
                Event::Epoch { epoch, steps, .. } => {
                    let length = lengths.entry(*epoch).or_default();
                    *length = (*length).max(*steps);
                    places.declared.push(*steps);
                }
                Event::Step { epoch, step, .. } => {
                    let (least, most) = steps.entry(*epoch).or_insert((*step, *step));
                    (*least, *most) = ((*least).min(*step), (*most).max(*step));
                    let length = lengths.entry(*epoch).or_default();
                    *length = (*length).max(step.saturating_add(1));
                }
                _ => {}
            }
        }
        places.declared.sort_unstable();
        places.declared.dedup();
        let spans: Vec<&(u64, u64)> = steps.values().collect();
        places.through = spans.len() > 1 && spans.windows(2).all(|pair| pair[1].0 > pair[0].1);
        let typical = lengths.values().next().copied().unwrap_or_default();
        let (mut next, mut begins) = (0_u64, 0_u64);
        for (epoch, length) in lengths {
            // Epochs that other files had are as long as the first one here.
            begins = begins.saturating_add(epoch.saturating_sub(next).saturating_mul(typical));
            places.begins.insert(epoch, begins);
            begins = begins.saturating_add(length);
            next = epoch.saturating_add(1);
        }
        if places.through {
            places.begins = steps.iter().map(|(epoch, (least, _))| (*epoch, *least)).collect();
        } else if next > 0 {
            // A snapshot at the end of an epoch names the next one.
            places.begins.entry(next).or_insert(begins);
        }
        places
    }

    /// The place before a step.
    fn before(&self, epoch: u64, step: u64) -> u64 {
        if self.through {
            return if step == 0 { self.begins.get(&epoch).copied().unwrap_or_default() } else { step };
        }
        match self.begins.range(..=epoch).next_back() {
            Some((_, begins)) => begins.saturating_add(step),
            None => step,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_contract::events::AgentEvent;

    use super::*;
    use crate::report::testing::{
        FakeRun, NOON, ended, formed, restarting, resume, snapshot, start, started, two_nodes,
    };

    fn curves(run: &FakeRun) -> Curves {
        Curves::of(&History::of(&run.0), NOON + 9.4)
    }

    fn step(epoch: u64, step: u64, loss: f64, lr: Option<f64>) -> Event {
        Event::Step { epoch, step, loss, samples: 8, lr }
    }

    #[test]
    fn counts_steps_through_epochs_and_shows_what_was_repeated() {
        let curves = curves(&two_nodes());
        let extents: Vec<_> = curves.attempts.iter().map(|attempt| attempt.extent().unwrap()).collect();
        assert_eq!(extents, [(1, 15), (11, 24), (21, 40)]);
        let repeated: Vec<_> = curves.attempts.iter().map(|attempt| attempt.repeated).collect();
        assert_eq!(repeated, [None, Some((11, 15)), Some((21, 24))]);
        assert_eq!(curves.epochs[..2], [(0, 0), (1, 20)]);
        assert_eq!((curves.extent(), curves.state), (Some((1, 40)), State::Ended(0)), "the lost node has no end");
        let marks = |number: usize| {
            curves.attempts[number].marks.iter().map(|mark| (mark.kind, mark.place)).collect::<Vec<_>>()
        };
        assert_eq!(marks(0), [(MarkKind::Fault, 15), (MarkKind::Died, 15), (MarkKind::Snapshot, 10)]);
        assert_eq!(marks(1), [(MarkKind::Snapshot, 20), (MarkKind::Resumed, 10)]);
        assert_eq!(curves.attempts[0].end(None), "rank 1 ended by SIGKILL");
        assert_eq!([0, 1, 2].map(|number| curves.attempts[number].size), [4, 4, 2]);
        assert_eq!(curves.ranks().into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn means_weigh_samples_and_speeds_add_up() {
        let mut run = FakeRun::default();
        for (rank, loss) in [(0, 1.0), (1, 3.0)] {
            run = run.rank(rank, 0, 0.0, start(2, 1));
            for at in 0..4 {
                run = run.rank(rank, 0, 1.0 + 0.5 * at as f64, step(0, at, loss, Some(0.1 * (at + 1) as f64)));
            }
        }
        let attempt = &curves(&run).attempts[0];
        let losses = attempt.dots(Quantity::Loss, None);
        assert!(losses.iter().all(|dot| (dot.mean, dot.least, dot.greatest) == (2.0, 1.0, 3.0)), "{losses:?}");
        assert_eq!(attempt.dots(Quantity::Loss, Some(1))[0].mean, 3.0);
        let speeds = attempt.dots(Quantity::Speed, None);
        assert_eq!((speeds.len(), speeds[0].mean, speeds[0].from), (3, 32.0, 2));
        assert!((attempt.last(Quantity::LearningRate).unwrap() - 0.4).abs() < 1e-9);
    }

    #[test]
    fn thins_out_and_keeps_extremes() {
        let dot = |place: u64, value: f64| Dot::new(place, value, 1.0);
        let mut dots: Vec<Dot> = (0..100_000).map(|place| dot(place, 1.0)).collect();
        (dots[777], dots[99_999]) = (dot(777, 50.0), dot(99_999, -3.0));
        let thin = thinned(&dots, (0.0, 99_999.0), 400);
        assert!(thin.len() <= 400 && thin.windows(2).all(|pair| pair[0].to < pair[1].from));
        assert_eq!(thin.iter().map(|dot| dot.places).sum::<u64>(), 100_000);
        let (least, greatest) =
            thin.iter().fold((0.0_f64, 0.0_f64), |all, dot| (all.0.min(dot.least), all.1.max(dot.greatest)));
        assert_eq!((least, greatest), (-3.0, 50.0));
        assert_eq!(thinned(&dots[..300], (0.0, 300.0), 400), dots[..300]);
        assert_eq!(thinned(&dots[..1], (5.0, 5.0), 400).len(), 1);
    }

    #[test]
    fn numbers_that_are_none_are_said_and_not_drawn() {
        let run = FakeRun::default().rank(0, 0, 1.0, step(0, 0, 2.0, None));
        let run = run.rank(0, 0, 2.0, step(0, 1, f64::NAN, None)).rank(0, 0, 3.0, step(0, 2, f64::INFINITY, None));
        let curves = curves(&run);
        assert_eq!(curves.attempts[0].dots(Quantity::Loss, None).len(), 1);
        assert!(curves.attempts[0].dots(Quantity::LearningRate, None).is_empty());
        assert_eq!(
            curves.notes,
            ["attempt 0, rank 0: the loss is NaN at epoch 0 step 1 and not finite at 1 later step"]
        );
    }

    #[test]
    fn places_survive_any_numbers() {
        let huge = FakeRun::default().rank(0, 0, 1.0, step(u64::MAX, u64::MAX, 1.0, None)).rank(
            0,
            0,
            f64::NAN,
            step(3, 1, 1.0, None),
        );
        let curves_of = curves(&huge.rank(0, 0, 2.0, Event::Epoch { epoch: 7, steps: u64::MAX, batch_size: 0 }));
        assert!(curves_of.extent().is_some() && curves_of.rows().len() == 2);
        // Steps that are numbered through all epochs are taken as they are.
        let through =
            (0..40).fold(FakeRun::default(), |run, at| run.rank(0, 0, at as f64, step(at / 10, at, 1.0, None)));
        assert_eq!(curves(&through).extent(), Some((1, 40)));
        // A job that resumed in a folder of its own begins where its epoch does.
        let later = FakeRun::default().rank(0, 0, 1.0, Event::Epoch { epoch: 5, steps: 10, batch_size: 8 });
        assert_eq!(curves(&later.rank(0, 0, 2.0, step(5, 3, 1.0, None))).extent(), Some((54, 54)));
        assert!(curves(&FakeRun::default()).extent().is_none());
    }

    #[test]
    fn a_run_without_recent_events_is_not_running() {
        let run = FakeRun::default().agent("a", 0.0, formed(0, 0, 0, 1)).agent("a", 0.1, started(0, 0, 7));
        let at = |run: &FakeRun, seconds| Curves::of(&History::of(&run.0), NOON + seconds).state;
        assert_eq!([at(&run, 1.0), at(&run, 100.0)], [State::Running, State::Silent]);
        let run = run.agent("a", 2.0, ended(0, 0, 7, 3, false)).agent("a", 2.1, AgentEvent::Finished { code: 1 });
        assert_eq!(at(&run, 3.0), State::Ended(1));
    }

    #[test]
    fn rows_have_all_steps_and_events() {
        let run = two_nodes().rank(0, 1, 9.21, Event::Eval { epoch: 1, accuracy: 0.5, loss: 0.25, samples: 64 });
        let run = run.agent("node0", 10.0, restarting(3, 1, "again")).rank(0, 2, 11.0, resume(1, 0));
        let curves = curves(&run.rank(0, 2, 11.5, snapshot(1, 0)));
        let rows = curves.rows();
        let many = |what: &str| rows.iter().filter(|row| row.what == what).count();
        assert_eq!((many("step"), many("died"), many("held out")), (4 * 15 + 4 * 14 + 2 * 20, 1, 1));
        assert_eq!((many("resumed"), many("snapshot"), many("fault")), (3, 3, 1));
    }
}
