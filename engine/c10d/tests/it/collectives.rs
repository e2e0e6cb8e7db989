//! Every collective, on every world size from 1 to 4, compared with sums that are easy to compute by hand.

use c10d::{ErrorKind, GroupOptions, ReduceOp, Splits};
use tch::{Device, Kind, Tensor};

use crate::common::{on_each_backend, rank, ranks, ranks_with};

fn of(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float).flatten(0, -1)).unwrap()
}

#[test]
fn all_reduce_applies_each_operation_on_every_world_size() {
    on_each_backend(|| {
        for world in 1..=4 {
            let results = ranks(world, |group| {
                let mine = (group.rank().get() + 1) as f32;
                let run = |op| {
                    let mut t = of(&[mine, -mine]);
                    group.all_reduce(&mut t, op).unwrap();
                    values(&t)
                };
                [run(ReduceOp::Sum), run(ReduceOp::Product), run(ReduceOp::Min), run(ReduceOp::Max)]
            });
            let n = world as f32;
            let sum: f32 = (1..=world).map(|i| i as f32).sum();
            let product: f32 = (1..=world).map(|i| i as f32).product();
            let sign = if world % 2 == 0 { 1.0 } else { -1.0 };
            let expected = [vec![sum, -sum], vec![product, sign * product], vec![1.0, -n], vec![n, -1.0]];
            assert!(results.iter().all(|r| *r == expected), "world {world}: {results:?}");
        }
    });
}

#[test]
fn average_divides_by_the_world_size() {
    on_each_backend(|| {
        for world in 1..=4 {
            let results = ranks(world, |group| {
                let mine = group.rank().get() as f32;
                let mut all = of(&[mine, 6.0]);
                group.all_reduce(&mut all, ReduceOp::Avg).unwrap();
                let mut part = of(&[0.0]);
                let parts: Vec<Tensor> = (0..world).map(|_| of(&[mine])).collect();
                group.reduce_scatter(&mut part, &parts, ReduceOp::Avg).unwrap();
                (values(&all), values(&part))
            });
            let mean = (world - 1) as f32 / 2.0;
            assert!(results.iter().all(|r| *r == (vec![mean, 6.0], vec![mean])), "world {world}: {results:?}");
        }
    });
}

#[test]
fn all_reduce_accepts_every_dtype_that_gloo_supports_and_refuses_others() {
    on_each_backend(|| {
        let good =
            [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16, Kind::Uint8, Kind::Int8, Kind::Int, Kind::Int64];
        ranks(2, |group| {
            for kind in good {
                let mut t = Tensor::full([3], 2 + group.rank().get() as i64, (kind, tch::Device::Cpu));
                group.all_reduce(&mut t, ReduceOp::Sum).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
                assert_eq!(values(&t), [5.0; 3], "{kind:?}");
            }
            for kind in [Kind::Int16, Kind::ComplexDouble] {
                let error = group.all_reduce(&mut Tensor::zeros([3], (kind, tch::Device::Cpu)), ReduceOp::Max);
                assert_eq!(error.unwrap_err().kind(), ErrorKind::BadArgument, "{kind:?}");
            }
        });
    });
}

#[test]
fn broadcast_and_reduce_reach_and_leave_every_root() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                for root in group.size().ranks() {
                    let mut t = of(&[group.rank().get() as f32; 2]);
                    group.broadcast(&mut t, root).unwrap();
                    assert_eq!(values(&t), [root.get() as f32; 2]);
                    let mut t = of(&[group.rank().get() as f32]);
                    group.reduce(&mut t, root, ReduceOp::Sum).unwrap();
                    if group.rank() == root {
                        assert_eq!(values(&t), [(0..world).sum::<usize>() as f32]);
                    }
                }
            });
        }
    });
}

#[test]
fn gathers_collect_every_rank_in_order() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                let mine = of(&[group.rank().get() as f32, 7.0]);
                let expected: Vec<f32> = (0..world).flat_map(|r| [r as f32, 7.0]).collect();
                let room =
                    || (0..world).map(|_| Tensor::zeros([2], (Kind::Float, tch::Device::Cpu))).collect::<Vec<_>>();

                let mut outputs = room();
                group.all_gather(&mut outputs, &mine).unwrap();
                assert_eq!(values(&Tensor::stack(&outputs, 0)), expected);

                let mut output = Tensor::zeros([2 * world as i64], (Kind::Float, tch::Device::Cpu));
                group.all_gather_into_tensor(&mut output, &mine).unwrap();
                assert_eq!(values(&output), expected);

                let root = rank(world - 1);
                let mut outputs = if group.rank() == root { room() } else { Vec::new() };
                group.gather(&mut outputs, &mine, root).unwrap();
                if group.rank() == root {
                    assert_eq!(values(&Tensor::stack(&outputs, 0)), expected);
                }
            });
        }
    });
}

#[test]
fn scatter_distributes_the_roots_tensors() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                let mut output = of(&[-1.0]);
                let inputs: Vec<Tensor> =
                    if group.rank().is_zero() { (0..world).map(|r| of(&[10.0 + r as f32])).collect() } else { vec![] };
                group.scatter(&mut output, &inputs, rank(0)).unwrap();
                assert_eq!(values(&output), [10.0 + group.rank().get() as f32]);
            });
        }
    });
}

#[test]
fn reduce_scatter_leaves_each_rank_its_part_of_the_sum() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                let me = group.rank().get() as f32;
                let n = world as f32;
                let expected = n * me + (0..world).sum::<usize>() as f32;

                let inputs: Vec<Tensor> = (0..world).map(|part| of(&[part as f32 + me])).collect();
                let mut output = of(&[0.0]);
                group.reduce_scatter(&mut output, &inputs, ReduceOp::Sum).unwrap();
                assert_eq!(values(&output), [expected]);

                let mut output = of(&[0.0]);
                group.reduce_scatter_tensor(&mut output, &Tensor::cat(&inputs, 0), ReduceOp::Sum).unwrap();
                assert_eq!(values(&output), [expected]);
            });
        }
    });
}

#[test]
fn all_to_all_exchanges_equal_and_unequal_parts() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                let me = group.rank().get();
                let input: Vec<f32> = (0..world).map(|to| (10 * me + to) as f32).collect();
                let mut output = Tensor::zeros([world as i64], (Kind::Float, tch::Device::Cpu));
                group.all_to_all_single(&mut output, &of(&input), &Splits::Equal).unwrap();
                assert_eq!(values(&output), (0..world).map(|from| (10 * from + me) as f32).collect::<Vec<_>>());

                // Rank r sends r + 1 copies of its number to every rank.
                let sizes: Vec<i64> = (0..world).map(|from| from as i64 + 1).collect();
                let splits = Splits::Sizes { input: vec![me as i64 + 1; world], output: sizes.clone() };
                let input = vec![me as f32; world * (me + 1)];
                let mut output = Tensor::zeros([sizes.iter().sum::<i64>()], (Kind::Float, tch::Device::Cpu));
                group.all_to_all_single(&mut output, &of(&input), &splits).unwrap();
                let expected: Vec<f32> = (0..world).flat_map(|from| vec![from as f32; from + 1]).collect();
                assert_eq!(values(&output), expected);
            });
        }
    });
}

#[test]
fn asynchronous_forms_return_their_tensors() {
    on_each_backend(|| {
        ranks(2, |group| {
            let me = group.rank().get() as f32;
            let zeros = |n: i64| Tensor::zeros([n], (Kind::Float, tch::Device::Cpu));
            let several: Vec<_> =
                (0..5).map(|i| group.all_reduce_async(of(&[me + i as f32]), ReduceOp::Sum).unwrap()).collect();
            for (i, work) in several.into_iter().enumerate() {
                assert_eq!(values(&work.wait().unwrap()), [1.0 + 2.0 * i as f32]);
            }
            let t = group.broadcast_async(of(&[me]), rank(1)).unwrap().wait().unwrap();
            assert_eq!(values(&t), [1.0]);
            let t = group.reduce_async(of(&[me]), rank(0), ReduceOp::Max).unwrap().wait().unwrap();
            assert!(me != 0.0 || values(&t) == [1.0]);
            let ts = group.all_gather_async(vec![zeros(1), zeros(1)], of(&[me])).unwrap().wait().unwrap();
            assert_eq!(values(&Tensor::cat(&ts, 0)), [0.0, 1.0]);
            let t = group.all_gather_into_tensor_async(zeros(2), of(&[me])).unwrap().wait().unwrap();
            assert_eq!(values(&t), [0.0, 1.0]);
            let room = if me == 0.0 { vec![zeros(1), zeros(1)] } else { vec![] };
            let ts = group.gather_async(room, of(&[me]), rank(0)).unwrap().wait().unwrap();
            assert!(me != 0.0 || values(&Tensor::cat(&ts, 0)) == [0.0, 1.0]);
            let deal = if me == 0.0 { vec![of(&[4.0]), of(&[5.0])] } else { vec![] };
            assert_eq!(values(&group.scatter_async(zeros(1), deal, rank(0)).unwrap().wait().unwrap()), [4.0 + me]);
            let parts = vec![of(&[me]), of(&[2.0 + me])];
            let t = group.reduce_scatter_async(zeros(1), parts, ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(values(&t), [1.0 + 4.0 * me]);
            let t = group.reduce_scatter_tensor_async(zeros(1), of(&[me, 2.0 + me]), ReduceOp::Sum).unwrap();
            assert_eq!(values(&t.wait().unwrap()), [1.0 + 4.0 * me]);
            let t = group.all_to_all_single_async(zeros(2), of(&[me, me + 10.0]), &Splits::Equal).unwrap();
            assert_eq!(values(&t.wait_for(crate::common::DEADLINE).unwrap()), [10.0 * me, 1.0 + 10.0 * me]);
            group.barrier_async().unwrap().wait().unwrap();
        });
    });
}

#[test]
fn wrong_counts_and_ranks_are_refused_before_anything_is_sent() {
    on_each_backend(|| {
        ranks(2, |group| {
            let mut t = of(&[0.0]);
            let outsider = group.broadcast(&mut t, rank(2)).unwrap_err();
            assert_eq!(outsider.kind(), ErrorKind::BadArgument);
            assert_eq!(outsider.detail(), "rank 2 is outside a group of 2");
            let few = group.all_gather(&mut [], &t).unwrap_err();
            assert!(few.to_string().contains("0 outputs were given where rank"), "{few}");
            let odd = Splits::Sizes { input: vec![1], output: vec![1, 0] };
            assert_eq!(group.all_to_all_single(&mut of(&[0.0]), &t, &odd).unwrap_err().kind(), ErrorKind::BadArgument);
            // Both ranks can still communicate.
            group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
        });
    });
}

#[test]
fn subgroups_are_separate_and_agree_on_names() {
    on_each_backend(|| {
        ranks(4, |group| {
            let options = crate::common::options();
            let pairs = [[0, 1], [2, 3]].map(|pair| group.new_group(&pair.map(rank), &options).unwrap());
            // Members are sorted, as in Python: rank 2 is position 1 of {3, 0, 2}.
            let odd = group.new_group(&[3, 0, 2].map(rank), &options).unwrap();
            let me = group.rank().get();
            let pair = pairs.into_iter().flatten().next().expect("each rank is in one pair");
            assert_eq!(pair.name(), if me < 2 { "1" } else { "2" });
            let mut t = of(&[me as f32]);
            pair.all_reduce(&mut t, ReduceOp::Sum).unwrap();
            assert_eq!(values(&t), [if me < 2 { 1.0 } else { 5.0 }]);
            assert_eq!(odd.is_none(), me == 1);
            if let Some(odd) = odd {
                assert_eq!((odd.name(), odd.members()), ("3", [0, 2, 3].map(rank).as_slice()));
                let mut t = of(&[me as f32]);
                odd.broadcast(&mut t, rank(1)).unwrap();
                assert_eq!(values(&t), [2.0]);
            }
            group.barrier().unwrap();
        });
    });
}

#[test]
fn subgroups_of_unknown_duplicate_or_no_ranks_are_refused() {
    on_each_backend(|| {
        ranks(2, |group| {
            for (ranks, word) in
                [(vec![], "at least one"), (vec![rank(0), rank(0)], "twice"), (vec![rank(5)], "outside")]
            {
                let error = group.new_group(&ranks, &crate::common::options()).unwrap_err();
                assert!(error.to_string().contains(word), "{error}");
            }
        });
    });
}

#[test]
fn a_host_name_of_this_machine_works_as_an_endpoint_like_an_interface() {
    on_each_backend(|| {
        let options =
            c10d::GroupOptions { endpoint: c10d::Endpoint::Host("127.0.0.1".into()), ..crate::common::options() };
        let sums = crate::common::ranks_with(2, &options, |group| {
            let mut t = of(&[1.0]);
            group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
            values(&t)
        });
        assert_eq!(sums, [[2.0], [2.0]]);
    });
}

/// libtorch's own barrier writes a static tensor; ranks that are threads would corrupt the heap with it.
#[test]
fn barriers_of_ranks_that_are_threads_share_nothing() {
    on_each_backend(|| {
        ranks(4, |group| {
            for _ in 0..300 {
                group.barrier().unwrap();
            }
        });
    });
}

#[test]
fn a_group_counts_the_operations_and_bytes_that_a_rank_passes() {
    on_each_backend(|| {
        ranks(2, |group| {
            let (here, other) = (group.rank(), rank(1 - group.rank().get()));
            let counted = |calls: &dyn Fn()| {
                let before = group.traffic().unwrap();
                calls();
                let traffic = group.traffic().unwrap() - before;
                (traffic.calls, traffic.bytes)
            };
            let floats = || of(&[1.0; 6]);
            assert_eq!(counted(&|| group.all_reduce(&mut floats(), ReduceOp::Sum).unwrap()), (1, 24));
            let halves = || floats().to_kind(Kind::Half);
            assert_eq!(counted(&|| group.all_reduce(&mut halves(), ReduceOp::Sum).unwrap()), (1, 12));
            assert_eq!(counted(&|| group.broadcast(&mut floats(), rank(0)).unwrap()), (1, 24));
            assert_eq!(counted(&|| group.all_gather(&mut [floats(), floats()], &floats()).unwrap()), (1, 24));
            assert_eq!(
                counted(&|| group.reduce_scatter(&mut floats(), &[floats(), floats()], ReduceOp::Sum).unwrap()),
                (1, 48)
            );
            assert_eq!(counted(&|| group.barrier().unwrap()), (1, 0));
            let message = counted(&|| match here.is_zero() {
                true => group.send(&floats(), other, 0).unwrap(),
                false => group.recv(&mut floats(), other, 0).unwrap(),
            });
            assert_eq!(message, if here.is_zero() { (1, 24) } else { (0, 0) });
            let parts: Vec<Tensor> = if here.is_zero() { vec![floats(), floats()] } else { vec![] };
            let scattered = counted(&|| group.scatter(&mut floats(), &parts, rank(0)).unwrap());
            assert_eq!(scattered, (1, if here.is_zero() { 48 } else { 0 }));
        });
    });
}

// The sum of sparse tensors with different numbers of values on each rank.

/// `values` at these rows of a matrix of 6 × 2.
fn rows(rows: &[i64], value: f64, kind: Kind) -> Tensor {
    let values = Tensor::full([rows.len() as i64, 2], value, (kind, Device::Cpu));
    Tensor::sparse_coo_tensor_indices_size(
        &Tensor::from_slice(rows).unsqueeze(0),
        &values,
        [6, 2],
        (kind, Device::Cpu),
        false,
    )
}

#[test]
fn the_sum_has_the_rows_of_all_ranks_each_once() {
    on_each_backend(|| {
        for kind in [Kind::Float, Kind::Double, Kind::Int64] {
            for world in 1..=4 {
                let sums = ranks(world, |group| {
                    let me = group.rank().get() as i64;
                    // Row 0 twice on each rank, and one row that only this rank has; the last rank has no other row.
                    let mine: Vec<i64> = if me == 3 { vec![0, 0] } else { vec![0, 3 + me % 3, 0] };
                    let mut tensor = rows(&mine, (me + 1) as f64, kind);
                    group.all_reduce_sparse(&mut tensor).unwrap();
                    assert!(tensor.is_sparse() && tensor.is_coalesced());
                    assert_eq!(tensor.internal_nnz(), 1 + world.min(3) as i64);
                    Vec::<f64>::try_from(tensor.to_dense(None, false).to_kind(Kind::Double).select(1, 0)).unwrap()
                });
                let of = |row: usize| {
                    (0..world.min(3)).filter(|me| 3 + me % 3 == row).map(|me| (me + 1) as f64).sum::<f64>()
                };
                let all = 2.0 * (1..=world).sum::<usize>() as f64;
                for sum in sums {
                    assert_eq!(sum, [all, 0.0, 0.0, of(3), of(4), of(5)]);
                }
            }
        }
    });
}

#[test]
fn ranks_without_any_value_take_part() {
    on_each_backend(|| {
        ranks(3, |group| {
            let mine: &[i64] = if group.rank().get() == 1 { &[4] } else { &[] };
            let mut tensor = rows(mine, 7.0, Kind::Float);
            group.all_reduce_sparse(&mut tensor).unwrap();
            assert_eq!(tensor.to_dense(None, false).double_value(&[4, 1]), 7.0);
            let mut nothing = rows(&[], 0.0, Kind::Float);
            group.all_reduce_sparse(&mut nothing).unwrap();
            assert_eq!(nothing.internal_nnz(), 0);
        });
    });
}

#[test]
fn large_tensors_pass_in_pieces() {
    on_each_backend(|| {
        ranks(2, |group| {
            let me = group.rank().get() as i64;
            let count = if me == 0 { 100_000 } else { 10 };
            let indices = (Tensor::arange(count, (Kind::Int64, Device::Cpu)) * 2 + me).unsqueeze(0);
            let values = Tensor::ones([count, 3], (Kind::Float, Device::Cpu));
            let mut tensor = Tensor::sparse_coo_tensor_indices_size(
                &indices,
                &values,
                [200_000, 3],
                (Kind::Float, Device::Cpu),
                false,
            );
            group.all_reduce_sparse(&mut tensor).unwrap();
            assert_eq!(tensor.internal_nnz(), 100_010);
            assert_eq!(tensor.to_dense(None, false).sum(Kind::Double).double_value(&[]), 300_030.0);
        });
    });
}

#[test]
fn tensors_of_different_sizes_are_a_mismatch() {
    on_each_backend(|| {
        for compare_calls in [true, false] {
            let options = GroupOptions { compare_calls: Some(compare_calls), ..crate::common::options() };
            let errors = ranks_with(2, &options, |group| {
                let size = [6, 2 + group.rank().get() as i64];
                let values = Tensor::ones([1, size[1]], (Kind::Float, Device::Cpu));
                let indices = Tensor::from_slice(&[0_i64]).unsqueeze(0);
                let mut tensor =
                    Tensor::sparse_coo_tensor_indices_size(&indices, &values, size, (Kind::Float, Device::Cpu), false);
                group.all_reduce_sparse(&mut tensor).unwrap_err()
            });
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            }
        }
    });
}

#[test]
fn dense_tensors_and_booleans_are_refused() {
    on_each_backend(|| {
        ranks(1, |group| {
            let mut dense = Tensor::ones([2], (Kind::Float, Device::Cpu));
            for tensor in [&mut dense, &mut rows(&[1], 1.0, Kind::Bool)] {
                assert_eq!(group.all_reduce_sparse(tensor).unwrap_err().kind(), ErrorKind::BadArgument);
            }
            assert_eq!(group.all_reduce_sparse(&mut Tensor::new()).unwrap_err().kind(), ErrorKind::BadArgument);
        });
    });
}
