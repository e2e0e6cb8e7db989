//! Point-to-point messages: blocking and non-blocking, tags, any source, and a ring.

use std::sync::Barrier;
use std::time::Duration;

use c10d::{Backend, ErrorKind, P2pOp, ReduceOp};
use lockstep_process::watchdog::scaled;
use tch::{Device, Kind, Tensor};

use crate::common::{on_each_backend, options, rank, ranks, refused};

fn number(n: f32) -> Tensor {
    Tensor::from_slice(&[n])
}

#[test]
fn a_ring_passes_each_number_to_the_next_rank() {
    on_each_backend(|| {
        for world in 2..=4 {
            ranks(world, |group| {
                let me = group.rank().get();
                let (next, last) = (rank((me + 1) % world), rank((me + world - 1) % world));
                let sending = group.isend(number(me as f32), next, 0).unwrap();
                let received = group.irecv(number(-1.0), last, 0).unwrap().wait().unwrap();
                let _sent = sending.wait().unwrap();
                assert_eq!(received.double_value(&[0]) as usize, last.get());
            });
        }
    });
}

#[test]
fn tags_match_messages_in_either_order() {
    on_each_backend(|| {
        ranks(2, |group| {
            if group.rank().is_zero() {
                let works = [5, 6].map(|tag| group.isend(number(f32::from(tag)), rank(1), tag).unwrap());
                let _sent = works.map(|work| work.wait().unwrap());
            } else {
                for tag in [6, 5] {
                    let mut t = number(0.0);
                    group.recv(&mut t, rank(0), tag).unwrap();
                    assert_eq!(t.double_value(&[0]), f64::from(tag));
                }
            }
        });
    });
}

#[test]
fn calls_are_recorded_from_the_moment_that_is_asked_for() {
    ranks(2, |group| {
        group.barrier().unwrap();
        assert!(group.called().is_empty());
        group.record_calls();
        let peer = rank(1 - group.rank().get());
        let sending = group.isend(number(1.0), peer, 7).unwrap();
        group.recv(&mut number(0.0), peer, 7).unwrap();
        let waited = || group.called().iter().map(|called| called.waited).collect::<Vec<_>>();
        assert_eq!(waited(), [false, true]);
        drop(sending.wait().unwrap());
        assert_eq!(waited(), [true, true]);
        let [sent, received] = &group.called()[..] else { panic!("two calls") };
        assert_eq!(sent.call.operation, format!("isend [1] Float tag 7 to rank {peer}"));
        assert_eq!(received.call.operation, format!("recv [1] Float tag 7 from rank {peer}"));
        assert_eq!(sent.members, [rank(0), rank(1)]);
        group.barrier().unwrap();
        let waited_before: Vec<usize> = group.called().iter().map(|called| called.waited_before).collect();
        assert_eq!(waited_before, [0, 0, 2]);
    });
}

#[test]
fn the_memory_of_a_recorded_receive_is_nan_until_the_message_arrives() {
    on_each_backend(|| {
        ranks(2, |group| {
            group.record_calls();
            if !group.rank().is_zero() {
                group.barrier().unwrap();
                return group.send(&number(1.0), rank(0), 7).unwrap();
            }
            let buffer = number(5.0);
            let same_memory = buffer.shallow_clone();
            let receiving = group.irecv(buffer, rank(1), 7).unwrap();
            assert!(same_memory.double_value(&[0]).is_nan(), "nothing is sent yet");
            group.barrier().unwrap();
            assert_eq!(receiving.wait().unwrap().double_value(&[0]), 1.0);
        });
    });
}

#[test]
fn receiving_from_any_rank_returns_the_sender() {
    on_each_backend(|| {
        ranks(3, |group| {
            if group.rank().is_zero() {
                let mut seen = Vec::new();
                let mut t = number(0.0);
                let first = group.recv_any(&mut t, 3).unwrap();
                assert_eq!(t.double_value(&[0]) as usize, first.get());
                seen.push(first);
                let (t, second) = group.irecv_any(number(0.0), 3).unwrap().wait().unwrap();
                assert_eq!(t.double_value(&[0]) as usize, second.get());
                seen.push(second);
                seen.sort_unstable();
                assert_eq!(seen, [rank(1), rank(2)]);
            } else {
                group.send(&number(group.rank().get() as f32), rank(0), 3).unwrap();
            }
        });
    });
}

#[test]
fn large_messages_arrive_completely() {
    on_each_backend(|| {
        ranks(2, |group| {
            let n = 1 << 20;
            if group.rank().is_zero() {
                group.send(&Tensor::arange(n, (Kind::Int64, tch::Device::Cpu)), rank(1), 0).unwrap();
            } else {
                let mut t = Tensor::zeros([n], (Kind::Int64, tch::Device::Cpu));
                group.recv(&mut t, rank(0), 0).unwrap();
                assert_eq!(t, Tensor::arange(n, (Kind::Int64, tch::Device::Cpu)));
            }
        });
    });
}

#[test]
fn a_message_to_itself_or_outside_the_group_is_refused_immediately() {
    ranks(2, |group| {
        let to_self = group.send(&number(0.0), group.rank(), 0).unwrap_err();
        assert_eq!(to_self.kind(), ErrorKind::BadArgument);
        assert!(to_self.to_string().contains("with itself"), "{to_self}");
        let outside = group.irecv(number(0.0), rank(9), 0).unwrap_err();
        assert!(outside.to_string().contains("rank 9 is outside a group of 2"), "{outside}");
    });
}

#[test]
fn a_late_message_is_a_timeout_and_not_a_mismatch_when_the_peer_is_in_another_exchange() {
    on_each_backend(|| {
        // Rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0: the calls match, but all are late.
        let short = scaled(Duration::from_millis(500));
        let errors = ranks(3, |group| {
            let me = group.rank().get();
            let mut buffer = Tensor::zeros([1 + me as i64], (Kind::Float, tch::Device::Cpu));
            group.with_timeout(short, |group| group.recv(&mut buffer, rank((me + 1) % 3), 0)).unwrap_err()
        });
        for error in &errors {
            assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerGone), "{error}");
        }
        assert!(errors.iter().any(|e| e.kind() == ErrorKind::Timeout), "{errors:?}");
    });
}

#[test]
fn a_receive_without_a_sender_times_out_and_names_the_peer() {
    on_each_backend(|| {
        let short = scaled(Duration::from_millis(300));
        let started = Barrier::new(2);
        let errors = ranks(2, |group| {
            let peer = rank(1 - group.rank().get());
            let receiving = group.with_timeout(short, |group| group.irecv(number(0.0), peer, 0)).unwrap();
            // The rank that gives up first finds the other one in its call.
            started.wait();
            receiving.wait().unwrap_err()
        });
        for (me, error) in errors.iter().enumerate() {
            assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerGone), "{error}");
            assert_eq!(error.peer(), Some(format!("rank {}", 1 - me).as_str()));
            assert_eq!(error.rank(), Some(rank(me)));
            assert_eq!(error.operation(), "irecv [1] Float tag 0");
            let (own, theirs) = (format!("tag 0 from rank {}", 1 - me), format!("tag 0 from rank {me}"));
            assert!(error.to_string().contains(&format!("this rank was in irecv [1] Float {own}")), "{error}");
            assert!(error.to_string().contains(&format!("in irecv [1] Float {theirs}")), "{error}");
        }
        assert!(errors.iter().any(|e| e.kind() == ErrorKind::Timeout), "{errors:?}");
    });
}

#[test]
fn messages_that_nobody_receives_yet_do_not_hold_up_others() {
    on_each_backend(|| {
        // More than a queue holds; all of them are received before the first message.
        const MORE: u8 = 100;
        ranks(2, |group| {
            if group.rank().is_zero() {
                let first = group.isend(number(-1.0), rank(1), 1).unwrap();
                (0..MORE).for_each(|n| group.send(&number(f32::from(n)), rank(1), 2).unwrap());
                drop(first.wait().unwrap());
            } else {
                let mut got = number(0.0);
                for n in 0..MORE {
                    group.recv(&mut got, rank(0), 2).unwrap();
                    assert_eq!(got.double_value(&[0]), f64::from(n));
                }
                group.recv(&mut got, rank(0), 1).unwrap();
                assert_eq!(got.double_value(&[0]), -1.0);
            }
        });
    });
}

// Calls on several tensors: the same values as one call for each tensor, with the latency of one call.

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
            let long = 1 << 18; // longer than a socket's buffer
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
                    let error = refused(group.all_reduce(&mut Tensor::ones([2], (kind, Device::Cpu)), ReduceOp::BitOr));
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
            let calls = [
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
            for (result, named) in calls {
                let error = refused(result);
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
