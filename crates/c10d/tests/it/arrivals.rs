//! Ranks that share memory know for whom they wait, and a rank for which all others wait is named while they do.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::ranks;
use crate::common::{DEADLINE, findings, listening};
use c10d::ReduceOp;
use tch::Tensor;

/// Ends when the sums show it, however busy the machine is: other waits grow, too, but not by 100 ms in each step.
#[test]
fn each_rank_counts_how_long_it_waited_for_whom() {
    ranks(3, |group| {
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
    let found = ranks(3, |group| {
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
