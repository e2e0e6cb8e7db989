//! Loss and accuracy by epoch, of a run with or without restarts: of what was done twice, the last counts.

use std::collections::BTreeMap;

use lockstep_events::{Event, EventLog};

/// An epoch of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Epoch {
    /// Over all samples of all ranks.
    pub(super) loss: f64,
    /// As rank 0 reports it, of all held-out samples.
    pub(super) accuracy: Option<f64>,
}

/// Epoch 0, 1, …, up to the first that no step tells of.
pub(super) fn epochs(ranks: &BTreeMap<usize, EventLog>) -> Vec<Epoch> {
    let (mut steps, mut accuracies) = (BTreeMap::new(), BTreeMap::new());
    for record in ranks.values().flat_map(|log| &log.records) {
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
    use lockstep_events::Record;

    use super::*;

    #[test]
    fn counts_a_step_that_was_done_twice_once() {
        let step = |epoch, step, loss, samples| Event::Step { epoch, step, loss, samples };
        let eval = Event::Eval { epoch: 0, accuracy: 0.75, loss: 0.5, samples: 8 };
        let log = |rank, events: Vec<Event>| {
            let records = events.into_iter().map(|event| Record { t: 0.0, rank, restart: 0, event }).collect();
            (rank, EventLog { records, torn: vec![] })
        };
        let ranks = BTreeMap::from([
            log(0, vec![step(0, 0, 1.0, 4), step(0, 1, 9.0, 2), step(0, 1, 2.0, 2), eval, step(1, 0, 0.5, 4)]),
            log(1, vec![step(0, 0, 3.0, 4), step(0, 1, 4.0, 2)]),
        ]);
        let expected = [
            Epoch { loss: (4.0 + 4.0 + 12.0 + 8.0) / 12.0, accuracy: Some(0.75) },
            Epoch { loss: 0.5, accuracy: None },
        ];
        assert_eq!(epochs(&ranks), expected);
        assert_eq!(epochs(&BTreeMap::new()), []);
    }
}
