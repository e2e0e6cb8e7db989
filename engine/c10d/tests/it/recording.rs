//! What ranks leave in a recording of their calls.

use std::fs;
use std::path::Path;

use c10d::{Backend, GroupOptions, ReduceOp};
use lockstep_contract::recording::{Element, Enter, Form, Kind as CallKind, Leave, Line, Recorded};
use tch::{Kind, Tensor};

use crate::common::{backend, on_each_backend, options, rank, ranks_with};

fn lines(folder: &Path, rank: usize) -> Vec<Recorded> {
    let text = fs::read_to_string(folder.join(format!("rank-{rank}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap().what).collect()
}

/// Each call with its end.
fn calls(folder: &Path, rank: usize) -> Vec<(Enter, Leave)> {
    let lines = lines(folder, rank);
    let end = |call: u64| {
        lines.iter().find_map(|line| match line {
            Recorded::Leave(leave) if leave.call == call => Some(leave.clone()),
            _ => None,
        })
    };
    let entered = lines.iter().filter_map(|line| match line {
        Recorded::Enter(enter) => Some((enter.clone(), end(enter.call).expect("each call ends"))),
        _ => None,
    });
    entered.collect()
}

fn floats<const N: usize>(values: [f64; N]) -> Vec<Element> {
    values.into_iter().map(Element::Float).collect()
}

#[test]
fn calls_are_recorded_with_their_bytes_numbers_and_first_elements() {
    on_each_backend(|| {
        let dir = tempfile::tempdir().unwrap();
        let options = GroupOptions { recording: Some(dir.path().to_owned()), ..options() };
        ranks_with(2, &options, |group| {
            let me = group.rank().get();
            let mut sum = Tensor::from_slice(&[0.5_f32, 1.5, 2.5, 3.5, 4.5]) + me as f64;
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            let work = group.all_reduce_async(Tensor::from_slice(&[me as i64]), ReduceOp::Max).unwrap();
            drop(work.wait().unwrap());
            let part = group.new_group(&[rank(0), rank(1)], &options).unwrap().unwrap();
            part.barrier().unwrap();
            if me == 0 {
                group.send(&Tensor::from_slice(&[7.0_f64, 8.0]), rank(1), 3).unwrap();
                drop(group.isend(Tensor::from_slice(&[9.0_f64]), rank(1), 4).unwrap().wait().unwrap());
            } else {
                let mut got = Tensor::zeros([2], (Kind::Double, tch::Device::Cpu));
                group.recv(&mut got, rank(0), 3).unwrap();
                let mut any = Tensor::zeros([1], (Kind::Double, tch::Device::Cpu));
                assert_eq!(group.recv_any(&mut any, 4).unwrap(), rank(0));
            }
        });
        for me in [0, 1] {
            let calls = calls(dir.path(), me);
            assert!(calls.iter().all(|(_, leave)| leave.error.is_none() && !leave.unawaited), "{calls:?}");
            let [(sum, summed), (max, found), (barrier, _), (first, got), (second, last)] = &calls[..] else {
                panic!("{calls:?}")
            };
            assert_eq!((sum.number, sum.bytes, sum.form, sum.group.as_str()), (Some(1), Some(20), Form::Blocking, "0"));
            assert_eq!(sum.operation, "all_reduce(Sum) of [5] Float");
            assert_eq!(sum.before, floats([0.5, 1.5, 2.5, 3.5].map(|value| value + me as f64)));
            assert_eq!(summed.after, floats([2.0, 4.0, 6.0, 8.0]));
            assert_eq!((max.number, max.form, &found.after[..]), (Some(2), Form::Async, &[Element::Integer(1)][..]));
            let waited = Recorded::Wait { call: max.call };
            assert!(lines(dir.path(), me).contains(&waited));
            assert_eq!((barrier.group.as_str(), barrier.number, barrier.bytes), ("1", Some(1), Some(0)));
            let (peer, numbers) = (Some(1 - me), [first.number, second.number.or(last.number)]);
            assert_eq!((first.peer, first.tag, first.bytes, numbers), (peer, Some(3), Some(16), [Some(1); 2]));
            if me == 0 {
                assert_eq!((first.kind, &first.before), (CallKind::Send, &floats([7.0, 8.0])));
            } else {
                assert_eq!((first.kind, &first.before, &got.after), (CallKind::Receive, &vec![], &floats([7.0, 8.0])));
                assert_eq!((second.peer, last.peer, &last.after), (None, peer, &floats([9.0])));
            }
        }
        let joins = lines(dir.path(), 0).into_iter().filter(|line| matches!(line, Recorded::Join { .. }));
        let expected = ["0", "1"].map(|group| Recorded::Join { group: group.into(), ranks: vec![0, 1] });
        assert_eq!(joins.collect::<Vec<_>>(), expected);
    });
}

#[test]
fn failed_and_abandoned_calls_are_recorded_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let options = GroupOptions { recording: Some(dir.path().to_owned()), compare_calls: Some(true), ..options() };
    ranks_with(2, &options, |group| {
        let mut t = Tensor::from_slice(&[1.0_f32]);
        drop(group.all_reduce_async(t.shallow_clone() + 1.0, ReduceOp::Sum).unwrap());
        group.barrier().unwrap();
        let called = if group.rank().is_zero() {
            group.all_reduce(&mut t, ReduceOp::Sum)
        } else {
            group.broadcast(&mut t, rank(0))
        };
        called.unwrap_err();
    });
    assert_eq!(backend(), Backend::Gloo);
    for me in [0, 1] {
        let calls = calls(dir.path(), me);
        assert!(calls[0].1.unawaited && calls[0].1.error.is_none(), "{calls:?}");
        assert_eq!(calls[2].1.error.as_deref(), Some("Mismatch"), "{calls:?}");
        assert!(calls[2].1.after.is_empty());
    }
}

#[test]
fn a_second_default_group_of_a_process_has_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let options = GroupOptions { recording: Some(dir.path().to_owned()), ..options() };
    for _ in 0..2 {
        ranks_with(2, &options, |group| group.barrier().unwrap());
    }
    let groups: Vec<_> = calls(dir.path(), 0).into_iter().map(|(enter, _)| (enter.group, enter.number)).collect();
    assert_eq!(groups, [("0".to_owned(), Some(1)), ("0#1".to_owned(), Some(1))]);
}
