//! Safe calls with tensors that a backend would misread. Every collective and message, with tensors of every layout, gives
//! the right values or an error that names the call, and does not touch memory outside of its tensors.

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{self, on_each_backend, rank, ranks, ranks_with, refused};
use c10d::{ErrorKind, GroupOptions, ProcessGroup, Rank, ReduceOp, Splits, Store, broadcast_coalesced};
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// A call with its tensors in one list.
struct Operation {
    name: &'static str,
    /// The shapes of a rank's tensors, and how many of them, from the start of the list, are only read.
    tensors: fn(world: i64) -> (Vec<Vec<i64>>, usize),
    call: fn(&ProcessGroup, &mut [Tensor]) -> c10d::Result<()>,
}

/// One tensor of this shape that the operation changes.
fn in_place(_world: i64) -> (Vec<Vec<i64>>, usize) {
    (vec![vec![2, 3]], 0)
}

fn splits(group: &ProcessGroup) -> Splits {
    Splits::Sizes { input: vec![2; group.size().get()], output: vec![2; group.size().get()] }
}

fn neighbours(group: &ProcessGroup) -> (Rank, Rank) {
    let (me, world) = (group.rank().get(), group.size().get());
    (rank((me + 1) % world), rank((me + world - 1) % world))
}

/// Rank `r` sends to `r + 1` and receives from `r - 1`.
fn send_first(group: &ProcessGroup, tensors: &mut [Tensor]) -> c10d::Result<()> {
    let (next, last) = neighbours(group);
    let sending = group.isend(tensors[0].shallow_clone(), next, 4)?;
    group.recv(&mut tensors[1], last, 4)?;
    sending.wait().map(drop)
}

/// The same in the other order.
fn receive_first(group: &ProcessGroup, tensors: &mut [Tensor]) -> c10d::Result<()> {
    let (next, last) = neighbours(group);
    let receiving = group.irecv(tensors[1].shallow_clone(), last, 5)?;
    group.send(&tensors[0], next, 5)?;
    receiving.wait().map(drop)
}

const OPERATIONS: &[Operation] = &[
    Operation { name: "broadcast", tensors: in_place, call: |g, t| g.broadcast(&mut t[0], rank(1)) },
    Operation { name: "all_reduce", tensors: in_place, call: |g, t| g.all_reduce(&mut t[0], ReduceOp::Sum) },
    Operation { name: "reduce", tensors: in_place, call: |g, t| g.reduce(&mut t[0], rank(0), ReduceOp::Max) },
    Operation {
        name: "all_gather",
        tensors: |world| (vec![vec![2, 3]; world as usize + 1], 1),
        call: |g, t| {
            let (input, outputs) = t.split_at_mut(1);
            g.all_gather(outputs, &input[0])
        },
    },
    Operation {
        name: "all_gather_into_tensor",
        tensors: |world| (vec![vec![2, 3], vec![2 * world, 3]], 1),
        call: |g, t| {
            let (input, outputs) = t.split_at_mut(1);
            g.all_gather_into_tensor(&mut outputs[0], &input[0])
        },
    },
    Operation {
        name: "gather",
        tensors: |world| (vec![vec![2, 3]; world as usize + 1], 1),
        call: |g, t| {
            let (input, outputs) = t.split_at_mut(1);
            let outputs = if g.rank().is_zero() { outputs } else { &mut [] };
            g.gather(outputs, &input[0], rank(0))
        },
    },
    Operation {
        name: "scatter",
        tensors: |world| (vec![vec![2, 3]; world as usize + 1], world as usize),
        call: |g, t| {
            let (inputs, output) = t.split_at_mut(g.size().get());
            let inputs = if g.rank().is_zero() { inputs } else { &mut [] };
            g.scatter(&mut output[0], inputs, rank(0))
        },
    },
    Operation {
        name: "reduce_scatter",
        tensors: |world| (vec![vec![2, 3]; world as usize + 1], world as usize),
        call: |g, t| {
            let (inputs, output) = t.split_at_mut(g.size().get());
            g.reduce_scatter(&mut output[0], inputs, ReduceOp::Sum)
        },
    },
    Operation {
        name: "reduce_scatter_tensor",
        tensors: |world| (vec![vec![2 * world, 3], vec![2, 3]], 1),
        call: |g, t| {
            let (input, output) = t.split_at_mut(1);
            g.reduce_scatter_tensor(&mut output[0], &input[0], ReduceOp::Sum)
        },
    },
    Operation {
        name: "all_to_all_single",
        tensors: |world| (vec![vec![2 * world, 3]; 2], 1),
        call: |g, t| {
            let (input, output) = t.split_at_mut(1);
            g.all_to_all_single(&mut output[0], &input[0], &Splits::Equal)
        },
    },
    Operation {
        name: "all_to_all_single",
        tensors: |world| (vec![vec![2 * world, 3]; 2], 1),
        call: |g, t| {
            let (input, output) = t.split_at_mut(1);
            g.all_to_all_single(&mut output[0], &input[0], &splits(g))
        },
    },
    Operation { name: "isend", tensors: |_| (vec![vec![2, 3]; 2], 1), call: send_first },
    Operation { name: "irecv", tensors: |_| (vec![vec![2, 3]; 2], 1), call: receive_first },
    Operation {
        name: "broadcast 2 tensors",
        tensors: |_| (vec![vec![2, 3]; 2], 0),
        call: |g, t| broadcast_coalesced(g, t, 1 << 10, rank(1)),
    },
];

/// How a tensor is laid out in memory, or why it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Plain,
    /// The middle of a larger tensor, contiguous.
    Middle,
    /// A single row, repeated.
    Expanded,
    /// Columns of a larger tensor.
    Columns,
    /// Rows and columns swapped.
    Transposed,
    /// Every second row of a larger tensor.
    Strided,
    ZeroSized,
    Sparse,
    /// All zeros without memory.
    Lazy,
    Undefined,
    OtherKind,
    /// A dtype that no backend supports.
    Complex,
    /// A lazily negated view.
    Negated,
}

const LAYOUTS: [Layout; 13] = [
    Layout::Plain,
    Layout::Middle,
    Layout::Expanded,
    Layout::Columns,
    Layout::Transposed,
    Layout::Strided,
    Layout::ZeroSized,
    Layout::Sparse,
    Layout::Lazy,
    Layout::Undefined,
    Layout::OtherKind,
    Layout::Complex,
    Layout::Negated,
];

/// Numbers that differ between ranks and between positions, small enough to be exact.
struct Numbers(i64);

impl Numbers {
    fn fill(&mut self, shape: &[i64]) -> Tensor {
        let numel = shape.iter().product::<i64>();
        self.0 += numel;
        Tensor::arange_start(self.0 - numel, self.0, FLOAT).reshape(shape)
    }
}

/// A tensor of this shape and layout, with the tensor that owns its memory.
fn lay_out(layout: Layout, shape: &[i64], numbers: &mut Numbers) -> (Tensor, Option<Tensor>) {
    let (rows, columns) = (shape[0], shape[1]);
    let view = |base: Tensor, of: &dyn Fn(&Tensor) -> Tensor| (of(&base), Some(base));
    match layout {
        Layout::Plain => (numbers.fill(shape), None),
        Layout::Middle => view(numbers.fill(&[rows + 2, columns]), &|base| base.narrow(0, 1, rows)),
        Layout::Expanded => view(numbers.fill(&[1, columns]), &|base| base.expand([rows, columns], false)),
        Layout::Columns => view(numbers.fill(&[rows, columns + 2]), &|base| base.narrow(1, 1, columns)),
        Layout::Transposed => view(numbers.fill(&[columns, rows]), &|base| base.transpose(0, 1)),
        Layout::Strided => view(numbers.fill(&[2 * rows, columns]), &|base| base.slice(0, 0, 2 * rows, 2)),
        Layout::ZeroSized => (Tensor::zeros([0, columns], FLOAT), None),
        Layout::Sparse => (numbers.fill(shape).to_sparse_sparse_dim(1), None),
        Layout::Lazy => (Tensor::internal_efficientzerotensor(shape, FLOAT), None),
        Layout::Undefined => (Tensor::new(), None),
        Layout::OtherKind => (numbers.fill(shape).to_kind(Kind::Double), None),
        Layout::Complex => (numbers.fill(shape).to_kind(Kind::ComplexFloat), None),
        Layout::Negated => (Tensor::complex(&numbers.fill(shape), &numbers.fill(shape)).conj().imag(), None),
    }
}

#[test]
fn a_tensor_that_is_not_contiguous_is_refused_with_a_hint() {
    ranks(2, |group| {
        let matrix = Tensor::arange(12, FLOAT).reshape([3, 4]);
        let error = refused(group.all_reduce(&mut matrix.select(1, 1), ReduceOp::Sum));
        assert!(error.to_string().contains("all_reduce") && error.detail().contains(".contiguous()"), "{error}");
        assert_eq!(matrix, Tensor::arange(12, FLOAT).reshape([3, 4]), "nothing was written");
        let wide = Tensor::ones([1], FLOAT).expand([1 << 20], false);
        refused(group.all_reduce(&mut wide.shallow_clone(), ReduceOp::Sum));
        // Both ranks can still communicate.
        group.barrier().unwrap();
    });
}

#[test]
fn an_exchange_of_two_dtypes_is_refused() {
    ranks(2, |group| {
        let mut output = Tensor::zeros([4], (Kind::Double, Device::Cpu));
        let error = refused(group.all_to_all_single(&mut output, &Tensor::ones([4], FLOAT), &Splits::Equal));
        assert!(error.detail().contains("Float") && error.detail().contains("Double"), "{error}");
        assert_eq!(output, Tensor::zeros([4], (Kind::Double, Device::Cpu)));
    });
}

#[test]
fn splits_that_do_not_fit_their_tensor_are_refused() {
    ranks(2, |group| {
        let input = Tensor::ones([4, 2], FLOAT);
        for (sent, received) in [(vec![3, 3], vec![2, 2]), (vec![-1, 5], vec![2, 2]), (vec![2, 2], vec![2, 1])] {
            let mut output = Tensor::zeros([4, 2], FLOAT);
            let splits = Splits::Sizes { input: sent, output: received };
            let error = group.all_to_all_single(&mut output, &input, &splits).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadArgument, "{splits:?}: {error}");
        }
        let error = group.all_to_all_single(&mut Tensor::zeros([4, 3], FLOAT), &input, &Splits::Equal).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument, "rows of two sizes: {error}");
        let huge = Splits::Sizes { input: vec![i64::MAX, i64::MAX], output: vec![2, 2] };
        refused(group.all_to_all_single(&mut Tensor::zeros([4, 2], FLOAT), &input, &huge));
        group.barrier().unwrap();
    });
}

#[test]
fn tensors_that_share_memory_are_refused_if_one_is_written() {
    ranks(2, |group| {
        let base = Tensor::zeros([6], FLOAT);
        let same = [base.narrow(0, 0, 3), base.narrow(0, 2, 3)];
        refused(group.all_gather(&mut same.map(|t| t), &Tensor::ones([3], FLOAT)));
        let error = group.all_gather_into_tensor(&mut base.shallow_clone(), &base.narrow(0, 3, 3)).unwrap_err();
        assert!(error.detail().contains("memory"), "{error}");
        // Two inputs may share memory.
        let input = Tensor::ones([3], FLOAT);
        group.reduce_scatter(&mut Tensor::zeros([3], FLOAT), &[input.shallow_clone(), input], ReduceOp::Sum).unwrap();
    });
}

/// Runs the operation with one tensor of this layout, the same on every rank, and then on copies in contiguous memory.
fn agrees_with_plain_memory(group: &ProcessGroup, operation: &Operation, layout: Layout, odd: usize) {
    let world = group.size().get() as i64;
    let (shapes, _) = (operation.tensors)(world);
    let what = format!("{} with tensor {odd} {layout:?} on {world} ranks", operation.name);
    let mut numbers = Numbers(1000 * group.rank().get() as i64);
    let (mut tensors, bases): (Vec<Tensor>, Vec<Option<Tensor>>) = shapes
        .iter()
        .enumerate()
        .map(|(i, shape)| lay_out(if i == odd { layout } else { Layout::Plain }, shape, &mut numbers))
        .unzip();
    let before: Vec<Option<Tensor>> = bases.iter().map(|base| base.as_ref().map(Tensor::copy)).collect();
    let comparable = tensors.iter().all(|t| t.defined() && !t.is_sparse());
    let mut plain: Vec<Tensor> =
        if comparable { tensors.iter().map(|t| t.contiguous().copy()).collect() } else { vec![] };
    match (operation.call)(group, &mut tensors) {
        Ok(()) => {
            (operation.call)(group, &mut plain).unwrap_or_else(|e| panic!("{what}, in plain memory: {e}"));
            let skip = if operation.name == "reduce" && !group.rank().is_zero() { tensors.len() } else { 0 };
            for (tensor, plain) in tensors.iter().zip(&plain).skip(skip) {
                assert_eq!(tensor, plain, "{what}");
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::BadArgument, "{what}: {error}");
            assert!(error.operation().contains(operation.name), "{what}: {error}");
            assert_ne!(layout, Layout::Plain, "{error}");
            assert_ne!(layout, Layout::Middle, "{error}");
            bases.iter().zip(&before).for_each(|(base, before)| assert_eq!(base, before, "{what}"));
        }
    }
}

/// Returns true if all ranks see a wrong shape or dtype. If only the root passes a list, only the root sees that shape
/// or dtype differ from the list's; and only the receiver of a message sees that they differ from the message's.
fn is_seen_by_all(operation: &Operation, layout: Layout) -> bool {
    let differs = matches!(layout, Layout::ZeroSized | Layout::OtherKind | Layout::Complex);
    match operation.name {
        "gather" | "scatter" => !differs || layout == Layout::Complex,
        "isend" | "irecv" => !differs,
        _ => true,
    }
}

#[test]
fn every_operation_with_every_layout_is_correct_or_refused() {
    on_each_backend(|| {
        for world in [2, 3] {
            ranks(world, |group| {
                for operation in OPERATIONS {
                    let (shapes, reads) = (operation.tensors)(world as i64);
                    // Lists that only the root passes are skipped, because no other rank would refuse them. For a message, the second
                    // half is skipped.
                    let everywhere = match operation.name {
                        "gather" | "isend" => 0..1,
                        "scatter" | "irecv" => reads..shapes.len(),
                        _ => 0..shapes.len(),
                    };
                    for odd in everywhere {
                        for &layout in LAYOUTS.iter().filter(|&&layout| is_seen_by_all(operation, layout)) {
                            agrees_with_plain_memory(&group, operation, layout, odd);
                        }
                    }
                }
                group.barrier().unwrap();
            });
        }
    });
}

#[test]
fn memory_of_an_operation_in_progress_is_refused_to_another() {
    ranks(2, |group| {
        let tensor = Tensor::ones([4], FLOAT);
        let alias = tensor.narrow(0, 2, 2);
        let work = group.all_reduce_async(tensor, ReduceOp::Sum).unwrap();
        let error = refused(group.all_reduce(&mut alias.shallow_clone(), ReduceOp::Sum));
        assert!(error.detail().contains("in use by all_reduce(Sum) of [4] Float"), "{error}");
        drop(work.wait().unwrap());
        // The memory is free again, and both ranks can still communicate.
        group.all_reduce(&mut alias.shallow_clone(), ReduceOp::Sum).unwrap();
        assert_eq!(Vec::<f32>::try_from(&alias).unwrap(), [4.0; 2]);
    });
}

#[test]
fn memory_of_a_dropped_collective_is_free_when_it_ends() {
    on_each_backend(|| {
        ranks(2, |group| {
            let tensor = Tensor::ones([4], FLOAT);
            drop(group.all_reduce_async(tensor.shallow_clone(), ReduceOp::Sum).unwrap());
            let begun = std::time::Instant::now();
            while let Err(error) =
                group.all_reduce_async(tensor.shallow_clone(), ReduceOp::Sum).and_then(c10d::Work::wait)
            {
                assert!(error.detail().contains("in use"), "{error}");
                assert!(begun.elapsed() < common::DEADLINE, "{error}");
                std::thread::yield_now();
            }
            assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), [4.0; 4]);
        });
    });
}

fn ones(n: i64) -> Tensor {
    Tensor::ones([n], FLOAT)
}

#[test]
fn the_longest_duration_does_not_expire_immediately() {
    on_each_backend(|| {
        let options = GroupOptions { timeout: Duration::MAX, ..common::options() };
        let store = Store::hash().unwrap();
        let late = store.try_clone().unwrap();
        std::thread::scope(|scope| {
            let (begin, begun) = channel();
            let waiting = scope.spawn(move || {
                begin.send(()).unwrap();
                store.wait(&["late"], Duration::MAX)
            });
            begun.recv_timeout(common::DEADLINE).unwrap();
            late.set("late", "1").unwrap();
            waiting.join().unwrap().unwrap();
        });
        ranks_with(2, &options, |group| {
            assert_eq!(group.timeout(), Duration::MAX);
            let work = group.all_reduce_async(ones(1 << 16), ReduceOp::Sum).unwrap();
            drop(work.wait_for(Duration::MAX).unwrap());
            if group.rank().is_zero() {
                group.send(&ones(3), rank(1), 0).unwrap();
            } else {
                group.recv(&mut ones(3), rank(0), 0).unwrap();
            }
            group.monitored_barrier(Duration::MAX, true).unwrap();
        });
    });
}

/// With NCCL the variable stays, for a recorder that is created later.
#[cfg(not(nccl))]
#[test]
fn a_child_process_does_not_inherit_settings_of_this_process() {
    let output = std::process::Command::new("env").env_remove("RUST_BACKTRACE").output().unwrap();
    let inherited =
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line.starts_with("TORCH_FR_BUFFER_SIZE="));
    let given = std::fs::read("/proc/self/environ").unwrap();
    let given = given.split(|&byte| byte == 0).any(|entry| entry.starts_with(b"TORCH_FR_BUFFER_SIZE="));
    assert_eq!(inherited, given);
}
