//! Late ranks, with real waits: one rank sleeps 100 ms before each collective, the others do nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use c10d::stragglers::{self, Cause, Finding};
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

use crate::common::{DEADLINE, findings, listening, on_each_backend, ranks, ranks_in_memory};

/// A quarter of the usual period, so findings come four times as soon.
const PERIOD: Duration = Duration::from_millis(250);

/// Runs until there is a finding, however long that takes; without one it ends at the group's timeout.
fn found_by(world: usize, step: impl Fn(&ProcessGroup) + Send + Sync) -> (Finding, Vec<String>) {
    let _alone = listening();
    let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new((None, Vec::new()))));
    let (found, lines) = (Arc::clone(&stop), Arc::clone(&heard));
    stragglers::publish_every(PERIOD);
    stragglers::listen(move |line, finding| {
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

// Ranks that share memory know which rank they wait for, and a rank that all others wait for is named while they wait.

/// Ends when the sums show it, however busy the machine is: other waits also grow, but not by 100 ms in each step.
#[test]
fn each_rank_counts_how_long_it_waited_for_whom() {
    ranks_in_memory(3, |group| {
        let late = group.rank().get() == 1;
        loop {
            if late {
                std::thread::sleep(Duration::from_millis(100));
            }
            let waited: Vec<f64> = group.waited_for().unwrap().iter().map(Duration::as_secs_f64).collect();
            assert_eq!((waited.len(), waited[group.rank().get()]), (3, 0.0));
            let shows = late || waited[1] > 0.5 && waited[1] > 3.0 * (waited[0] + waited[2]);
            let mut all_show = Tensor::from(i64::from(shows));
            group.all_reduce(&mut all_show, ReduceOp::Min).unwrap();
            if all_show.int64_value(&[]) == 1 {
                return;
            }
        }
    });
}

#[test]
fn a_rank_for_which_all_others_wait_is_named_before_it_comes() {
    let _alone = listening();
    let heard = Mutex::new(findings());
    let found = ranks_in_memory(3, |group| {
        let late = group.rank().get() == 1;
        let found = late.then(|| heard.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(DEADLINE).unwrap());
        group.barrier().unwrap();
        found
    });
    let (line, finding) = found.into_iter().flatten().next().unwrap();
    let finding = finding.unwrap();
    assert_eq!((finding.ranks.as_slice(), finding.goes_on), (&[1][..], true), "{line}");
    assert!(finding.waited[0] >= 10.0 && finding.waited[2] >= 10.0, "{finding:?}");
    assert!(line.contains("rank 1 on ") && line.contains("have been waiting for it for "), "{line}");
}
