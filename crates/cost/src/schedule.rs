//! Schedules of a pipeline: which stage works on which micro-batch when, as data. A schedule is checked and drawn here, without a
//! rank; `lockstep::parallel::Pipeline` carries it out.
//!
//! Leaves out interleaved schedules, in which a rank has several stages, and those that divide the backward pass in two.
//!
//! Source: Huang and others, "GPipe" (2019); Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters
//! Using Megatron-LM" (2021), section 2.2, for 1F1B and the bubble.

use std::collections::HashSet;
use std::fmt;

/// One thing that a stage does with a micro-batch, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Its forward pass; the activations go to the next stage.
    Forward(usize),
    /// Its backward pass; the gradient of the stage's inputs goes to the stage before.
    Backward(usize),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Forward(micro_batch) => f.pad(&format!("F{micro_batch}")),
            Action::Backward(micro_batch) => f.pad(&format!("B{micro_batch}")),
        }
    }
}

/// Each stage's actions, in order. Every stage does every micro-batch once forward and once backward, and none waits for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    stages: Vec<Vec<Action>>,
}

/// Why a table is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No stages, or no micro-batches.
    #[error("a schedule needs at least one stage and one micro-batch")]
    Empty,
    /// A stage does an action twice.
    #[error("stage {stage} does {action} twice")]
    Twice { stage: usize, action: Action },
    /// A stage leaves out an action.
    #[error("stage {stage} never does {action}")]
    Missing { stage: usize, action: Action },
    /// The stages wait for each other.
    #[error("stage {stage} waits for ever before {action}: no stage can do what that needs")]
    Deadlock {
        /// The first stage that waits.
        stage: usize,
        /// What it cannot do.
        action: Action,
    },
}

impl Schedule {
    /// All micro-batches forward, then all backward, the last first. A stage holds the activations of all of them at once.
    ///
    /// # Panics
    /// Panics without stages or micro-batches.
    pub fn gpipe(stages: usize, micro_batches: usize) -> Self {
        let forward = (0..micro_batches).map(Action::Forward);
        let actions: Vec<_> = forward.chain((0..micro_batches).rev().map(Action::Backward)).collect();
        Schedule::new(vec![actions; stages]).expect("GPipe's table for one stage and micro-batch or more is a schedule")
    }

    /// One forward, one backward: a stage begins with as many forward passes as there are stages after it, then alternates. It
    /// holds the activations of at most one micro-batch more than that, however many there are.
    ///
    /// # Panics
    /// Panics without stages or micro-batches.
    pub fn one_f_one_b(stages: usize, micro_batches: usize) -> Self {
        let stage = |stage: usize| {
            let warm_up = (stages - 1 - stage).min(micro_batches);
            let mut actions: Vec<_> = (0..warm_up).map(Action::Forward).collect();
            for turn in 0..micro_batches {
                actions.extend((warm_up + turn < micro_batches).then(|| Action::Forward(warm_up + turn)));
                actions.push(Action::Backward(turn));
            }
            actions
        };
        let table = (0..stages).map(stage).collect();
        Schedule::new(table).expect("1F1B's table for one stage and micro-batch or more is a schedule")
    }

    /// A schedule of these actions of each stage.
    ///
    /// Errors: a stage leaves out an action or does it twice; the stages wait for each other.
    pub fn new(stages: Vec<Vec<Action>>) -> Result<Self, ScheduleError> {
        let number = |action: &Action| match *action {
            Action::Forward(micro_batch) | Action::Backward(micro_batch) => micro_batch.saturating_add(1),
        };
        let micro_batches = stages.iter().flatten().map(number).max().ok_or(ScheduleError::Empty)?;
        for (stage, actions) in stages.iter().enumerate() {
            let mut done = HashSet::new();
            if let Some(&action) = actions.iter().find(|action| !done.insert(**action)) {
                return Err(ScheduleError::Twice { stage, action });
            }
            let all = (0..micro_batches)
                .flat_map(|micro_batch| [Action::Forward(micro_batch), Action::Backward(micro_batch)]);
            if let Some(action) = all.into_iter().find(|action| !done.contains(action)) {
                return Err(ScheduleError::Missing { stage, action });
            }
        }
        let schedule = Schedule { stages };
        schedule.starts(1, 1)?;
        Ok(schedule)
    }

    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    pub fn micro_batches(&self) -> usize {
        self.stages[0].len() / 2
    }

    /// One stage's actions, in order.
    pub fn actions(&self, stage: usize) -> &[Action] {
        &self.stages[stage]
    }

    /// The maximum number of micro-batches whose activations a stage holds at once.
    pub fn peak(&self, stage: usize) -> usize {
        let mut held = 0;
        let after = |action: &Action| {
            held = if matches!(action, Action::Forward(_)) { held + 1 } else { held - 1 };
            held
        };
        self.stages[stage].iter().map(after).max().unwrap_or(0)
    }

    /// The share of the stages' time in which they wait, if a forward pass takes `forward` units of time on every stage, a backward
    /// pass `backward`, and a message none.
    ///
    /// For GPipe and 1F1B it is (p − 1) / (m + p − 1) with p stages and m micro-batches, whatever the units.
    pub fn bubble(&self, forward: u64, backward: u64) -> f64 {
        let end = self.timeline(forward, backward).iter().flatten().map(|slot| slot.end).max().unwrap_or(1);
        let busy = self.micro_batches() as u64 * (forward + backward);
        1.0 - busy as f64 / end as f64
    }

    /// When each stage does each action, in units as in [`Schedule::bubble`].
    pub fn timeline(&self, forward: u64, backward: u64) -> Vec<Vec<Slot>> {
        self.starts(forward, backward).expect("a schedule has no deadlock, whatever its actions take")
    }

    fn starts(&self, forward: u64, backward: u64) -> Result<Vec<Vec<Slot>>, ScheduleError> {
        let mut slots: Vec<Vec<Slot>> = vec![Vec::new(); self.stages.len()];
        loop {
            let done: usize = slots.iter().map(Vec::len).sum();
            for stage in 0..self.stages.len() {
                while let Some(&action) = self.stages[stage].get(slots[stage].len()) {
                    let Some(ready) = self.ready(&slots, stage, action) else { break };
                    let start = ready.max(slots[stage].last().map_or(0, |slot| slot.end));
                    let length = if matches!(action, Action::Forward(_)) { forward } else { backward };
                    slots[stage].push(Slot { action, start, end: start + length });
                }
            }
            if slots.iter().map(Vec::len).sum::<usize>() == done {
                let waits = (0..self.stages.len()).find_map(|stage| {
                    self.stages[stage].get(slots[stage].len()).map(|&action| ScheduleError::Deadlock { stage, action })
                });
                return waits.map_or(Ok(slots), Err);
            }
        }
    }

    /// When the inputs of an action are available; `None` if that is not known yet.
    fn ready(&self, slots: &[Vec<Slot>], stage: usize, action: Action) -> Option<u64> {
        let end = |stage: usize, action| slots[stage].iter().find(|slot| slot.action == action).map(|slot| slot.end);
        match action {
            Action::Forward(_) if stage == 0 => Some(0),
            Action::Forward(_) => end(stage - 1, action),
            Action::Backward(micro_batch) => {
                let own = end(stage, Action::Forward(micro_batch))?;
                if stage + 1 == self.stages.len() {
                    Some(own)
                } else {
                    end(stage + 1, action).map(|next| next.max(own))
                }
            }
        }
    }
}

/// One action's place in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub action: Action,
    pub start: u64,
    pub end: u64,
}

/// The table: a row for each stage, a column for each unit of time, where every action takes one.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.micro_batches().saturating_sub(1).to_string().len() + 1;
        for (stage, slots) in self.timeline(1, 1).iter().enumerate() {
            write!(f, "stage {stage} |")?;
            let mut now = 0;
            for slot in slots {
                for _ in now..slot.start {
                    write!(f, " {:width$}", "·")?;
                }
                write!(f, " {:width$}", slot.action)?;
                now = slot.end;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Action::{Backward, Forward};
    use super::*;

    #[test]
    fn draws_gpipe_and_one_f_one_b() {
        assert_eq!(
            Schedule::gpipe(3, 3).to_string(),
            "stage 0 | F0 F1 F2 ·  ·  ·  ·  B2 B1 B0\n\
             stage 1 | ·  F0 F1 F2 ·  ·  B2 B1 B0\n\
             stage 2 | ·  ·  F0 F1 F2 B2 B1 B0\n"
        );
        assert_eq!(
            Schedule::one_f_one_b(3, 4).to_string(),
            "stage 0 | F0 F1 F2 ·  ·  B0 F3 B1 ·  B2 ·  B3\n\
             stage 1 | ·  F0 F1 ·  B0 F2 B1 F3 B2 ·  B3\n\
             stage 2 | ·  ·  F0 B0 F1 B1 F2 B2 F3 B3\n"
        );
    }

    #[test]
    fn the_bubble_is_the_papers_formula_whatever_the_passes_take() {
        for (stages, micro_batches) in [(1, 1), (2, 1), (2, 4), (3, 3), (4, 2), (4, 8), (5, 7)] {
            let formula = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
            for schedule in [Schedule::gpipe(stages, micro_batches), Schedule::one_f_one_b(stages, micro_batches)] {
                for (forward, backward) in [(1, 1), (1, 2), (3, 5)] {
                    let bubble = schedule.bubble(forward, backward);
                    assert!((bubble - formula).abs() < 1e-12, "{stages} × {micro_batches}: {bubble}, not {formula}");
                }
            }
        }
    }

    #[test]
    fn one_f_one_b_holds_few_micro_batches_and_gpipe_all() {
        let held = |schedule: Schedule| (0..schedule.stages()).map(|stage| schedule.peak(stage)).collect::<Vec<_>>();
        assert_eq!(held(Schedule::gpipe(4, 8)), [8, 8, 8, 8]);
        assert_eq!(held(Schedule::one_f_one_b(4, 8)), [4, 3, 2, 1]);
        assert_eq!(held(Schedule::one_f_one_b(4, 2)), [2, 2, 2, 1]);
    }

    #[test]
    fn refuses_tables_that_are_no_schedule() {
        assert_eq!(Schedule::new(vec![]), Err(ScheduleError::Empty));
        let twice = vec![vec![Forward(0), Forward(0), Backward(0)]];
        assert_eq!(Schedule::new(twice), Err(ScheduleError::Twice { stage: 0, action: Forward(0) }));
        let fewer = vec![vec![Forward(0), Backward(0)], vec![Forward(0)]];
        assert_eq!(Schedule::new(fewer), Err(ScheduleError::Missing { stage: 1, action: Backward(0) }));
        // Stage 0 waits for B0 before F1; stage 1 waits for F1 before B0.
        let crossed = vec![
            vec![Forward(0), Backward(0), Forward(1), Backward(1)],
            vec![Forward(0), Forward(1), Backward(1), Backward(0)],
        ];
        assert_eq!(Schedule::new(crossed), Err(ScheduleError::Deadlock { stage: 0, action: Backward(0) }));
        let backward_first = vec![vec![Backward(0), Forward(0)]];
        assert_eq!(Schedule::new(backward_first), Err(ScheduleError::Deadlock { stage: 0, action: Backward(0) }));
    }
}
