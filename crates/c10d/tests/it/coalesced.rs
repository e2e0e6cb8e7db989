//! Calls on several tensors: the values of one call for each, with one call's latency.

use crate::common::{on_each_backend, ranks};
use crate::common::{options, rank};
use c10d::{Backend, ErrorKind, P2pOp, ReduceOp};
use tch::{Device, Kind, Tensor};

fn numbered(shape: &[i64], from: i64) -> Tensor {
    let count: i64 = shape.iter().product();
    (Tensor::arange(count, (Kind::Float, Device::Cpu)) + from).reshape(shape)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float).contiguous().view(-1)).unwrap()
}

fn all(tensors: &[Tensor]) -> Vec<Vec<f32>> {
    tensors.iter().map(values).collect()
}

#[test]
fn several_tensors_are_reduced_gathered_and_scattered_in_one_call_each() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                let mine = group.rank().get() as i64;
                let shapes: [&[i64]; 4] = [&[2, 3], &[], &[0], &[5]];
                let inputs = || shapes.map(|shape| numbered(shape, 10 * mine));
                let calls = |run: &mut dyn FnMut()| {
                    let before = group.traffic().unwrap();
                    run();
                    (group.traffic().unwrap() - before).calls
                };

                let (mut together, mut single) = (inputs(), inputs());
                let made = calls(&mut || group.all_reduce_coalesced(&mut together, ReduceOp::Sum).unwrap());
                single.iter_mut().for_each(|tensor| group.all_reduce(tensor, ReduceOp::Sum).unwrap());
                assert_eq!((all(&together), made), (all(&single), 1));

                let outputs =
                    || shapes.map(|shape| Tensor::zeros([&[world as i64], shape].concat(), (Kind::Float, Device::Cpu)));
                let mut together = outputs();
                let made = calls(&mut || group.all_gather_into_tensor_coalesced(&mut together, &inputs()).unwrap());
                for (at, gathered) in together.iter().enumerate() {
                    let each = (0..world as i64).flat_map(|rank| values(&numbered(shapes[at], 10 * rank)));
                    assert_eq!(values(gathered), each.collect::<Vec<_>>());
                }
                assert_eq!(made, 1);

                // The inputs of a reduce-scatter are as large as the outputs of an all-gather.
                let large = || [3, 0, 2].map(|rows| numbered(&[world as i64 * rows, 2], 100 * mine));
                let small = || [3, 0, 2].map(|rows| Tensor::zeros([rows, 2], (Kind::Float, Device::Cpu)));
                let (mut together, mut single) = (small(), small());
                let made = calls(&mut || {
                    group.reduce_scatter_tensor_coalesced(&mut together, &large(), ReduceOp::Sum).unwrap();
                });
                for (output, input) in single.iter_mut().zip(&large()) {
                    group.reduce_scatter_tensor(output, input, ReduceOp::Sum).unwrap();
                }
                assert_eq!((all(&together), made), (all(&single), 1));
            });
        }
    });
}

#[test]
fn all_to_all_takes_lists_of_tensors_of_any_sizes() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                let mine = group.rank().get();
                // Rank s sends s + r numbers to rank r, all of them 10 s + r.
                let sent = |from: usize, to: usize| {
                    Tensor::full([(from + to) as i64, 1], (10 * from + to) as i64, (Kind::Int64, Device::Cpu))
                };
                let inputs: Vec<_> = (0..world).map(|to| sent(mine, to)).collect();
                let mut outputs: Vec<_> = (0..world).map(|from| sent(from, mine).zeros_like()).collect();
                group.all_to_all(&mut outputs, &inputs).unwrap();
                let due: Vec<_> = (0..world).map(|from| sent(from, mine)).collect();
                assert_eq!(all(&outputs), all(&due));
            });
        }
    });
}

#[test]
fn a_batch_of_messages_passes_them_all_whatever_the_order_of_the_lists() {
    on_each_backend(|| {
        ranks(3, |group| {
            let (mine, world) = (group.rank().get(), group.size().get());
            let (next, last) = (rank((mine + 1) % world), rank((mine + world - 1) % world));
            let long = 1 << 18; // longer than what a socket keeps
            let send = P2pOp::Send { tensor: numbered(&[long], mine as i64), to: next, tag: 3 };
            let recv = P2pOp::Recv { tensor: Tensor::zeros([long], (Kind::Float, Device::Cpu)), from: last, tag: 3 };
            let sends_first = mine % 2 == 0;
            let works = group.batch_isend_irecv(if sends_first { vec![send, recv] } else { vec![recv, send] }).unwrap();
            let done: Vec<Tensor> = works.into_iter().map(|work| work.wait().unwrap()).collect();
            let received = &done[usize::from(sends_first)];
            assert_eq!(values(received)[0], last.get() as f32);
        });
    });
}

#[test]
fn bitwise_operations_are_for_integers() {
    on_each_backend(|| {
        for world in 1..=4 {
            ranks(world, |group| {
                let mine = group.rank().get() as i64;
                for kind in [Kind::Uint8, Kind::Int8, Kind::Int, Kind::Int64] {
                    let bits = |rank: i64| [0b0111_1111 & !(1 << rank), 1 << rank, 0b0101 * (rank + 1)];
                    let run = |op| {
                        let mut tensor = Tensor::from_slice(&bits(mine)).to_kind(kind);
                        group.all_reduce(&mut tensor, op).unwrap();
                        Vec::<i64>::try_from(tensor.to_kind(Kind::Int64)).unwrap()
                    };
                    let fold = |f: fn(i64, i64) -> i64| {
                        (0..world as i64).map(bits).reduce(|a, b| std::array::from_fn(|at| f(a[at], b[at]))).unwrap()
                    };
                    assert_eq!(run(ReduceOp::BitAnd), fold(|a, b| a & b), "{kind:?} of {world}");
                    assert_eq!(run(ReduceOp::BitOr), fold(|a, b| a | b), "{kind:?} of {world}");
                    assert_eq!(run(ReduceOp::BitXor), fold(|a, b| a ^ b), "{kind:?} of {world}");
                }
                for kind in [Kind::Float, Kind::Half] {
                    let error =
                        group.all_reduce(&mut Tensor::ones([2], (kind, Device::Cpu)), ReduceOp::BitOr).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BadArgument);
                    assert!(error.to_string().contains("BitOr is for integers"), "{error}");
                }
                group.barrier().unwrap();
            });
        }
    });
}

#[test]
fn lists_that_do_not_fit_are_refused_before_anything_is_sent() {
    on_each_backend(|| {
        ranks(2, |group| {
            let float = || Tensor::ones([4], (Kind::Float, Device::Cpu));
            let double = || Tensor::ones([4], (Kind::Double, Device::Cpu));
            let sum = ReduceOp::Sum;
            let refused = [
                (group.all_gather_into_tensor_coalesced(&mut [float()], &[float()]), "4 elements for 2 times 4"),
                (
                    group.reduce_scatter_tensor_coalesced(&mut [float(), float()], &[float(), float()], sum),
                    "4 elements for a part of 2",
                ),
                (group.all_reduce_coalesced(&mut [float(), double()], sum), "Float and Double"),
                (group.all_reduce_coalesced(&mut [float(), Tensor::new()], sum), "tensor 1 is undefined"),
                (group.all_to_all(&mut [float()], &[float()]), "1 inputs"),
                (group.all_to_all(&mut [float()], &[float(), float()]), "1 outputs"),
                (group.all_to_all(&mut [double(), double()], &[float(), float()]), "outputs are Double"),
                (group.all_gather_into_tensor_coalesced(&mut [], &[float()]), "0 outputs"),
                (
                    group.reduce_scatter_tensor_coalesced(
                        &mut [float()],
                        &[Tensor::ones([3], (Kind::Float, Device::Cpu))],
                        sum,
                    ),
                    "3 elements",
                ),
            ];
            for (result, named) in refused {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BadArgument);
                assert!(error.to_string().contains(named), "{error}");
            }
            assert!(group.batch_isend_irecv(Vec::new()).unwrap().is_empty());
            group.all_reduce_coalesced(&mut [], sum).unwrap();
            group.barrier().unwrap();
        });
    });
}

#[test]
fn a_group_can_be_split_and_a_subgroup_can_have_a_backend_of_its_own() {
    on_each_backend(|| {
        ranks(4, |group| {
            let mine = group.rank().get();
            let parts = [vec![rank(3), rank(0)], vec![rank(1)]];
            let part = group.split_group(&parts, &options()).unwrap();
            let members = part.as_ref().map(|part| part.members().to_vec());
            let due = [Some(vec![rank(0), rank(3)]), Some(vec![rank(1)]), None, Some(vec![rank(0), rank(3)])];
            assert_eq!(members, due[mine]);
            let twice = group.split_group(&[vec![rank(1)], vec![rank(2), rank(1)]], &options()).unwrap_err();
            assert!(twice.to_string().contains("rank 1 occurs twice in the parts"), "{twice}");

            let other = if group.backend() == Backend::Gloo { Backend::SharedMemory } else { Backend::Gloo };
            let pair = group.new_group_on(other, &[rank(0), rank(1)], &options()).unwrap();
            if let Some(pair) = pair {
                assert_eq!(pair.backend(), other);
                let mut one = Tensor::ones([1], (Kind::Float, Device::Cpu));
                pair.all_reduce(&mut one, ReduceOp::Sum).unwrap();
                assert_eq!(values(&one), [2.0]);
            }
        });
    });
}
