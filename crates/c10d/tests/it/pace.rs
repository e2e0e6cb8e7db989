//! Late ranks, with ranks that really wait: one sleeps 100 ms before each collective, the others do nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::listening;
use crate::common::{on_each_backend, ranks};
use c10d::pace::{self, Cause, Finding};
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// A quarter of the usual one, so that a finding comes as much sooner.
const PERIOD: Duration = Duration::from_millis(250);

/// Runs until something was found, so that its time does not matter: a missing finding ends at the group's timeout.
fn found_by(world: usize, step: impl Fn(&ProcessGroup) + Send + Sync) -> (Finding, Vec<String>) {
    let _alone = listening();
    let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new((None, Vec::new()))));
    let (found, lines) = (Arc::clone(&stop), Arc::clone(&heard));
    pace::publish_every(PERIOD);
    pace::listen(move |line, finding| {
        let (first, lines) = &mut *lines.lock().unwrap();
        *first = first.take().or(finding.cloned());
        lines.push(line.to_owned());
        found.store(true, Ordering::Relaxed);
    });
    ranks(world, |group| {
        let mut stops = Tensor::from(0);
        while stops.int64_value(&[]) == 0 {
            step(&group);
            stops = Tensor::from(i64::from(stop.load(Ordering::Relaxed)));
            group.all_reduce(&mut stops, ReduceOp::Max).unwrap();
        }
    });
    let (finding, lines) = std::mem::take(&mut *heard.lock().unwrap());
    (finding.unwrap(), lines)
}

#[test]
fn names_a_rank_that_sleeps_before_each_collective() {
    on_each_backend(|| {
        let (finding, lines) = found_by(3, |group| {
            if group.rank().get() == 1 {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert_eq!((finding.ranks.as_slice(), finding.cause), (&[1][..], Cause::Other), "{finding}");
        assert!(finding.share > 0.5 && finding.times > 2.0, "{finding}");
        assert!(lines[0].contains("rank 1 on ") && lines[0].contains(" is late: "), "{lines:?}");
        assert!(lines[1].starts_with("in all, rank 1 on ") && lines.len() == 2, "{lines:?}");
    });
}
