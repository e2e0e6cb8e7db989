//! Groups over several simulated hosts: which backend the ranks choose, the same values as Gloo's in every layout, and which rank is
//! named when one is lost or late.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use c10d::{Backend, BackendConfig, DebugLevel, ErrorKind, GroupOptions, ProcessGroup, Rank, ReduceOp, Splits, Store};
use lockstep_process::watchdog::scaled;
use tch::{Device, Kind, Tensor};

use crate::common::{
    DEADLINE, assert_buckets_are_shared, findings, listening, options, rank, ranks_on, ranks_over, refused,
};

/// Each rank's host: in order, alternating, unequal numbers, some alone, and without order.
const LAYOUTS: [&[usize]; 6] =
    [&[0, 0, 1, 1], &[0, 1, 0, 1], &[0, 0, 0, 1], &[0, 1, 1], &[0, 1, 0, 2], &[0, 1, 1, 0, 2, 1]];

const DOUBLE: (Kind, Device) = (Kind::Double, Device::Cpu);

/// Numbers with many bits that differ between ranks, none of them near zero.
fn numbers(n: i64, salt: usize) -> Tensor {
    (Tensor::arange(n, DOUBLE) * (salt as f64 + 1.7)).sin() + 2.0
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

/// A rank's values after each operation, with the operation's name.
type Held = Vec<(String, Vec<f64>)>;

/// Runs every operation, on a tensor of `n` numbers for each rank.
fn all_operations(group: &ProcessGroup, n: i64) -> Held {
    let (me, world) = (group.rank().get(), group.size().get());
    let mine = || numbers(n, me);
    let zeros = |rows: usize| Tensor::zeros([rows as i64 * n], DOUBLE);
    let parts = |salt: usize| (0..world).map(|part| numbers(n, salt + part)).collect::<Vec<_>>();
    let mut held = Held::new();
    let mut hold = |name: &str, tensor: &Tensor| held.push((name.to_owned(), values(tensor)));
    for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
        let mut sum = mine();
        group.all_reduce(&mut sum, op).unwrap();
        hold(&format!("all_reduce({op:?})"), &sum);
        let (mut part, inputs) = (zeros(1), parts(me * 10));
        group.reduce_scatter(&mut part, &inputs, op).unwrap();
        hold(&format!("reduce_scatter({op:?})"), &part);
        let mut part = zeros(1);
        group.reduce_scatter_tensor(&mut part, &Tensor::cat(&inputs, 0), op).unwrap();
        hold(&format!("reduce_scatter_tensor({op:?})"), &part);
        assert_eq!(inputs, parts(me * 10), "an input has changed");
    }
    for op in [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor] {
        let mut bits = (mine() * 1e6).to_kind(Kind::Int64);
        group.all_reduce(&mut bits, op).unwrap();
        hold(&format!("all_reduce({op:?})"), &bits);
    }
    for root in group.size().ranks() {
        let mut all = mine();
        group.broadcast(&mut all, root).unwrap();
        hold(&format!("broadcast from {root}"), &all);
        let mut flags = mine().gt(2.0);
        group.broadcast(&mut flags, root).unwrap();
        hold(&format!("broadcast of booleans from {root}"), &flags);
        for op in [ReduceOp::Sum, ReduceOp::Max] {
            let mut sum = mine();
            group.reduce(&mut sum, root, op).unwrap();
            if group.rank() == root {
                hold(&format!("reduce({op:?}) to {root}"), &sum);
            }
        }
        let here = if group.rank() == root { world } else { 0 };
        let mut gathered: Vec<Tensor> = (0..here).map(|_| zeros(1)).collect();
        group.gather(&mut gathered, &mine(), root).unwrap();
        gathered.iter().for_each(|tensor| hold(&format!("gather to {root}"), tensor));
        let mut part = zeros(1);
        group.scatter(&mut part, &parts(me)[..here], root).unwrap();
        hold(&format!("scatter from {root}"), &part);
    }
    let mut gathered: Vec<Tensor> = (0..world).map(|_| zeros(1)).collect();
    group.all_gather(&mut gathered, &mine()).unwrap();
    gathered.iter().for_each(|tensor| hold("all_gather", tensor));
    let mut gathered = zeros(world);
    group.all_gather_into_tensor(&mut gathered, &mine()).unwrap();
    hold("all_gather_into_tensor", &gathered);
    let mut exchanged = zeros(world);
    group.all_to_all_single(&mut exchanged, &Tensor::cat(&parts(me), 0), &Splits::Equal).unwrap();
    hold("all_to_all_single", &exchanged);
    let sent = group.isend(mine(), rank((me + 1) % world), 3).unwrap();
    let received = group.irecv(zeros(1), rank((me + world - 1) % world), 3).unwrap().wait().unwrap();
    let _sent = sent.wait().unwrap();
    hold("a ring of messages", &received);
    group.barrier().unwrap();
    group.monitored_barrier(DEADLINE, true).unwrap();
    held
}

fn assert_close(here: &Held, gloo: &Held, what: &str) {
    assert_eq!(here.len(), gloo.len());
    for ((name, here), (other, gloo)) in here.iter().zip(gloo) {
        assert_eq!((name, here.len()), (other, gloo.len()), "{what}");
        let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-12 * y.abs();
        assert!(here.iter().zip(gloo).all(close), "{name} of {what} differs from Gloo's");
    }
}

#[test]
fn every_operation_has_gloos_values_in_every_layout() {
    for hosts in LAYOUTS {
        for n in [1, 7, 70_000] {
            let run = |group: ProcessGroup| all_operations(&group, n);
            let (here, gloo) =
                (ranks_over(hosts, Backend::Auto, &options(), run), ranks_over(hosts, Backend::Gloo, &options(), run));
            for (me, (here, gloo)) in here.iter().zip(&gloo).enumerate() {
                assert_close(here, gloo, &format!("{n} numbers on rank {me} of {hosts:?}"));
            }
            let sums = here.iter().map(|held| held.iter().filter(|(name, _)| name.starts_with("all_reduce")).collect());
            let sums: Vec<Vec<_>> = sums.collect();
            assert!(sums.iter().all(|sum| *sum == sums[0]), "ranks differ: {n} numbers on {hosts:?}");
        }
    }
}

#[test]
fn sums_of_short_floats_are_the_same_bits_on_all_ranks_and_in_every_run() {
    for kind in [Kind::Float, Kind::Half, Kind::BFloat16] {
        let sum = || {
            ranks_over(&[0, 1, 0, 1, 1], Backend::Auto, &options(), |group| {
                let mut sum = numbers(50_000, group.rank().get()).to_kind(kind);
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                values(&sum)
            })
        };
        let (first, again) = (sum(), sum());
        assert!(first.iter().all(|sum| *sum == first[0]) && first == again, "{kind:?}");
    }
}

#[test]
fn ranks_that_may_choose_take_two_levels_where_two_of_them_are_on_one_host() {
    let choose = |hosts: &[usize]| {
        ranks_over(hosts, Backend::Auto, &options(), |group| {
            group.barrier().unwrap();
            (group.backend(), group.why_backend().unwrap().to_owned())
        })
    };
    for (hosts, backend, why) in [
        (&[0, 1, 0][..], Backend::TwoLevels, "2 hosts: memory within each, Gloo between them"),
        (&[2, 1, 0, 0], Backend::TwoLevels, "3 hosts: memory within each, Gloo between them"),
        (&[0, 1], Backend::Gloo, "no two ranks are on one host and in one network namespace"),
        (&[0, 0], Backend::SharedMemory, "all ranks are on one host"),
    ] {
        assert!(choose(hosts).iter().all(|chosen| *chosen == (backend, why.to_owned())), "{:?}", choose(hosts));
    }
}

#[test]
fn ranks_on_several_hosts_that_insist_on_memory_are_refused() {
    let store = Arc::new(Store::hash().unwrap());
    std::thread::scope(|scope| {
        for me in 0..2 {
            let store = Arc::clone(&store);
            scope.spawn(move || {
                let options = GroupOptions { simulated_host: Some(me.to_string()), ..options() };
                let world = c10d::WorldSize::new(2).unwrap();
                let joined = ProcessGroup::new(Backend::SharedMemory, &store, rank(me), world, &options);
                let error = refused(joined.map(drop));
                assert!(error.to_string().contains("ranks 0 and 1 are on different hosts"), "{error}");
            });
        }
    });
}

#[test]
fn subgroups_choose_for_themselves_and_work_at_the_same_time() {
    ranks_over(&[0, 1, 0, 1], Backend::Auto, &options(), |group| {
        let make = |members: &[usize]| {
            let members: Vec<Rank> = members.iter().copied().map(rank).collect();
            group.new_group(&members, &options()).unwrap()
        };
        let groups = [
            (make(&[0, 2]), Backend::SharedMemory),
            (make(&[0, 1]), Backend::Gloo),
            (make(&[1, 2, 3]), Backend::TwoLevels),
            (make(&[0, 1, 2, 3]), Backend::TwoLevels),
        ];
        let own = || groups.iter().filter_map(|(made, backend)| made.as_ref().map(|made| (made, *backend)));
        assert!(own().all(|(made, backend)| made.backend() == backend));
        // All are in progress before the first wait, several for each group.
        let started = own().flat_map(|(made, _)| {
            (1..=3).map(move |n| {
                let tensor = Tensor::full([5000], n, DOUBLE);
                (made.size().get() as i64 * n, made.all_reduce_async(tensor, ReduceOp::Sum).unwrap())
            })
        });
        for (due, work) in started.collect::<Vec<_>>() {
            assert_eq!(work.wait().unwrap(), Tensor::full([5000], due, DOUBLE));
        }
    });
}

#[test]
fn buckets_of_ranks_on_several_hosts_are_in_shared_memory() {
    ranks_over(&[0, 1, 0], Backend::Auto, &options(), |group| assert_buckets_are_shared(group, 2.0));
}

/// A collective of each kind, in which every rank waits for all others.
const WAITING: [fn(&ProcessGroup) -> c10d::Result<()>; 3] = [
    |group| group.all_reduce(&mut numbers(3, 0), ReduceOp::Sum),
    |group| group.barrier(),
    |group| {
        let mut all = Tensor::zeros([3 * group.size().get() as i64], DOUBLE);
        group.all_gather_into_tensor(&mut all, &numbers(3, 0))
    },
];

/// This needs neither a timeout nor a desync report.
#[test]
fn a_rank_that_left_is_named_by_the_ranks_of_all_hosts() {
    let patient = GroupOptions { desync_report: false, compare_calls: Some(false), ..options() };
    let hosts = [0, 1, 0, 1, 2];
    for (lost, call) in (0..hosts.len()).map(|lost| (lost, WAITING[lost % WAITING.len()])) {
        ranks_over(&hosts, Backend::Auto, &patient, |group| {
            if group.rank() == rank(lost) {
                return;
            }
            let error = call(&group).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
            let named = error.detail().contains(&format!("rank {lost} has left"))
                || error.detail().ends_with(&format!("because of rank {lost}"))
                || error.detail() == format!("connection closed by peer: rank {lost}");
            assert!(named, "rank {} does not name rank {lost}: {error}", group.rank());
            let again = group.barrier().unwrap_err();
            assert!(again.detail().contains("an earlier operation of this group failed"), "{again}");
        });
    }
}

#[test]
fn a_rank_that_waits_for_a_message_learns_that_the_group_has_failed() {
    let patient = GroupOptions { desync_report: false, ..options() };
    ranks_over(&[0, 1, 0, 1], Backend::Auto, &patient, |group| match group.rank().get() {
        3 => {}
        // Rank 1 lives, and has failed in a collective.
        2 => {
            let error = group.recv(&mut numbers(1, 0), rank(1), 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PeerGone, "{error}");
        }
        _ => drop(group.barrier().unwrap_err()),
    });
}

#[test]
fn a_rank_that_does_not_come_ends_the_others_at_their_deadline() {
    let short = scaled(Duration::from_millis(200));
    for late in [0, 1, 2] {
        ranks_over(&[0, 1, 0, 1], Backend::Auto, &options(), |group| {
            if group.rank() == rank(late) {
                // Waits until the others have given up.
                group.with_timeout(short, |group| group.recv(&mut numbers(1, 0), rank(3), 0)).unwrap_err();
                return;
            }
            let error = group.with_timeout(short, ProcessGroup::barrier).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerGone), "{error}");
        });
    }
}

/// Ends when the sums show it, as in the test on one host.
#[test]
fn each_rank_counts_how_long_it_waited_for_the_ranks_of_its_own_host() {
    let begun = Instant::now();
    ranks_over(&[0, 1, 0, 1], Backend::Auto, &options(), |group| {
        let (me, late) = (group.rank().get(), 2);
        loop {
            assert!(begun.elapsed() < DEADLINE, "{:?}", group.waited_for());
            if me == late {
                std::thread::sleep(Duration::from_millis(100));
            }
            let waited: Vec<f64> = group.waited_for().unwrap().iter().map(Duration::as_secs_f64).collect();
            let here = [me, (me + 2) % 4];
            assert!((0..4).all(|rank| here.contains(&rank) || waited[rank] == 0.0), "{waited:?}");
            // Rank 3 waits in memory for rank 1, which waits over Gloo: rank 1 does not cause the wait.
            let shows = match me {
                0 => waited[2] > 0.5,
                _ => waited.iter().sum::<f64>() < 0.5 * begun.elapsed().as_secs_f64(),
            };
            let mut all_show = Tensor::from(i64::from(shows));
            group.all_reduce(&mut all_show, ReduceOp::Min).unwrap();
            if all_show.int64_value(&[]) == 1 {
                return;
            }
        }
    });
}

#[test]
fn a_rank_for_which_those_of_all_hosts_wait_is_named_before_it_comes() {
    let _alone = listening();
    let heard = Mutex::new(findings());
    let found = ranks_over(&[0, 1, 0, 1], Backend::Auto, &options(), |group| {
        let found = (group.rank() == rank(2)).then(|| heard.lock().unwrap().recv_timeout(DEADLINE).unwrap());
        group.barrier().unwrap();
        found
    });
    let (line, finding) = found.into_iter().flatten().next().unwrap();
    let finding = finding.unwrap();
    assert_eq!((finding.ranks.as_slice(), finding.goes_on), (&[2][..], true), "{line}");
    assert!([0, 1, 3].iter().all(|&other| finding.waited[other] >= 10.0), "{finding:?}");
}

// Groups with one backend for tensors in host memory and another for tensors on GPUs. No GPU is needed: `cpu:shm,cuda:gloo` connects
// two backends, and the tensors here use the first.

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn parse(text: &str) -> BackendConfig {
    BackendConfig::parse(text, Device::Cpu).unwrap()
}

fn sum_over(group: &c10d::ProcessGroup) -> f64 {
    let mut t = Tensor::full([5], group.rank().get() as f64 + 1.0, FLOAT);
    group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
    t.double_value(&[4])
}

#[test]
fn both_backends_are_connected_under_one_name_and_subgroups_have_both() {
    ranks_on(parse("cpu:shm,cuda:gloo"), 3, &options(), |group| {
        assert_eq!(
            (group.backend(), group.backends().to_string()),
            (Backend::SharedMemory, "cpu:shm,cuda:gloo".into())
        );
        assert_eq!(group.backends().of(Device::Cuda(0)), Some(Backend::Gloo));
        assert_eq!(sum_over(&group), 6.0);
        group.barrier().unwrap();
        group.monitored_barrier(DEADLINE, true).unwrap();
        assert_eq!(group.traffic().unwrap().bytes, 20);
        let pair = group.new_group(&[rank(0), rank(1)], &options()).unwrap();
        if let Some(pair) = &pair {
            assert_eq!((pair.backends(), sum_over(pair)), (group.backends(), 3.0));
        }
        drop(pair.map(|pair| pair.all_reduce_async(Tensor::ones([3], FLOAT), ReduceOp::Sum).unwrap()));
    });
}

#[test]
fn the_ranks_choose_the_backend_of_host_memory_next_to_a_named_one_and_debug_mode_wraps_both() {
    let detail = GroupOptions { debug: Some(DebugLevel::Detail), ..options() };
    for options in [&options(), &detail] {
        ranks_over(&[0, 0], parse("cpu:auto,cuda:gloo"), options, |group| {
            assert_eq!(group.backends(), parse("cpu:shm,cuda:gloo"));
            assert!(group.why_backend().unwrap().contains("one host"));
            assert_eq!(sum_over(&group), 3.0);
        });
    }
}

#[test]
fn a_tensor_of_a_device_without_a_backend_is_refused_as_in_python() {
    ranks_on(parse("cuda:gloo"), 2, &options(), |group| {
        // PyTorch: "No backend type associated with device type cpu".
        let refused = [
            group.all_reduce(&mut Tensor::ones([1], FLOAT), ReduceOp::Sum),
            group.send(&Tensor::ones([1], FLOAT), rank(1 - group.rank().get()), 0),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::BadArgument);
            assert!(error.detail().contains("no backend type associated with device type cpu"), "{error}");
            assert!(error.detail().contains("cpu:gloo,cuda:nccl"), "{error}");
        }
        assert_eq!(group.monitored_barrier(DEADLINE, true).unwrap_err().kind(), ErrorKind::BadArgument);
        // It needs no tensor.
        group.barrier().unwrap();
    });
}
