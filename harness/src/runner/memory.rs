//! The memory of each rank by kind, as a table of a report.

use lockstep_contract::events::Event;

use crate::history::RunEvents;
use crate::report::Table;

/// What each rank has counted last, in bytes; `None` if none has.
pub(crate) fn table(events: &RunEvents) -> Option<Table> {
    let rows: Vec<_> = events
        .ranks
        .iter()
        .filter_map(|(rank, log)| {
            log.records.iter().rev().find_map(|record| match &record.event {
                Event::Memory { parameters, gradients, optimizer, activations, buckets, sent } => {
                    let total = parameters + gradients + optimizer + activations + buckets;
                    let counts = [*parameters, *gradients, *optimizer, *activations, *buckets, total, *sent];
                    Some(std::iter::once(*rank as u64).chain(counts).map(|number| number.to_string()).collect())
                }
                _ => None,
            })
        })
        .collect();
    let headings = ["rank", "parameters", "gradients", "optimizer", "activations", "buckets", "all", "sent"];
    let headings = headings.map(str::to_owned).to_vec();
    (!rows.is_empty()).then(|| Table { title: "Bytes of each rank, by kind".into(), headings, rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::{FakeRun, step_of};

    fn memory(sent: u64) -> Event {
        Event::Memory { parameters: 8, gradients: 8, optimizer: 16, activations: 4, buckets: 2, sent }
    }

    #[test]
    fn shows_the_last_counts_of_each_rank() {
        assert_eq!(table(&FakeRun::default().rank(0, 0, 1.0, step_of(0, 0)).0), None);
        let run = FakeRun::default().rank(1, 0, 1.0, memory(5)).rank(0, 0, 1.0, step_of(0, 0));
        let run = run.rank(1, 0, 2.0, memory(90)).rank(1, 0, 3.0, step_of(0, 1));
        let found = table(&run.0).unwrap();
        assert_eq!(found.headings.len(), 8);
        assert_eq!(found.rows, [["1", "8", "8", "16", "4", "2", "38", "90"]]);
    }
}
