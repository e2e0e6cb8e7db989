//! Loss and accuracy by epoch, for a run with or without restarts: of repeated steps, the last counts.

use std::collections::BTreeMap;

use lockstep_contract::events::Event;

use crate::history::RunEvents;

/// An epoch of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Epoch {
    /// Over all samples of all ranks.
    pub(super) loss: f64,
    /// As reported by rank 0, over all held-out samples.
    pub(super) accuracy: Option<f64>,
}

/// Epoch 0, 1, …, up to the first without a recorded step.
pub(super) fn epochs(events: &RunEvents) -> Vec<Epoch> {
    let (mut steps, mut accuracies) = (BTreeMap::new(), BTreeMap::new());
    for record in events.records() {
        match record.event {
            Event::Step { epoch, step, loss, samples } => {
                steps.insert((epoch, step, record.rank), (loss, samples));
            }
            Event::Eval { epoch, accuracy, .. } if record.rank == 0 => {
                accuracies.insert(epoch, accuracy);
            }
            _ => {}
        }
    }
    let of = |epoch: u64| {
        let steps = steps.range((epoch, 0, 0)..(epoch.saturating_add(1), 0, 0));
        let (sum, count) =
            steps.fold((0.0, 0), |(sum, count), (_, (loss, samples))| (sum + loss * *samples as f64, count + samples));
        (count > 0).then(|| Epoch { loss: sum / count as f64, accuracy: accuracies.get(&epoch).copied() })
    };
    (0..).map_while(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::FakeRun;

    #[test]
    fn counts_a_repeated_step_once() {
        let step = |epoch, step, loss, samples| Event::Step { epoch, step, loss, samples };
        let eval = Event::Eval { epoch: 0, accuracy: 0.75, loss: 0.5, samples: 8 };
        let first = [step(0, 0, 1.0, 4), step(0, 1, 9.0, 2), step(0, 1, 2.0, 2), eval, step(1, 0, 0.5, 4)];
        let second = [step(0, 0, 3.0, 4), step(0, 1, 4.0, 2)];
        let run = first.into_iter().fold(FakeRun::default(), |run, event| run.rank(0, 0, 0.0, event));
        let run = second.into_iter().fold(run, |run, event| run.rank(1, 0, 0.0, event));
        let expected = [
            Epoch { loss: (4.0 + 4.0 + 12.0 + 8.0) / 12.0, accuracy: Some(0.75) },
            Epoch { loss: 0.5, accuracy: None },
        ];
        assert_eq!(epochs(&run.0), expected);
        assert_eq!(epochs(&RunEvents::default()), []);
    }
}
