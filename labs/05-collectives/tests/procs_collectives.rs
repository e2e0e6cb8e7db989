//! Tests of the collectives in lab 05: each leaves the right numbers on each rank, with and without a launcher.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use common::{lab, results, text};
use lockstep_testkit::Job;
use serde_json::{Value, json};

/// All lessons except `timing`, whose numbers vary.
const LESSONS: [&str; 15] = [
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "ops",
    "groups",
    "ring",
    "doubling",
    "compare",
    "last_bits",
];

/// Element `at` of what a rank starts with, as the README says.
fn start(rank: usize, at: usize) -> usize {
    10 * rank + at + 1
}

fn row(rank: usize, length: usize) -> Vec<usize> {
    (0..length).map(|at| start(rank, at)).collect()
}

/// The element-wise sum over `ranks`.
fn sum(ranks: &[usize], length: usize) -> Vec<usize> {
    (0..length).map(|at| ranks.iter().map(|&rank| start(rank, at)).sum()).collect()
}

/// Sum, product, minimum and maximum of 1, 2, 1, 2, … and of 1, 2, 3, 1, 2, 3, …
fn ops(world: usize) -> [[usize; 2]; 4] {
    let columns = [2, 3].map(|modulus| (0..world).map(|rank| 1 + rank % modulus).collect::<Vec<_>>());
    let [ones_and_twos, to_three] = columns.each_ref();
    let both = |of: fn(&Vec<usize>) -> usize| [of(ones_and_twos), of(to_three)];
    [both(|column| column.iter().sum()), both(|column| column.iter().product()), [1, 1], [world.min(2), world.min(3)]]
}

fn check(world: usize, root: usize, results: &[Value]) {
    let all: Vec<usize> = (0..world).collect();
    for (rank, held) in results.iter().enumerate() {
        let is = |part: &str, wanted: Value| assert_eq!(held[part], wanted, "{part} on rank {rank} of {world}");
        is("broadcast", json!(row(root, 4)));
        is("scatter", json!([start(root, rank)]));
        let everything: Vec<_> = all.iter().map(|&from| row(from, 2)).collect();
        is("gather", if rank == root { json!(everything) } else { json!([]) });
        is("all_gather", json!(everything));
        if rank == root {
            is("reduce", json!(sum(&all, 4)));
        }
        is("all_reduce", json!(sum(&all, 4)));
        is("reduce_scatter", json!([sum(&all, world)[rank]]));
        is("all_to_all", json!(all.iter().map(|&from| start(from, rank)).collect::<Vec<_>>()));
        is("barrier", json!([world]));
        is("ops", json!(ops(world)));
        let mine: Vec<usize> = (rank % 2..world).step_by(2).collect();
        is("groups", json!(sum(&mine, 4)));
        if world > 1 {
            is("group_broadcast", json!(row(rank.min(1), 4)));
        }
        is("ring", json!(sum(&all, world)));
        is("doubling", json!(sum(&all, 4)));
        is("compare", json!(64));
    }
    check_last_bits(world, results);
}

/// The sums in the order in which each algorithm adds. The engine's order is not specified.
fn check_last_bits(world: usize, results: &[Value]) {
    let value = |rank: usize| [16_777_216f32, 1.0, -16_777_216.0, 1.0][rank % 4];
    let ring = |at: usize| (1..world).fold(value(at), |sum, step| value((at + step) % world) + sum);
    let core = 1 << world.ilog2();
    let mut pairs: Vec<f32> =
        (0..core).map(|rank| value(rank) + if rank + core < world { value(rank + core) } else { 0.0 }).collect();
    while pairs.len() > 1 {
        pairs = pairs.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    for held in results {
        assert_eq!(held["last_bits"][1], json!((0..world).map(ring).collect::<Vec<_>>()));
        assert_eq!(held["last_bits"][2], json!(vec![pairs[0]; world]));
        assert_eq!(held["last_bits"][0], results[0]["last_bits"][0]);
    }
}

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&LESSONS[..], &["--results", "results", "--device", "cpu"], more].concat()
}

#[test]
fn every_collective_leaves_its_numbers_on_ranks_that_are_threads() {
    for (world, root) in [(1, 0), (2, 1), (3, 2), (4, 0), (5, 3), (8, 7)] {
        let (job, args) = (lab(), [world.to_string(), root.to_string()]);
        let output = job.alone(&arguments(&["--nprocs", &args[0], "--root", &args[1]]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        check(world, root, &results(&job, world));
    }
}

#[test]
fn every_collective_leaves_the_same_numbers_on_ranks_that_are_processes() {
    let mut job = lab();
    let ended = job.succeeds(3, &arguments(&["--root", "1"]));
    assert!(ended.0[1..].iter().all(|output| output.stdout.is_empty()), "rank 0 alone prints");
    check(3, 1, &results(&job, 3));
}

#[test]
fn every_rank_holds_what_it_holds_in_the_python_script() {
    let Some(mut twin) = Job::in_python("lab 05 and its Python script") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/collectives.py");
    let python = twin.attempt(3, &[script, "--results", "results"]);
    assert!(python.succeeded(), "{}", python.stderr());
    let mut job = lab();
    let own = job.attempt(3, &arguments(&[]));
    assert!(own.succeeded(), "{}", own.stderr());
    for (rank, (own, python)) in results(&job, 3).iter().zip(results(&twin, 3)).enumerate() {
        let python = python.as_object().unwrap();
        assert_eq!(python.len(), 11);
        for (lesson, held) in python {
            let is_result = lesson != "reduce" || rank == 0;
            assert!(!is_result || own[lesson] == *held, "{lesson} on rank {rank}: {} and {held}", own[lesson]);
        }
    }
}
