//! Systems that refuse the memory that ranks share: no file, no room for it, no room for more of it. A filter of system calls refuses it to
//! one thread, which is one rank.

use std::rc::Rc;

use crate::common::{is_shared, options, rank};
use c10d::{Backend, ErrorKind, ProcessGroup, ReduceOp, Reducer, ReducerOptions, Store, WorldSize};
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// From now on this system call of this thread fails with this error. Returns false where the kernel has no such filters.
fn refuse(call: i64, error: i32) -> bool {
    let code = |code: u32| code as u16;
    // SAFETY: these only compute instructions.
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

/// Two ranks join on `backend`; to rank 1 the call is refused.
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

/// What the system refuses, and the words of the reason.
const REFUSALS: [(i64, i32, &str); 3] = [
    (libc::SYS_memfd_create, libc::EPERM, "rank 1: memfd_create: Operation not permitted"),
    (libc::SYS_memfd_create, libc::ENOSYS, "rank 1: memfd_create: Function not implemented"),
    (libc::SYS_fallocate, libc::ENOSPC, "rank 1: reserving shared memory: No space left on device"),
];

#[test]
fn ranks_that_are_refused_a_memory_file_or_its_room_use_gloo_and_say_why() {
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
    for (call, error, why) in REFUSALS {
        for error in join_refused(Backend::SharedMemory, (call, error), |group| group.map(drop).unwrap_err()) {
            assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
            assert!(error.to_string().contains(&format!("the ranks cannot share memory: {why}: use Gloo")), "{error}");
        }
    }
}

/// Full memory, from some time on: buckets are made elsewhere, a message that needs room is an error, and nothing else changes.
#[test]
fn a_rank_without_room_for_more_goes_on_with_what_it_has() {
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
