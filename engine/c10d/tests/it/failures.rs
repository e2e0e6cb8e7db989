//! The reports of a rank when another one dies, does not arrive, or calls another operation.

use std::env::current_exe;
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use c10d::{Backend, DebugLevel, ErrorKind, GroupOptions, ProcessGroup, RankState, ReduceOp, Store, WorldSize};
use lockstep_process::watchdog::scaled;
use tch::{Kind, Tensor};

use crate::common::{DEADLINE, backend, join_on, on_each_backend, options, rank, ranks_on, ranks_with, refused};

/// The timeout of calls that cannot end. The group's own is longer than joining takes.
fn short() -> Duration {
    scaled(Duration::from_millis(100))
}

fn zeros(n: i64) -> Tensor {
    Tensor::zeros([n], (Kind::Float, tch::Device::Cpu))
}

#[test]
fn a_rank_that_left_is_named_by_the_others() {
    on_each_backend(|| {
        let errors = ranks_with(3, &crate::common::options(), |group| {
            if group.rank() == rank(1) {
                drop(group);
                return None;
            }
            Some(group.all_reduce(&mut zeros(2), ReduceOp::Sum).unwrap_err())
        });
        for error in errors.into_iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
            assert!(error.to_string().contains("rank 1 has left the group after 0 finished calls"), "{error}");
            assert!(error.operation().contains("all_reduce(Sum) of [2] Float"), "{error}");
        }
    });
}

#[test]
fn a_rank_that_panicked_is_named_with_its_panic() {
    on_each_backend(|| {
        let errors = ranks_with(2, &crate::common::options(), |group| {
            if group.rank() == rank(1) {
                let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                    let _group = group;
                    panic!("a bug in rank 1");
                }));
                assert!(panicked.is_err());
                return None;
            }
            Some(group.barrier().unwrap_err())
        });
        let error = errors.into_iter().flatten().next().unwrap();
        assert!(error.to_string().contains("rank 1 panicked after 0 finished calls"), "{error}");
        // Its connections were closed, so the others do not wait for their deadline.
        assert!(!error.detail().contains("Timed out"), "{error}");
    });
}

#[test]
fn a_rank_in_another_collective_is_named_with_both_calls() {
    on_each_backend(|| {
        let compares = GroupOptions { compare_calls: Some(true), ..crate::common::options() };
        let errors = ranks_with(2, &compares, |group| {
            let mut t = zeros(2);
            if group.rank().is_zero() {
                group.all_reduce(&mut t, ReduceOp::Sum).unwrap_err()
            } else {
                group.broadcast(&mut t, rank(0)).unwrap_err()
            }
        });
        for (me, error) in errors.iter().enumerate() {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let text = error.to_string();
            assert!(text.contains(&format!("rank {}", 1 - me)), "{text}");
            assert!(text.contains("all_reduce(Sum) of [2] Float") && text.contains("broadcast from rank 0"), "{text}");
        }
    });
}

#[test]
fn a_rank_that_is_busy_elsewhere_is_reported_outside_any_collective() {
    on_each_backend(|| {
        let (done, wait) = channel::<()>();
        let (done, wait) = (std::sync::Mutex::new(Some(done)), std::sync::Mutex::new(wait));
        ranks_with(2, &crate::common::options(), |group| {
            if group.rank().is_zero() {
                let sum = group.with_timeout(short(), |group| group.all_reduce(&mut zeros(1), ReduceOp::Sum));
                let error = sum.unwrap_err();
                let desync_report = error.desync_report().expect("a desync report");
                assert_eq!(desync_report.answers()[&rank(1)], Some(RankState::Between { finished: 0 }));
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                assert!(desync_report.missing().is_empty());
                drop(done.lock().unwrap().take());
            } else {
                // Ends when rank 0 has its error.
                wait.lock().unwrap().recv_timeout(crate::common::DEADLINE).unwrap_err();
            }
        });
    });
}

#[test]
fn a_rank_that_never_answers_is_reported_as_missing() {
    on_each_backend(|| {
        // Rank 1 sends no reports, like a Python rank or one that was killed.
        let store = Arc::new(Store::hash().unwrap());
        let (world, on) = (WorldSize::new(2).unwrap(), backend());
        std::thread::scope(|scope| {
            let other = Arc::clone(&store);
            let silent = scope.spawn(move || {
                let options = GroupOptions { desync_report: false, ..crate::common::options() };
                join_on(on, &other, rank(1), world, &options).unwrap()
            });
            let group = join_on(on, &store, rank(0), world, &crate::common::options()).unwrap();
            let held = silent.join().unwrap();
            let error = group.with_timeout(short(), ProcessGroup::barrier).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
            assert_eq!(error.desync_report().unwrap().missing(), [rank(1)]);
            assert!(error.to_string().contains("rank 1 did not answer"), "{error}");
            drop(held);
        });
    });
}

#[test]
fn an_incomplete_group_names_the_ranks_that_never_came() {
    on_each_backend(|| {
        let store = Store::hash().unwrap();
        let options = GroupOptions { timeout: short(), ..crate::common::options() };
        let error = join_on(backend(), &store, rank(0), WorldSize::new(3).unwrap(), &options).unwrap_err();
        assert!(error.to_string().contains("never came: ranks 1, 2"), "{error}");
        assert_eq!(error.rank(), Some(rank(0)));
    });
}

#[test]
fn monitored_barrier_names_all_missing_ranks_on_rank_zero() {
    on_each_backend(|| {
        let errors = ranks_with(3, &crate::common::options(), |group| {
            group.rank().is_zero().then(|| group.monitored_barrier(Duration::from_millis(500), true).unwrap_err())
        });
        let error = errors.into_iter().flatten().next().unwrap();
        assert!(error.detail().contains("1, 2"), "{error}");
    });
}

#[test]
fn monitored_barrier_passes_when_all_come() {
    on_each_backend(|| {
        ranks_with(3, &crate::common::options(), |group| {
            group.monitored_barrier(crate::common::DEADLINE, false).unwrap()
        });
    });
}

#[test]
fn monitored_barrier_names_the_earlier_call_that_waits_for_others() {
    on_each_backend(|| {
        let (done, wait) = channel::<()>();
        let (done, wait) = (std::sync::Mutex::new(Some(done)), std::sync::Mutex::new(wait));
        let compares = GroupOptions { compare_calls: Some(true), ..crate::common::options() };
        ranks_with(2, &compares, |group| {
            if group.rank().is_zero() {
                let sum = group.all_reduce_async(zeros(1), ReduceOp::Sum).unwrap();
                let error = group.monitored_barrier(Duration::from_millis(300), true).unwrap_err();
                // Shared memory compares calls itself, and does not keep their text.
                let why = match group.backend() {
                    Backend::SharedMemory => "Calls before this one have not ended",
                    _ => "not started: \"all_reduce(Sum) of [1] Float\" waits for other ranks",
                };
                drop(done.lock().unwrap().take());
                sum.wait().unwrap_err();
                assert!(error.detail().contains(why), "{error}");
            } else {
                // Leaves when rank 0 has its error.
                wait.lock().unwrap().recv_timeout(crate::common::DEADLINE).unwrap_err();
            }
        });
    });
}

fn detail() -> GroupOptions {
    GroupOptions { debug: Some(DebugLevel::Detail), ..crate::common::options() }
}

#[test]
fn debug_mode_reports_mismatched_collectives_shapes_and_dtypes_with_ranks_and_calls() {
    on_each_backend(|| {
        type Call = fn(&ProcessGroup) -> c10d::Error;
        let all_reduce: Call = |g| g.all_reduce(&mut zeros(2), ReduceOp::Sum).unwrap_err();
        let cases: [(Call, [&str; 2]); 3] = [
            (|g| g.broadcast(&mut zeros(2), rank(0)).unwrap_err(), ["ALLREDUCE", "BROADCAST"]),
            (|g| g.all_reduce(&mut zeros(3), ReduceOp::Sum).unwrap_err(), ["[2]", "[3]"]),
            (|g| g.all_reduce(&mut zeros(2).to_kind(Kind::Double), ReduceOp::Sum).unwrap_err(), ["Float", "Double"]),
        ];
        for (other, words) in cases {
            let errors = ranks_with(2, &detail(), |group| {
                assert_eq!(group.debug_level(), DebugLevel::Detail);
                if group.rank().is_zero() { all_reduce(&group) } else { other(&group) }
            });
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
                let text = error.detail();
                assert!(words.iter().all(|word| text.contains(word)), "{text}");
                assert!(text.contains("Rank 0") && text.contains("Rank 1"), "{text}");
            }
        }
    });
}

#[test]
fn debug_mode_lets_matching_calls_pass() {
    on_each_backend(|| {
        ranks_with(2, &detail(), |group| {
            let mut t = zeros(4) + 1.0;
            group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
            assert_eq!(t.double_value(&[3]), 2.0);
        });
    });
}

#[test]
fn an_unknown_interface_is_a_clear_error() {
    let store = Store::hash().unwrap();
    let options = GroupOptions { endpoint: c10d::Endpoint::Interface("nosuch0".into()), ..crate::common::options() };
    let error = refused(ProcessGroup::gloo(&store, rank(0), WorldSize::ONE, &options));
    assert!(error.to_string().contains("nosuch0"), "{error}");
}

#[test]
fn a_second_desync_report_asks_again() {
    on_each_backend(|| {
        // Rank 1 answers for the first report and leaves before the second: the second must not show the first one's answer.
        let (first, wait_for_first) = channel::<()>();
        let (gone, wait_for_gone) = channel::<()>();
        let first = std::sync::Mutex::new(Some(first));
        let gone = std::sync::Mutex::new(Some(gone));
        let (wait_for_first, wait_for_gone) =
            (std::sync::Mutex::new(wait_for_first), std::sync::Mutex::new(wait_for_gone));
        ranks_with(2, &crate::common::options(), |group| {
            if group.rank().is_zero() {
                let error = group.monitored_barrier(Duration::from_millis(300), true).unwrap_err();
                assert_eq!(
                    error.desync_report().unwrap().answers()[&rank(1)],
                    Some(RankState::Between { finished: 0 })
                );
                drop(first.lock().unwrap().take());
                wait_for_gone.lock().unwrap().recv_timeout(crate::common::DEADLINE).unwrap_err();
                let error = group.monitored_barrier(Duration::from_millis(300), true).unwrap_err();
                let left = RankState::Left { finished: 0, panicking: false };
                assert_eq!(error.desync_report().unwrap().answers()[&rank(1)], Some(left), "{error}");
            } else {
                wait_for_first.lock().unwrap().recv_timeout(crate::common::DEADLINE).unwrap_err();
                drop(group);
                drop(gone.lock().unwrap().take());
            }
        });
    });
}

#[test]
fn messages_do_not_count_as_calls_that_all_ranks_must_make() {
    on_each_backend(|| {
        // Rank 0 exchanges messages with rank 1 only, so it makes more calls than rank 2 before the same collective.
        let errors = ranks_with(3, &crate::common::options(), |group| {
            match group.rank().get() {
                0 => (0..3).for_each(|_| group.send(&zeros(1), rank(1), 0).unwrap()),
                1 => (0..3).for_each(|_| group.recv(&mut zeros(1), rank(0), 0).unwrap()),
                _ => {}
            }
            match group.rank().get() {
                1 => None,
                _ => Some(group.all_reduce(&mut zeros(1), ReduceOp::Sum).unwrap_err()),
            }
        });
        for error in errors.into_iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
            let text = error.to_string();
            assert!(text.contains("rank 1 has left the group") && text.contains("call 1, all_reduce"), "{text}");
        }
    });
}

// A rank that waits for a lost rank delays others. They name the lost rank, not the one that waits for it. Over shared memory only,
// because Gloo only knows its own connections.

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
            group.recv(&mut zeros(2), rank(2), 0).unwrap_err();
        });
        let group = connect(0);
        until_waits.recv_timeout(DEADLINE).unwrap();
        // Within it, rank 1 begins to wait.
        let short = scaled(Duration::from_secs(10));
        let error = group.with_timeout(short, |group| group.all_reduce(&mut zeros(2), ReduceOp::Sum)).unwrap_err();
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
            let error = group.recv(&mut zeros(2), rank(2), 0).unwrap_err();
            assert!(error.detail().contains("rank 2 gave up because of rank 1"), "{error}");
        }
        // Leaves.
        1 => {}
        _ => {
            // Until the rank's leaving is noticed, messages to it are kept.
            let error = (0..).find_map(|_| group.isend(zeros(2), rank(1), 0).err()).unwrap();
            assert!(error.detail().contains("rank 1 has left the group"), "{error}");
            drop(group);
            gave_up.send(()).unwrap();
        }
    });
}

// The end of a process that is linked to libtorch.

/// Runs this executable while the dynamic linker prints to stderr which constructors and destructors it calls.
fn traced(argument: &str) -> Output {
    Command::new(current_exe().unwrap())
        .arg(argument)
        .env("LD_DEBUG", "files")
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap()
}

#[test]
fn a_process_ends_with_its_output_and_code_and_without_libtorchs_destructors() {
    for (argument, code, printed) in [("--list", 0, "failures::a_process_ends_"), ("--no-such-option", 101, "")] {
        let output = traced(argument);
        let (stdout, calls) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{argument}");
        assert!(stdout.contains(printed), "{stdout}");
        let of_libtorch =
            |call: &str| calls.lines().any(|line| line.contains(call) && line.contains("libtorch_cpu.so"));
        assert!(of_libtorch("calling init: ") && !of_libtorch("calling fini: "), "{argument}");
    }
}
