//! The event files of a run in order: the samples and results of each rank, epoch by epoch.
//!
//! Anything that a finished run cannot have written is a flaw, described in one sentence: a rank without a file, a torn line, a
//! missing step, a step whose size does not match its samples. `checks` decides whether the samples and the numbers are right.

use std::collections::BTreeMap;

use lockstep_contract::events::{Event, EventLog, Record};

use crate::evidence::{Evidence, Plan};

/// A run as its ranks recorded it, by epoch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    /// Epoch 0, 1, ….
    pub(crate) epochs: Vec<Epoch>,
    /// The evaluation of rank 0, 1, … after the last epoch, if a lab evaluates before each.
    pub(crate) last_evals: Vec<Option<Eval>>,
}

/// One epoch of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Epoch {
    /// The samples of rank 0, 1, …, in the order in which it took them.
    pub(crate) shares: Vec<Vec<u64>>,
    /// The records of every rank for step 0, 1, ….
    pub(crate) steps: Vec<Vec<Step>>,
    /// The evaluation of rank 0, 1, ….
    pub(crate) evals: Vec<Option<Eval>>,
}

/// A step of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// The mean over its samples.
    pub(crate) loss: f64,
    /// The number of samples.
    pub(crate) samples: u64,
}

/// An evaluation as one rank recorded it, over the samples of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Eval {
    /// From 0 to 1.
    pub(crate) accuracy: f64,
    /// The mean over the samples.
    pub(crate) loss: f64,
    /// The number of samples.
    pub(crate) samples: u64,
}

impl Trace {
    /// Puts the event files of a run in order.
    ///
    /// Errors: the first flaw, as a sentence.
    pub(crate) fn of(evidence: &Evidence) -> Result<Self, String> {
        let (plan, logs) = (&evidence.plan, evidence.logs.as_ref().map_err(String::clone)?);
        if let Some(foreign) = logs.keys().find(|&&rank| rank >= plan.ranks) {
            return Err(format!("an event file of rank {foreign} lies among those of {} ranks", plan.ranks));
        }
        let ranks = (0..plan.ranks).map(|rank| match logs.get(&rank) {
            Some(log) => of_rank(plan, rank, log).map_err(|flaw| format!("rank {rank}'s event file {flaw}")),
            None => Err(format!("rank {rank} left no event file")),
        });
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        let (ranks, last_evals): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        let epochs = (0..plan.epochs as usize).map(|epoch| across(&ranks, epoch)).collect::<Result<_, _>>()?;
        Ok(Trace { epochs, last_evals })
    }
}

impl Epoch {
    /// The loss of step `step` over the samples of all ranks.
    pub(crate) fn step_loss(&self, step: usize) -> f64 {
        mean(self.steps[step].iter())
    }

    /// The loss over all samples of the epoch.
    pub(crate) fn loss(&self) -> f64 {
        mean(self.steps.iter().flatten())
    }
}

fn mean<'a>(steps: impl Iterator<Item = &'a Step>) -> f64 {
    let (sum, samples) =
        steps.fold((0.0, 0), |(sum, n), step| (sum + step.loss * step.samples as f64, n + step.samples));
    sum / samples as f64
}

/// One epoch of one rank, under construction.
#[derive(Default)]
struct Part {
    /// The number of steps that the rank announced.
    planned: Option<u64>,
    share: Option<Vec<u64>>,
    steps: Vec<Step>,
    eval: Option<Eval>,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.planned.is_none() && self.share.is_none() && self.steps.is_empty() && self.eval.is_none()
    }
}

/// The epochs of a rank, and its evaluation after the last.
fn of_rank(plan: &Plan, rank: usize, log: &EventLog) -> Result<(Vec<Part>, Option<Eval>), String> {
    if let Some(line) = log.torn.first() {
        return Err(format!("is torn at line {line}"));
    }
    let (mut parts, mut started) = (BTreeMap::new(), false);
    for record in &log.records {
        check_origin(rank, record)?;
        started |= take(plan, &mut parts, &record.event)?;
    }
    if !started {
        return Err("does not record a start".into());
    }
    let last = parts.get_mut(&plan.epochs).and_then(|part| part.eval.take());
    parts.retain(|epoch, part| *epoch != plan.epochs || !part.is_empty());
    if let Some(epoch) = parts.keys().find(|&&epoch| epoch >= plan.epochs) {
        return Err(format!("has events of epoch {epoch}, the run had {}", plan.epochs));
    }
    let epochs = (0..plan.epochs).map(|epoch| whole(plan, epoch, parts.remove(&epoch)));
    Ok((epochs.collect::<Result<_, _>>()?, last))
}

fn check_origin(rank: usize, record: &Record) -> Result<(), String> {
    match (record.rank, record.restart) {
        (writer, _) if writer != rank => Err(format!("holds a line of rank {writer}")),
        (_, restart) if restart > 0 => Err(format!("has events of restart {restart}, the run had none")),
        _ => Ok(()),
    }
}

/// Adds an event to its epoch; returns true if it is the start.
fn take(plan: &Plan, parts: &mut BTreeMap<u64, Part>, event: &Event) -> Result<bool, String> {
    match event {
        Event::Start { world_size, .. } if *world_size == plan.ranks => return Ok(true),
        Event::Start { world_size, .. } => {
            return Err(format!("records {world_size} ranks, the run had {}", plan.ranks));
        }
        Event::Epoch { epoch, batch_size, .. } if *batch_size != plan.batch => {
            return Err(format!("records batches of {batch_size} in epoch {epoch}, the run had {}", plan.batch));
        }
        Event::Epoch { epoch, steps, .. } => {
            once(&mut parts.entry(*epoch).or_default().planned, *steps, || format!("begins epoch {epoch} twice"))?;
        }
        Event::Samples { epoch, indices } => {
            let share = &mut parts.entry(*epoch).or_default().share;
            once(share, indices.clone(), || format!("lists the samples of epoch {epoch} twice"))?;
        }
        Event::Step { epoch, step, loss, samples, .. } => {
            let steps = &mut parts.entry(*epoch).or_default().steps;
            if *step != steps.len() as u64 {
                return Err(format!("has step {step} of epoch {epoch} where step {} was expected", steps.len()));
            }
            steps.push(Step { loss: *loss, samples: *samples });
        }
        Event::Eval { epoch, accuracy, loss, samples } => {
            let eval = Eval { accuracy: *accuracy, loss: *loss, samples: *samples };
            let place = &mut parts.entry(*epoch).or_default().eval;
            once(place, eval, || format!("has two evaluations of epoch {epoch}"))?;
        }
        Event::Fault { message } => return Err(format!("records a fault: {message}")),
        _ => {}
    }
    Ok(false)
}

fn once<T>(place: &mut Option<T>, value: T, flaw: impl FnOnce() -> String) -> Result<(), String> {
    if place.replace(value).is_some() { Err(flaw()) } else { Ok(()) }
}

/// The epoch, if its steps took exactly the listed samples, batch by batch.
fn whole(plan: &Plan, epoch: u64, part: Option<Part>) -> Result<Part, String> {
    let part = part.ok_or_else(|| format!("has no events of epoch {epoch}"))?;
    let planned = part.planned.ok_or_else(|| format!("does not begin epoch {epoch}"))?;
    let share = part.share.as_ref().ok_or_else(|| format!("lists no samples of epoch {epoch}"))?;
    let due: Vec<u64> = share.chunks(plan.batch).map(|batch| batch.len() as u64).collect();
    let done: Vec<u64> = part.steps.iter().map(|step| step.samples).collect();
    let (due_steps, done_steps, samples) = (due.len(), done.len(), share.len());
    if (planned, done_steps) != (due_steps as u64, due_steps) {
        return Err(format!(
            "has {done_steps} steps in epoch {epoch} of {planned} announced, {samples} samples make {due_steps}"
        ));
    }
    match due.iter().zip(&done).position(|(due, done)| due != done) {
        Some(step) => {
            Err(format!("has {} samples in step {step} of epoch {epoch} where {} were expected", done[step], due[step]))
        }
        None => Ok(part),
    }
}

/// Puts together all ranks' parts of an epoch.
fn across(ranks: &[Vec<Part>], epoch: usize) -> Result<Epoch, String> {
    let parts: Vec<&Part> = ranks.iter().map(|parts| &parts[epoch]).collect();
    let counts: Vec<usize> = parts.iter().map(|part| part.steps.len()).collect();
    if let Some(rank) = counts.iter().position(|count| *count != counts[0]) {
        return Err(format!("rank {rank} made {} steps in epoch {epoch}, rank 0 made {}", counts[rank], counts[0]));
    }
    Ok(Epoch {
        shares: parts.iter().map(|part| part.share.clone().unwrap_or_default()).collect(),
        steps: (0..counts[0]).map(|step| parts.iter().map(|part| part.steps[step]).collect()).collect(),
        evals: parts.iter().map(|part| part.eval).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Run;

    /// Ranks 0 and 1, batches of 4, epochs 0 and 1, 20 samples: 3 steps an epoch, the last of 2 samples.
    fn truth() -> Evidence {
        Run::of(2, 4, 2, 20).evidence()
    }

    /// The flaw found after `falsify` has changed rank 1's file.
    fn flaw(falsify: impl FnOnce(&mut Vec<Record>)) -> String {
        let mut evidence = truth();
        falsify(&mut evidence.logs.as_mut().unwrap().get_mut(&1).unwrap().records);
        let message = Trace::of(&evidence).unwrap_err();
        message.strip_prefix("rank 1's event file ").map(str::to_owned).unwrap_or(message)
    }

    /// The index of the `nth` event of this kind, from 0.
    fn place(records: &[Record], kind: &str, nth: usize) -> usize {
        let mut places = (0..records.len()).filter(|at| records[*at].event.kind() == kind);
        places.nth(nth).unwrap()
    }

    fn without(kind: &'static str, nth: usize) -> impl FnOnce(&mut Vec<Record>) {
        move |records| drop(records.remove(place(records, kind, nth)))
    }

    fn doubled(kind: &'static str, nth: usize) -> impl FnOnce(&mut Vec<Record>) {
        move |records| records.insert(place(records, kind, nth), records[place(records, kind, nth)].clone())
    }

    #[test]
    fn puts_the_steps_of_all_ranks_side_by_side() {
        let mut run = Run::of(2, 4, 2, 20);
        run.losses[1][0] = vec![1.0, 2.0, 3.0];
        run.losses[1][1] = vec![5.0, 6.0, 9.0];
        let trace = Trace::of(&run.evidence()).unwrap();
        let epoch = &trace.epochs[1];
        assert_eq!((trace.epochs.len(), epoch.steps.len(), epoch.shares[1].len()), (2, 3, 10));
        assert_eq!([0, 1, 2].map(|step| epoch.step_loss(step)), [3.0, 4.0, 6.0]);
        // Averages over samples, not over steps: the last step is only half as large.
        assert_eq!(epoch.loss(), (4.0 * (1.0 + 5.0 + 2.0 + 6.0) + 2.0 * (3.0 + 9.0)) / 20.0);
    }

    #[test]
    fn rejects_missing_torn_and_foreign_files() {
        let mut evidence = truth();
        evidence.logs = Err("cannot read events".into());
        assert_eq!(Trace::of(&evidence).unwrap_err(), "cannot read events");
        let mut evidence = truth();
        evidence.logs.as_mut().unwrap().remove(&0);
        assert_eq!(Trace::of(&evidence).unwrap_err(), "rank 0 left no event file");
        let mut evidence = truth();
        evidence.logs.as_mut().unwrap().get_mut(&1).unwrap().torn = vec![9];
        assert_eq!(Trace::of(&evidence).unwrap_err(), "rank 1's event file is torn at line 9");
        let mut evidence = truth();
        evidence.logs.as_mut().unwrap().insert(2, EventLog::default());
        assert_eq!(Trace::of(&evidence).unwrap_err(), "an event file of rank 2 lies among those of 2 ranks");
        assert_eq!(flaw(|records| records[3].rank = 0), "holds a line of rank 0");
        assert_eq!(flaw(|records| records[3].restart = 1), "has events of restart 1, the run had none");
    }

    #[test]
    fn rejects_a_run_of_another_plan() {
        assert_eq!(flaw(without("start", 0)), "does not record a start");
        let alone = Event::Start { world_size: 1, device: "cpu".into(), pid: 1 };
        assert_eq!(flaw(|records| records[0].event = alone), "records 1 ranks, the run had 2");
        let batches = Event::Epoch { epoch: 0, steps: 3, batch_size: 8 };
        assert_eq!(flaw(|records| records[1].event = batches), "records batches of 8 in epoch 0, the run had 4");
        let more = Event::Epoch { epoch: 2, steps: 3, batch_size: 4 };
        let message = flaw(|records| records.push(Record { event: more, ..records[0].clone() }));
        assert_eq!(message, "has events of epoch 2, the run had 2");
        assert_eq!(flaw(|records| records.truncate(place(records, "epoch", 1))), "has no events of epoch 1");
    }

    #[test]
    fn rejects_events_that_are_missing_or_repeated() {
        assert_eq!(flaw(without("epoch", 1)), "does not begin epoch 1");
        assert_eq!(flaw(without("samples", 0)), "lists no samples of epoch 0");
        assert_eq!(flaw(without("step", 1)), "has step 2 of epoch 0 where step 1 was expected");
        assert_eq!(flaw(without("step", 5)), "has 2 steps in epoch 1 of 3 announced, 10 samples make 3");
        assert_eq!(flaw(doubled("epoch", 0)), "begins epoch 0 twice");
        assert_eq!(flaw(doubled("samples", 1)), "lists the samples of epoch 1 twice");
        assert_eq!(flaw(doubled("step", 0)), "has step 0 of epoch 0 where step 1 was expected");
        assert_eq!(flaw(doubled("eval", 0)), "has two evaluations of epoch 0");
    }

    #[test]
    fn rejects_steps_of_another_size_than_the_samples_give() {
        let message = flaw(|records| {
            let at = place(records, "step", 2);
            records[at].event = Event::Step { epoch: 0, step: 2, loss: 1.0, samples: 4, lr: None };
        });
        assert_eq!(message, "has 4 samples in step 2 of epoch 0 where 2 were expected");
    }

    #[test]
    fn rejects_ranks_that_made_different_numbers_of_steps() {
        let mut run = Run::of(2, 4, 1, 20);
        run.shares[0][1].truncate(8);
        run.losses[0][1].truncate(2);
        assert_eq!(Trace::of(&run.evidence()).unwrap_err(), "rank 1 made 2 steps in epoch 0, rank 0 made 3");
    }

    #[test]
    fn rejects_a_run_with_a_fault() {
        let fault = Event::Fault { message: "peer 0 is gone".into() };
        let message = flaw(|records| records.push(Record { event: fault, ..records[0].clone() }));
        assert_eq!(message, "records a fault: peer 0 is gone");
    }
}
