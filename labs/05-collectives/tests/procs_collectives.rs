//! Tests of lab 05: its numbers are those of the Python script, its pictures show them, and invalid arguments are rejected.
//! `lockstep verify` checks what each collective leaves on each rank.

#![allow(clippy::unwrap_used)] // a test may

use assert_cmd::cargo::cargo_bin;
use lockstep_testkit::{Job, text};
use serde_json::{Value, json};

fn lab() -> Job {
    Job::new(cargo_bin!("lab-05-collectives"))
}

/// What each rank wrote with `--results results`.
fn results(job: &Job, world: usize) -> Vec<Value> {
    (0..world).map(|rank| job.results(rank)).collect()
}

/// The lessons that the Python script has, too.
const LESSONS: [&str; 10] = [
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "groups",
    "ring",
];

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

#[test]
fn each_algorithm_adds_floats_in_its_order_on_any_number_of_ranks() {
    for world in [1, 2, 3, 4, 5, 8] {
        let job = lab();
        let ranks = ["--nprocs", &world.to_string()];
        let output = job.alone(&[&["last_bits", "--results", "results", "--device", "cpu"], &ranks[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        check_last_bits(world, &results(&job, world));
    }
}

#[test]
fn the_root_may_be_any_rank() {
    let (job, lessons) = (lab(), ["broadcast", "scatter", "gather", "reduce"]);
    let output = job
        .alone(&[&lessons[..], &["--nprocs", "3", "--root", "2", "--results", "results", "--device", "cpu"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (rank, held) in results(&job, 3).iter().enumerate() {
        assert_eq!(held["broadcast"], json!([21, 22, 23, 24]), "rank {rank}");
        assert_eq!(held["scatter"], json!([21 + rank]), "rank {rank}");
        let gathered = if rank == 2 { json!([[1, 2], [11, 12], [21, 22]]) } else { json!([]) };
        assert_eq!(held["gather"], gathered, "rank {rank}");
    }
    assert_eq!(job.results(2)["reduce"], json!([33, 36, 39, 42]));
}

#[test]
fn every_rank_holds_what_it_holds_in_the_python_script() {
    let Some(mut twin) = Job::in_python("lab 05 and its Python script") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/collectives.py");
    let python = twin.attempt(3, &[script, "--results", "results"]);
    assert!(python.succeeded(), "{}", python.stderr());
    let mut job = lab();
    let own = job.attempt(3, &[&LESSONS[..], &["--results", "results", "--device", "cpu"]].concat());
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

fn printed(args: &[&str]) -> String {
    let output = lab().alone(&[args, &["--device", "cpu"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn pictures_show_what_each_rank_held_before_and_after() {
    let wanted = "\
scatter: tensor r of rank 1's list, on rank r
         before             after
rank 0 │ ·  │    │    │ → │ 11 │
rank 1 │ 11 │ 12 │ 13 │ → │ 12 │
rank 2 │ ·  │    │    │ → │ 13 │

all_to_all: number r of every rank, on rank r
         before         after
rank 0 │  1  2  3 │ → │  1 11 21 │
rank 1 │ 11 12 13 │ → │  2 12 22 │
rank 2 │ 21 22 23 │ → │  3 13 23 │

";
    assert_eq!(printed(&["scatter", "all_to_all", "--nprocs", "3", "--root", "1"]), wanted);
}

#[test]
fn the_ring_shows_chunk_r_plus_1_finished_on_rank_r_between_its_phases() {
    let wanted = "\
ring: all_reduce by hand, around a ring
         before         after the reduce-scatter     after the all-gather
rank 0 │  1  2  3 │ → │  1 36 26 │               → │ 33 36 39 │
rank 1 │ 11 12 13 │ → │ 12 12 39 │               → │ 33 36 39 │
rank 2 │ 21 22 23 │ → │ 33 34 23 │               → │ 33 36 39 │

";
    assert_eq!(printed(&["ring", "--nprocs", "3"]), wanted);
}

#[test]
fn two_groups_work_at_once_and_a_rank_outside_both_keeps_its_tensor() {
    let message = printed(&["groups", "--nprocs", "5", "--group", "3,0", "--group", "1,2"]);
    let wanted = "\
groups: all_reduce in each of {3,0} and {1,2}
         before            rank in each group     after
rank 0 │  1  2  3  4 │ → │ 0 │ · │            → │ 32 34 36 38 │
rank 1 │ 11 12 13 14 │ → │ · │ 0 │            → │ 32 34 36 38 │
rank 2 │ 21 22 23 24 │ → │ · │ 1 │            → │ 32 34 36 38 │
rank 3 │ 31 32 33 34 │ → │ 1 │ · │            → │ 32 34 36 38 │
rank 4 │ 41 42 43 44 │ → │ · │ · │            → │ 41 42 43 44 │
";
    assert!(message.starts_with(wanted), "{message}");
}

#[test]
fn one_rank_runs_what_it_can_and_names_the_lessons_that_need_two() {
    let message = printed(&["--nprocs", "1"]);
    assert!(message.contains("timing: not shown, messages need 2 ranks"), "{message}");
    assert!(message.contains("group_broadcast: not shown, a group without rank 0 needs 2 ranks"), "{message}");
}

#[test]
fn timing_gives_a_row_for_each_size_and_a_plot() {
    let job = lab();
    let sizes = ["--min-bytes", "8", "--max-bytes", "32", "--repeats", "2"];
    let args = [&["timing", "--nprocs", "3", "--plot", "plots/plot.svg", "--device", "cpu"][..], &sizes].concat();
    let output = job.alone(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let message = text(&output.stdout);
    let bytes = |line: &str| line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    assert_eq!(message.lines().filter_map(bytes).collect::<Vec<_>>(), [8, 16, 32], "{message}");
    // So short tensors need not take longer the longer they are, and the two lines may be anything.
    for name in ["engine", "ring", "doubling"] {
        let forms =
            [format!("{name}: t = α + β·n with α = "), format!("{name}: the times do not grow with the size: ")];
        assert_eq!(
            message.lines().filter(|line| forms.iter().any(|form| line.starts_with(form))).count(),
            1,
            "{message}"
        );
    }
    let ends = ["by these lines ", "no crossing of ring and doubling can be computed: "];
    assert_eq!(message.lines().filter(|line| ends.iter().any(|end| line.starts_with(end))).count(), 1, "{message}");
    let plot = std::fs::read_to_string(job.path("plots/plot.svg")).unwrap();
    assert!(plot.starts_with("<svg ") && plot.contains("all_reduce on 3 ranks"));
}

#[test]
fn rejects_what_cannot_be_with_exit_code_2_and_a_reason() {
    for (args, named) in [
        (&["--root", "4"][..], "--root 4: no such rank in a world of 4; give 0 to 3"),
        (&["--group", "0,7"], "--group 0,7: rank 7 is outside a world of 4"),
        (&["--group", ""], "--group : a group needs at least one rank"),
        (&["--group", "1,1"], "--group 1,1: rank 1 is in it twice"),
        (&["--group", "a"], "\"a\" is not a rank"),
        (&["timing", "--max-bytes", "6"], "a message of 6 bytes"),
        (&["timing", "--max-bytes", "4611686018427387904"], "a message of 4611686018427387904 bytes"),
        (&["--repeats", "0"], "'--repeats <REPEATS>'"),
        (&["--nprocs", "0"], "cannot run 0 ranks as threads"),
        (&["all_sing"], "invalid value 'all_sing'"),
    ] {
        let output = lab().alone(&[args, &["--device", "cpu"]].concat());
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {message}");
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn every_rank_rejects_a_root_outside_the_world_under_a_launcher() {
    for output in lab().attempt(2, &["--root", "2", "--device", "cpu"]).0 {
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let job = lab();
    std::fs::write(job.path("results"), "a file").unwrap();
    let output = job.alone(&["ring", "--nprocs", "2", "--results", "results", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("results is a file, and a folder is meant"), "{}", text(&output.stderr));
}

#[test]
fn fails_but_keeps_results_when_the_plot_cannot_be_saved() {
    let job = lab();
    let files = ["--plot", "/dev/full", "--results", "results", "--device", "cpu"];
    let args = ["ring", "timing", "--nprocs", "2", "--max-bytes", "16", "--repeats", "2"];
    let output = job.alone(&[&args[..], &files].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("failed to save the plot to /dev/full"), "{}", text(&output.stderr));
    for rank in 0..2 {
        let held = job.results(rank);
        assert_eq!(held["ring"], serde_json::json!([12, 14]), "rank {rank}");
        assert_eq!(held["timing"][2].as_array().unwrap().len(), 3, "rank {rank}");
    }
}
