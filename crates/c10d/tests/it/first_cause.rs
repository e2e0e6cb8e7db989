//! A rank that waits for a lost rank holds up others. They name the lost rank, not the one that waits for it. Over shared memory only:
//! Gloo knows no more than its own connections.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{DEADLINE, join_on, options, rank, ranks_on};
use c10d::{Backend, ReduceOp, Store, WorldSize};
use lockstep_process::watchdog::scaled;
use tch::{Device, Kind, Tensor};

fn zeros() -> Tensor {
    Tensor::zeros([2], (Kind::Float, Device::Cpu))
}

#[test]
fn a_rank_that_waits_for_a_late_message_is_not_named() {
    let store = Store::hash().unwrap();
    let ((done, until_done), (waits, until_waits)) = (channel::<()>(), channel());
    let connect =
        &|me: usize| join_on(Backend::SharedMemory, &store, rank(me), WorldSize::new(3).unwrap(), &options()).unwrap();
    std::thread::scope(|scope| {
        // Rank 2 sends nothing until rank 0 has its error.
        scope.spawn(move || {
            let _group = connect(2);
            until_done.recv_timeout(DEADLINE).unwrap_err();
        });
        scope.spawn(move || {
            let group = connect(1);
            waits.send(()).unwrap();
            group.recv(&mut zeros(), rank(2), 0).unwrap_err();
        });
        let group = connect(0);
        until_waits.recv_timeout(DEADLINE).unwrap();
        let short = scaled(Duration::from_secs(1));
        let error = group.with_timeout(short, |group| group.all_reduce(&mut zeros(), ReduceOp::Sum)).unwrap_err();
        assert!(error.detail().ends_with("ms for rank 2"), "{error}");
        drop(done);
    });
}

#[test]
fn a_rank_whose_message_cannot_be_sent_says_because_of_whom() {
    let (gave_up, wait) = channel();
    let wait = Mutex::new(wait);
    ranks_on(Backend::SharedMemory, 3, &options(), |group| match group.rank().get() {
        0 => {
            wait.lock().unwrap().recv_timeout(DEADLINE).unwrap();
            let error = group.recv(&mut zeros(), rank(2), 0).unwrap_err();
            assert!(error.detail().contains("rank 2 gave up because of rank 1"), "{error}");
        }
        // Leaves.
        1 => {}
        _ => {
            // Until its leave is noticed, a message for it is kept.
            let error = (0..).find_map(|_| group.isend(zeros(), rank(1), 0).err()).unwrap();
            assert!(error.detail().contains("rank 1 has left the group"), "{error}");
            drop(group);
            gave_up.send(()).unwrap();
        }
    });
}
