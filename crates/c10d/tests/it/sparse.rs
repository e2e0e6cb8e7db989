//! The sum of sparse tensors, which have different numbers of values on each rank.

use crate::common::{on_each_backend, ranks, ranks_with};
use c10d::{ErrorKind, GroupOptions};
use tch::{Device, Kind, Tensor};

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
                    // Row 0 twice on each rank, and one that only this rank has; the last rank has no other.
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
