//! Features that only shared memory has: sums in place, the same bits on every rank, and Gloo's bits on two ranks.

use std::rc::Rc;

use c10d::{Backend, ErrorKind, GroupOptions, ProcessGroup, ReduceOp, Reducer, ReducerOptions, Store, WorldSize};
use tch::{Device, Kind, Tensor};

use crate::common::{self, assert_buckets_are_shared, is_shared, options, rank, ranks_in_memory};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Numbers with many bits that differ between ranks.
fn numbers(n: i64, salt: usize, kind: Kind) -> Tensor {
    let real = (Tensor::arange(n, FLOAT) * (salt as f64 + 1.7)).sin() * 100.0;
    real.to_kind(kind)
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.copy_data_u8(&mut bytes, tensor.numel());
    bytes
}

#[test]
fn buckets_are_in_shared_memory_and_stay_readable_after_the_group() {
    for world in [1, 2, 3] {
        let mean = (1..=world).sum::<usize>() as f64 / world as f64;
        ranks_in_memory(world, |group| assert_buckets_are_shared(group, mean));
    }
}

#[test]
fn all_ranks_get_the_same_bits() {
    for world in [3, 5] {
        for n in [7, 20_000, 300_000] {
            let sums = ranks_in_memory(world, |group| {
                let mut t = numbers(n, group.rank().get(), Kind::Float);
                group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
                bytes(&t)
            });
            assert!(sums.iter().all(|sum| *sum == sums[0]), "{n} elements on {world} ranks");
        }
    }
}

/// Kernels for AArch64 have pages of 4, 16 or 64 KiB. A layout for larger pages than this system's works here as well.
#[test]
fn a_layout_for_larger_pages_gives_the_same_bits() {
    let run = |page: usize| {
        let options = GroupOptions { simulated_page: page, ..options() };
        common::ranks_on(Backend::SharedMemory, 3, &options, |group| {
            let me = group.rank().get();
            let sums = [7, 20_000, 300_000].map(|n| {
                let mut t = numbers(n, me, Kind::Float);
                group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
                bytes(&t)
            });
            let (group, place) = place_of_a_bucket(group);
            let (next, last) = (rank((me + 1) % 3), rank((me + 2) % 3));
            for n in [1, 70_000] {
                group.send(&numbers(n, me, Kind::Double), next, 0).unwrap();
                let mut t = Tensor::zeros([n], (Kind::Double, Device::Cpu));
                group.recv(&mut t, last, 0).unwrap();
                assert_eq!(bytes(&t), bytes(&numbers(n, last.get(), Kind::Double)));
            }
            group.barrier().unwrap();
            (sums, place)
        })
    };
    let usual = run(4096);
    for page in [16 << 10, 64 << 10] {
        for (rank, ((sums, place), (theirs, _))) in run(page).iter().zip(&usual).enumerate() {
            assert!(sums == theirs, "rank {rank} with pages of {page} bytes");
            assert_eq!(place % page, 0, "rank {rank}: the arena begins at {place}");
        }
    }
    assert!(
        usual.iter().all(|(_, place)| place % (64 << 10) != 0),
        "the usual layout fits all pages, so this test shows nothing"
    );
}

/// The place of the first bucket in this rank's memory file, at the start of the arena.
fn place_of_a_bucket(group: ProcessGroup) -> (Rc<ProcessGroup>, usize) {
    let group = Rc::new(group);
    let mut weight = Tensor::ones([60_000], FLOAT).set_requires_grad(true);
    let options = ReducerOptions { gradient_as_bucket_view: true, ..ReducerOptions::default() };
    let params = [("weight".to_owned(), weight.shallow_clone())];
    let reducer = Reducer::new(Rc::clone(&group), &params, &options).unwrap();
    c10d::clear_grad(&mut weight).unwrap();
    reducer.prepare_for_forward().unwrap();
    let loss = weight.sum(Kind::Float);
    reducer.prepare_for_backward(std::slice::from_ref(&loss)).unwrap();
    reducer.backward(&loss).unwrap();
    assert_eq!(weight.grad(), Tensor::ones([60_000], FLOAT));
    let place = common::place_in_file(&weight.grad()).expect("buckets are in shared memory");
    (group, place)
}

#[test]
fn two_ranks_get_the_bits_that_gloo_gives() {
    let kinds =
        [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16, Kind::Int, Kind::Int64, Kind::Int8, Kind::Uint8];
    let ops = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];
    let run = |group: ProcessGroup| {
        let mut all = Vec::new();
        for kind in kinds {
            for op in ops {
                for n in [5, 50_000] {
                    let mut t = numbers(n, group.rank().get(), kind);
                    group.all_reduce(&mut t, op).unwrap();
                    all.push((kind, op, n, bytes(&t)));
                }
            }
            if matches!(kind, Kind::Float | Kind::Double) {
                let mut t = numbers(50_000, group.rank().get(), kind);
                group.all_reduce(&mut t, ReduceOp::Avg).unwrap();
                all.push((kind, ReduceOp::Avg, 50_000, bytes(&t)));
            }
        }
        all
    };
    let here = ranks_in_memory(2, run);
    let gloo = common::ranks_on(Backend::Gloo, 2, &common::options(), run);
    for (here, gloo) in here[0].iter().zip(&gloo[0]) {
        assert!(here == gloo, "{:?} of {} {:?}", here.1, here.2, here.0);
    }
}

#[test]
fn more_ranks_than_cores_take_turns() {
    let sums = ranks_in_memory(8, |group| {
        let mut t = Tensor::ones([30_000], FLOAT);
        for _ in 0..5 {
            group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
            group.barrier().unwrap();
        }
        t.double_value(&[29_999])
    });
    assert_eq!(sums, [8f64.powi(5); 8]);
}

#[test]
fn ranks_that_may_choose_share_memory_unless_one_talks_through_gloo_only() {
    for (other, chosen) in [(Backend::Auto, Backend::SharedMemory), (Backend::Gloo, Backend::Gloo)] {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        let join = |backend, of| ProcessGroup::new(backend, &store, rank(of), world, &common::options()).unwrap();
        std::thread::scope(|scope| {
            let theirs = scope.spawn(|| {
                let group = join(other, 1);
                group.barrier().unwrap();
            });
            let group = join(Backend::Auto, 0);
            assert_eq!(group.backend(), chosen);
            let why = group.why_backend().unwrap();
            assert_eq!(why.contains("rank 1"), chosen == Backend::Gloo, "{why}");
            assert_eq!(why.contains("one host"), chosen == Backend::SharedMemory, "{why}");
            group.barrier().unwrap();
            theirs.join().unwrap();
        });
    }
}

#[test]
fn a_rank_that_gives_up_is_named_and_later_calls_fail_at_once() {
    let short = lockstep_process::watchdog::scaled(std::time::Duration::from_millis(100));
    ranks_in_memory(2, |group| {
        let late = group.rank().is_zero().then(|| group.with_timeout(short, ProcessGroup::barrier).unwrap_err());
        if let Some(error) = late {
            assert!(error.detail().contains("rank 1"), "{error}");
            let error = group.barrier().unwrap_err();
            assert!(error.detail().contains("an earlier operation of this group failed"), "{error}");
        } else {
            // Rank 0 sends nothing: it is in its barrier until its deadline.
            let received = group.with_timeout(short, |group| group.recv(&mut Tensor::zeros([1], FLOAT), rank(0), 0));
            let error = received.unwrap_err();
            assert!(error.to_string().contains("rank 0"), "{error}");
        }
    });
}

/// Rank 1 finds the socket of a rank 0 that is dead, as after a restart on the same store.
#[test]
fn a_rank_that_waits_for_one_that_cannot_connect_uses_gloo_as_it_does() {
    let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
    let keys = store.prefix("default_pg").unwrap().prefix("0/").unwrap().prefix("cpu/").unwrap();
    let join = |of| {
        let group = ProcessGroup::new(Backend::Auto, &store, rank(of), world, &common::options()).unwrap();
        assert_eq!(group.backend(), Backend::Gloo);
        assert!(
            group.why_backend().unwrap().starts_with("rank 1: connecting to rank 0: "),
            "{:?}",
            group.why_backend()
        );
        group.barrier().unwrap();
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        let theirs = String::from_utf8(keys.get("lockstep/memory/1").unwrap()).unwrap();
        let (host, name) = theirs.rsplit_once(' ').unwrap();
        keys.set("lockstep/memory/0", format!("{host} {}", "0".repeat(name.len()))).unwrap();
        keys.get("lockstep/mapped/1").unwrap();
        join(0);
        other.join().unwrap();
    });
}

// Systems that refuse shared memory: no file, no room for it, no room to extend it. A system call filter makes the call fail on one
// thread, which is one rank.

/// From now on, this system call fails with this error on this thread. Returns false if the kernel has no such filters.
fn refuse(call: i64, error: i32) -> bool {
    let code = |code: u32| code as u16;
    // SAFETY: these only compute values of instructions.
    let program = unsafe {
        [
            libc::BPF_STMT(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0), // the call's number
            libc::BPF_JUMP(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), call as u32, 0, 1),
            libc::BPF_STMT(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_ERRNO | error as u32),
            libc::BPF_STMT(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_ALLOW),
        ]
    };
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the filter before the call returns; it applies to this thread, which gets no new privileges.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}

/// Returns true if the kernel has such filters; an emulator has none. Otherwise prints that this is not verified.
fn can_refuse() -> bool {
    let found = std::thread::spawn(|| refuse(libc::SYS_memfd_create, libc::EPERM)).join().unwrap();
    if !found {
        println!("not verified here: memory that the system refuses (no filter of system calls)");
    }
    found
}

/// Two ranks join on `backend`; the system call fails on rank 1.
fn join_refused<T: Send>(
    backend: Backend,
    (call, error): (i64, i32),
    body: impl Fn(c10d::Result<ProcessGroup>) -> T + Send + Sync,
) -> Vec<T> {
    let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
    std::thread::scope(|scope| {
        let started = [0, 1].map(|me| {
            let (store, body) = (&store, &body);
            scope.spawn(move || {
                assert!(me == 0 || refuse(call, error), "no filter of system calls");
                body(ProcessGroup::new(backend, store, rank(me), world, &options()))
            })
        });
        started.map(|rank| rank.join().expect("a rank panicked")).into()
    })
}

/// The system call that fails, its error, and the text of the reason.
const REFUSALS: [(i64, i32, &str); 3] = [
    (libc::SYS_memfd_create, libc::EPERM, "rank 1: memfd_create: Operation not permitted"),
    (libc::SYS_memfd_create, libc::ENOSYS, "rank 1: memfd_create: Function not implemented"),
    (libc::SYS_fallocate, libc::ENOSPC, "rank 1: reserving shared memory: No space left on device"),
];

#[test]
fn ranks_that_are_refused_a_memory_file_or_its_room_use_gloo_and_say_why() {
    if !can_refuse() {
        return;
    }
    for (call, error, why) in REFUSALS {
        let reasons = join_refused(Backend::Auto, (call, error), |group| {
            let group = group.unwrap();
            assert_eq!(group.backend(), Backend::Gloo);
            let mut sum = Tensor::ones([3], FLOAT);
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, Tensor::full([3], 2, FLOAT));
            group.why_backend().unwrap().to_owned()
        });
        assert_eq!(reasons, [why, why]);
    }
}

#[test]
fn ranks_that_insist_on_memory_get_an_error_that_says_who_is_refused_what() {
    if !can_refuse() {
        return;
    }
    for (call, error, why) in REFUSALS {
        for error in join_refused(Backend::SharedMemory, (call, error), |group| group.map(drop).unwrap_err()) {
            assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
            assert!(error.to_string().contains(&format!("the ranks cannot share memory: {why}: use Gloo")), "{error}");
        }
    }
}

/// Memory that becomes full: buckets are then made elsewhere, a message that needs room is an error, and nothing else changes.
#[test]
fn a_rank_without_room_for_more_goes_on_with_what_it_has() {
    if !can_refuse() {
        return;
    }
    crate::common::ranks_on(Backend::SharedMemory, 2, &options(), |group| {
        let full = group.rank().get() == 1;
        assert!(!full || refuse(libc::SYS_fallocate, libc::ENOSPC), "no filter of system calls");
        let group = Rc::new(group);
        let weight = Tensor::ones([60_000], FLOAT).set_requires_grad(true);
        let params = [("weight".to_owned(), weight.shallow_clone())];
        let with_views = ReducerOptions { gradient_as_bucket_view: true, ..ReducerOptions::default() };
        let reducer = Reducer::new(Rc::clone(&group), &params, &with_views).unwrap();
        reducer.prepare_for_forward().unwrap();
        let loss = (&weight * (group.rank().get() + 1) as f64).sum(Kind::Float);
        reducer.prepare_for_backward(std::slice::from_ref(&loss)).unwrap();
        reducer.backward(&loss).unwrap();
        assert_eq!(is_shared(&weight.grad()), !full);
        assert_eq!(weight.grad(), Tensor::full([60_000], 1.5, FLOAT));
        if full {
            let error = group.send(&Tensor::ones([5000], FLOAT), rank(0), 0).unwrap_err();
            assert!(error.detail().contains("no shared memory is left for a message of 20000 bytes"), "{error}");
        }
        group.barrier().unwrap();
    });
}
