//! Ranks whose calls, shapes or dtypes differ: each gets a mismatch that names both sides, and no process dies.

use crate::common::{self, rank};
use crate::common::{backend, join_on, on_each_backend, ranks, ranks_with};
use std::time::Duration;

use c10d::{
    ErrorKind, GroupOptions, ProcessGroup, ReduceOp, Splits, Store, WorldSize, broadcast_coalesced, verify_params,
};
use lockstep_process::watchdog::scaled;
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// One rank's call, another rank's call, and texts that each error contains.
type Differing =
    (fn(&ProcessGroup) -> c10d::Result<()>, fn(&ProcessGroup) -> c10d::Result<()>, &'static [&'static str]);

fn ones(n: i64) -> Tensor {
    Tensor::ones([n], FLOAT)
}

const DIFFERING: &[Differing] = &[
    (
        |g| g.all_reduce(&mut ones(4), ReduceOp::Sum),
        |g| g.all_reduce(&mut ones(400_000), ReduceOp::Sum),
        &["all_reduce(Sum) of [4] Float", "all_reduce(Sum) of [400000] Float"],
    ),
    (
        |g| g.all_reduce(&mut ones(2), ReduceOp::Sum),
        |g| g.all_reduce(&mut ones(3), ReduceOp::Sum),
        &["[2] Float", "[3] Float"],
    ),
    (
        |g| g.broadcast(&mut ones(8), rank(0)),
        |g| g.broadcast(&mut ones(8).to_kind(Kind::Double), rank(0)),
        &["[8] Float", "[8] Double"],
    ),
    (|g| g.broadcast(&mut ones(8), rank(0)), |g| g.broadcast(&mut ones(8), rank(1)), &["from rank 0", "from rank 1"]),
    (
        |g| g.all_reduce(&mut ones(8), ReduceOp::Sum),
        |g| g.all_reduce(&mut ones(8), ReduceOp::Max),
        &["all_reduce(Sum)", "all_reduce(Max)"],
    ),
    (|g| g.barrier(), |g| g.reduce(&mut ones(8), rank(1), ReduceOp::Min), &["barrier", "reduce(Min) to rank 1"]),
    (
        |g| g.all_gather_into_tensor(&mut ones(2 * g.size().get() as i64), &ones(2)),
        |g| g.all_gather_into_tensor(&mut ones(9 * g.size().get() as i64), &ones(9)),
        &["all_gather_into_tensor of [2] Float", "all_gather_into_tensor of [9] Float"],
    ),
    (
        |g| broadcast_coalesced(g, &[ones(4)], 1 << 20, rank(0)),
        |g| broadcast_coalesced(g, &[ones(5)], 1 << 20, rank(0)),
        &["[4] Float", "[5] Float"],
    ),
    (|g| verify_params(g, &[ones(6)]), |g| verify_params(g, &[ones(6).reshape([2, 3])]), &["mismatch"]),
];

#[test]
fn ranks_whose_calls_differ_are_named_with_both_calls_and_stay_usable() {
    on_each_backend(|| {
        for world in [2, 3] {
            ranks(world, |group| {
                for (n, (one, other, words)) in DIFFERING.iter().enumerate() {
                    let last = group.rank().get() + 1 == world;
                    let error = if last { other(&group) } else { one(&group) }.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Mismatch, "{n}: {error}");
                    assert!(words.iter().all(|word| error.detail().contains(word)), "{n}: {error}");
                    let mut sum = ones(2);
                    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    assert_eq!(sum, ones(2) * world as f64, "{n}");
                }
            });
        }
    });
}

#[test]
fn rows_that_one_rank_sends_and_another_does_not_expect_are_named() {
    on_each_backend(|| {
        ranks(2, |group| {
            let mine = |input: [i64; 2], output: [i64; 2]| Splits::Sizes { input: input.into(), output: output.into() };
            let splits = if group.rank().is_zero() { mine([1, 3], [1, 2]) } else { mine([2, 2], [2, 2]) };
            let rows = if group.rank().is_zero() { (4, 3) } else { (4, 4) };
            let error = group.all_to_all_single(&mut ones(rows.1), &ones(rows.0), &splits).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.detail().contains("Rank 0 sends 3 rows to Rank 1, which expects 2"), "{error}");
            group.barrier().unwrap();
        });
    });
}

#[test]
fn a_message_of_an_unexpected_shape_or_dtype_is_a_mismatch() {
    on_each_backend(|| {
        type Case = (fn() -> Tensor, fn() -> Tensor, &'static [&'static str]);
        let cases: [Case; 3] = [
            (|| ones(2), || ones(4), &["sent [2] Float", "receives [4] Float"]),
            (|| ones(4), || ones(4).to_kind(Kind::Int), &["sent [4] Float", "receives [4] Int"]),
            (|| ones(4), || ones(2).to_kind(Kind::Double), &["sent [4] Float", "receives [2] Double"]),
        ];
        for (sent, received, words) in cases {
            ranks(2, |group| {
                if group.rank().is_zero() {
                    group.send(&sent(), rank(1), 0).unwrap();
                } else {
                    let error = group.recv(&mut received(), rank(0), 0).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
                    assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
                }
            });
        }
    });
}

/// The options of ranks that do not compare, such as Rust ranks together with Python's, or a build without debug
/// assertions.
fn without_comparison() -> GroupOptions {
    GroupOptions { compare_calls: Some(false), ..common::options() }
}

/// The timeout of calls that may not end without comparison. The group's own is longer than joining takes.
fn short() -> Duration {
    scaled(Duration::from_secs(3))
}

#[test]
fn a_buffer_that_is_too_small_is_an_error_and_not_an_abort_even_without_comparison() {
    on_each_backend(|| {
        let errors = ranks_with(2, &without_comparison(), |group| {
            let n = if group.rank().is_zero() { 4 } else { 400_000 };
            group.with_timeout(short(), |group| group.all_reduce(&mut ones(n), ReduceOp::Sum)).unwrap_err()
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let text = error.to_string();
            assert!(text.contains("[4] Float") && text.contains("[400000] Float"), "{text}");
        }
    });
}

#[test]
fn a_message_that_is_too_long_is_an_error_and_not_an_abort_even_without_comparison() {
    on_each_backend(|| {
        let errors = ranks_with(2, &without_comparison(), |group| {
            group.with_timeout(short(), |group| {
                if group.rank().is_zero() {
                    group.send(&ones(400_000), rank(1), 0).err()
                } else {
                    group.recv(&mut ones(4), rank(0), 0).err()
                }
            })
        });
        // Gloo does not always report the small buffer; then the deadline ends the wait.
        let receiver = errors[1].as_ref().expect("the message does not fit");
        assert!(receiver.to_string().contains("this rank was in recv [4] Float tag 0 from rank 0"), "{receiver}");
    });
}

#[test]
fn ranks_compare_calls_only_if_all_want_to() {
    on_each_backend(|| {
        let store = std::sync::Arc::new(Store::hash().unwrap());
        let (world, on) = (WorldSize::new(2).unwrap(), backend());
        std::thread::scope(|scope| {
            for me in 0..2 {
                let store = std::sync::Arc::clone(&store);
                scope.spawn(move || {
                    let options = GroupOptions { compare_calls: Some(me == 0), ..common::options() };
                    let group = join_on(on, &store, rank(me), world, &options).unwrap();
                    let mut sum = ones(2);
                    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    assert_eq!(sum, ones(2) * 2.0);
                });
            }
        });
    });
}
