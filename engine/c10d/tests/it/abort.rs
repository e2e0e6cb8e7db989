//! A group that one rank aborts, and calls with their own timeout: every wait ends with an error that gives the reason.
//!
//! The group's own timeout is minutes, as in all tests, so a test that ends has not waited for it.

use std::sync::mpsc::channel;
use std::sync::{Mutex, mpsc::Receiver, mpsc::Sender};
use std::time::Duration;

use crate::common::{DEADLINE, rank};
use crate::common::{on_each_backend, ranks, ranks_with};
use c10d::{Aborter, Error, ErrorKind, GroupOptions, ProcessGroup, RankState, ReduceOp, Reducer, Splits};
use lockstep_process::watchdog::scaled;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

fn zeros(n: i64) -> Tensor {
    Tensor::zeros([n], (Kind::Float, Device::Cpu))
}

type Call = fn(&ProcessGroup) -> c10d::Result<()>;

/// Operations that cannot end without rank 1.
const CALLS: [(&str, Call); 8] = [
    ("all_reduce", |group| group.all_reduce(&mut zeros(2), ReduceOp::Sum)),
    ("all_reduce of many numbers", |group| group.all_reduce(&mut zeros(500_000), ReduceOp::Sum)),
    ("broadcast", |group| group.broadcast(&mut zeros(2), rank(1))),
    ("all_gather", |group| group.all_gather_into_tensor(&mut zeros(2 * group.size().get() as i64), &zeros(2))),
    ("all_to_all", |group| {
        let n = group.size().get() as i64;
        group.all_to_all_single(&mut zeros(n), &zeros(n), &Splits::Equal)
    }),
    ("barrier", |group| group.barrier()),
    ("recv", |group| group.recv(&mut zeros(2), rank(1), 3)),
    ("async all_reduce", |group| group.all_reduce_async(zeros(2), ReduceOp::Sum)?.wait().map(drop)),
];

fn channels<T>() -> (Mutex<Sender<T>>, Mutex<Receiver<T>>) {
    let (sender, receiver) = channel();
    (Mutex::new(sender), Mutex::new(receiver))
}

fn of_a_peer(error: &Error, name: &str) {
    assert_eq!(error.kind(), ErrorKind::PeerGone, "{name}: {error}");
    let report = error.desync_report().expect("a desync report");
    assert!(matches!(report.answers()[&rank(1)], Some(RankState::Aborted { .. })), "{name}: {error}");
    assert!(error.to_string().contains("rank 1 has aborted the group"), "{name}: {error}");
}

#[test]
fn the_others_learn_which_rank_aborted_whatever_they_wait_for() {
    on_each_backend(|| {
        for (name, call) in CALLS {
            let errors = ranks(3, |group| {
                group.barrier().unwrap();
                if group.rank() == rank(1) {
                    group.abort().unwrap();
                    return None;
                }
                Some(call(&group).unwrap_err())
            });
            errors.iter().flatten().for_each(|error| of_a_peer(error, name));
            assert_eq!(errors.iter().flatten().count(), 2);
        }
    });
}

/// Closing all connections must not depend on the one to a rank that has left.
#[test]
fn an_abort_reaches_the_others_also_after_a_rank_has_left() {
    on_each_backend(|| {
        for aborts in [0, 2] {
            ranks(3, |group| {
                group.barrier().unwrap();
                match group.rank().get() {
                    1 => {}
                    me if me == aborts => {
                        // Ends when it sees that rank 1 has left.
                        assert_eq!(group.recv(&mut zeros(1), rank(1), 0).unwrap_err().kind(), ErrorKind::PeerGone);
                        group.abort().unwrap();
                        assert_eq!(group.barrier().unwrap_err().kind(), ErrorKind::Aborted);
                    }
                    _ => {
                        let error = group.recv(&mut zeros(1), rank(aborts), 0).unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
                    }
                }
            });
        }
    });
}

#[test]
fn another_thread_ends_the_waits_of_its_rank() {
    on_each_backend(|| {
        for (name, call) in CALLS {
            let (aborter, aborters) = channels::<Aborter>();
            let (done, wait) = channels::<()>();
            let errors = std::thread::scope(|scope| {
                scope.spawn(move || {
                    let aborter = aborters.into_inner().unwrap().recv_timeout(DEADLINE).unwrap();
                    // Most likely after the wait has begun; the result is the same if it has not.
                    std::thread::sleep(Duration::from_millis(50));
                    aborter.abort().unwrap();
                });
                ranks(2, |group| {
                    group.barrier().unwrap();
                    if group.rank().is_zero() {
                        aborter.lock().unwrap().send(group.aborter()).unwrap();
                        let error = call(&group).unwrap_err();
                        done.lock().unwrap().send(()).unwrap();
                        Some((error, group.barrier().unwrap_err()))
                    } else {
                        // Stays in the group without a call.
                        wait.lock().unwrap().recv_timeout(DEADLINE).unwrap();
                        None
                    }
                })
            });
            let (error, later) = errors.into_iter().flatten().next().unwrap();
            assert_eq!(
                (error.kind(), later.kind()),
                (ErrorKind::Aborted, ErrorKind::Aborted),
                "{name}: {error}; {later}"
            );
            assert!(error.to_string().contains("on rank 0 was aborted"), "{name}: {error}");
            assert!(error.detail().contains("this rank has aborted the group"), "{name}: {error}");
        }
    });
}

#[test]
fn a_rank_in_a_backward_pass_learns_that_another_one_aborted() {
    on_each_backend(|| {
        let errors = ranks(2, |group| {
            group.barrier().unwrap();
            if group.rank() == rank(1) {
                let parameter = Tensor::ones([4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
                let group = Rc::new(group);
                let _reducer =
                    Reducer::new(Rc::clone(&group), &[("p".into(), parameter)], &Default::default()).unwrap();
                group.abort().unwrap();
                return None;
            }
            let parameter = Tensor::ones([4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
            let named = [("p".to_owned(), parameter.shallow_clone())];
            let reducer = Reducer::new(Rc::new(group), &named, &Default::default()).unwrap();
            reducer.prepare_for_forward().unwrap();
            let loss = parameter.sum(Kind::Float);
            reducer.prepare_for_backward(&[]).unwrap();
            Some(reducer.backward(&loss).unwrap_err())
        });
        errors.iter().flatten().for_each(|error| of_a_peer(error, "backward"));
    });
}

#[test]
fn an_aborted_group_refuses_every_call_and_other_groups_go_on() {
    on_each_backend(|| {
        let (aborted, wait) = channels::<()>();
        ranks(2, |group| {
            let members = [rank(0), rank(1)];
            let part = group.new_group(&members, &crate::common::options()).unwrap().unwrap();
            if group.rank().is_zero() {
                part.abort().unwrap();
                part.abort().unwrap();
                for (name, call) in CALLS {
                    assert_eq!(call(&part).unwrap_err().kind(), ErrorKind::Aborted, "{name}");
                }
                let late = part.monitored_barrier(Duration::from_millis(10), true).unwrap_err();
                assert_eq!(late.kind(), ErrorKind::Aborted, "{late}");
                aborted.lock().unwrap().send(()).unwrap();
            } else {
                wait.lock().unwrap().recv_timeout(DEADLINE).unwrap();
                of_a_peer_in(&part.barrier().unwrap_err());
            }
            let aborter = part.aborter();
            drop(part);
            aborter.abort().unwrap();
            let mut one = zeros(1) + 1.0;
            group.all_reduce(&mut one, ReduceOp::Sum).unwrap();
            assert_eq!(one.double_value(&[0]), 2.0);
        });
    });
}

fn of_a_peer_in(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
    assert!(error.to_string().contains("rank 0 has aborted the group"), "{error}");
}

#[test]
fn a_group_of_one_rank_can_be_aborted() {
    on_each_backend(|| {
        ranks(1, |group| {
            group.abort().unwrap();
            assert_eq!(group.all_reduce(&mut zeros(1), ReduceOp::Sum).unwrap_err().kind(), ErrorKind::Aborted);
        });
    });
}

// ---- timeouts of single calls

/// Without desync reports, in which a rank that does not answer within 3 s, as on a busy machine, would count as lost.
fn without_reports() -> GroupOptions {
    GroupOptions { desync_report: false, ..crate::common::options() }
}

#[test]
fn a_call_with_its_own_timeout_ends_though_the_groups_is_long() {
    late_calls_end(&CALLS, |group, timeout, call| group.with_timeout(timeout, call));
}

#[test]
fn a_group_that_connected_patiently_may_have_a_short_timeout_afterwards() {
    // A collective and a message: the backends keep the timeouts of both in different places.
    late_calls_end(&[CALLS[0], CALLS[6]], |group, timeout, call| {
        group.set_timeout(timeout).unwrap();
        assert_eq!(group.timeout(), timeout);
        call(group)
    });
}

/// Each call of rank 0 ends at its limit, while rank 1 makes no call.
fn late_calls_end(calls: &[(&str, Call)], limit: fn(&ProcessGroup, Duration, Call) -> c10d::Result<()>) {
    on_each_backend(|| {
        for &(name, call) in calls {
            let (done, wait) = channels::<()>();
            let errors = ranks_with(2, &without_reports(), |group| {
                group.barrier().unwrap();
                if group.rank() == rank(1) {
                    wait.lock().unwrap().recv_timeout(DEADLINE).unwrap();
                    return None;
                }
                let error = limit(&group, scaled(Duration::from_millis(30)), call).unwrap_err();
                done.lock().unwrap().send(()).unwrap();
                Some(error)
            });
            let error = errors.into_iter().flatten().next().unwrap();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{name}: {error}");
        }
    });
}

#[test]
fn the_timeout_holds_for_the_calls_inside_only_also_after_a_panic() {
    ranks(2, |group| {
        let short = Duration::from_nanos(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            group.with_timeout(short, |_| panic!("inside"));
        }));
        assert!(panicked.is_err());
        // Rank 1 is late by more than that.
        if group.rank() == rank(1) {
            std::thread::sleep(Duration::from_millis(20));
        }
        group.all_reduce(&mut zeros(1), ReduceOp::Sum).unwrap();
    });
}

#[test]
fn a_late_message_keeps_the_timeout_with_which_it_was_started() {
    on_each_backend(|| {
        let (done, wait) = channels::<()>();
        let errors = ranks_with(2, &without_reports(), |group| {
            if group.rank() == rank(1) {
                wait.lock().unwrap().recv_timeout(DEADLINE).unwrap();
                return None;
            }
            let started =
                group.with_timeout(scaled(Duration::from_millis(50)), |group| group.irecv(zeros(1), rank(1), 0));
            let error = started.unwrap().wait().unwrap_err();
            done.lock().unwrap().send(()).unwrap();
            Some(error)
        });
        assert_eq!(errors[0].as_ref().unwrap().kind(), ErrorKind::Timeout);
    });
}
