//! Tests of lab 04: deadlocks are detected and reported; the table and the plot have the requested sizes; the Python script prints the
//! same; invalid arguments are rejected. `lockstep verify` checks what each rank holds after each part.

#![allow(clippy::unwrap_used)] // a test may

use std::process::Output;

use assert_cmd::cargo::cargo_bin;
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, text};

/// Short measurements: the tests do not check times.
const QUICK: [&str; 10] =
    ["--device", "cpu", "--max-bytes", "16", "--patience", "3", "--results", "results", "--plot", "plots/plot.svg"];

fn lab() -> Job {
    Job::new(cargo_bin!("lab-04-point-to-point"))
}

/// Runs ranks that are threads of one process.
fn threads(job: &Job, world: usize, args: &[&str]) -> Output {
    job.alone(&[&["--nprocs", &world.to_string()], args].concat())
}

/// Rank 0's report of the cycle of `world` ranks in which each waits for the one before it.
fn cycle_backwards(world: usize) -> String {
    let links: Vec<_> = (0..world).rev().map(|rank| format!("waits for rank {rank}")).collect();
    format!("[rank 0] deadlock: all receive first: found a deadlock: rank 0 {}", links.join(", which "))
}

fn check_deadlocks(printed: &str, world: usize) {
    assert!(printed.contains(&cycle_backwards(world)), "{printed}");
    for bytes in [4, 4 << 20] {
        let message = format!("deadlock: all send first, {bytes} bytes: found a deadlock: rank 0 waits for rank 1, ");
        assert!(printed.contains(&message), "{printed}");
    }
    // Every rank prints which rank it waited for.
    for rank in 0..world {
        let before = (rank + world - 1) % world;
        let message = format!(
            "[rank {rank}] deadlock: all receive first: irecv [1] Float tag 0 with rank {before} on rank {rank} "
        );
        assert!(printed.contains(&message), "{printed}");
    }
}

#[test]
fn any_number_of_ranks_detects_its_deadlocks_and_names_who_waits_for_whom() {
    for world in 2..=4 {
        let output = threads(&lab(), world, &QUICK);
        assert!(output.status.success(), "{}", text(&output.stderr));
        check_deadlocks(&text(&output.stdout), world);
    }
}

#[test]
fn detects_deadlocks_repeatedly() {
    let job = lab();
    let output = threads(&job, 2, &[&["--part", "deadlock", "--part", "deadlock"], &QUICK[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert_eq!(printed.matches(&cycle_backwards(2)).count(), 2, "{printed}");
    assert_eq!(printed.matches("start to send, then receive: got ").count(), 4, "{printed}");
}

#[test]
fn a_deadlock_that_is_not_fixed_ends_the_program_with_exit_code_1_and_names_who_was_waited_for() {
    let output = threads(&lab(), 2, &["--part", "stuck", "--patience", "3", "--device", "cpu"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let lines: Vec<_> = message.lines().collect();
    let rank = usize::from(lines[0] == "error: rank 1 failed");
    assert_eq!(lines[0], format!("error: rank {rank} failed"));
    assert_eq!(lines[1], "  caused by: part stuck failed");
    assert_eq!(lines[2], format!("  caused by: this rank waits for rank {}, which sends nothing", 1 - rank));
    assert!(message.contains(&format!("in irecv [1] Float tag 0 from rank {rank}")), "{message}");
}

#[test]
fn the_table_and_the_plot_have_the_requested_sizes() {
    let job = lab();
    let args =
        ["--part", "latency", "--min-bytes", "8", "--max-bytes", "64", "--plot", "plots/plot.svg", "--device", "cpu"];
    let printed = text(&threads(&job, 2, &args).stdout);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[0].split_whitespace().next(), Some("bytes"), "{printed}");
    let sizes: Vec<_> = lines[1..5].iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!((sizes, lines.len()), (vec!["8", "16", "32", "64"], 6), "{printed}");
    // So short messages need not take longer the longer they are.
    let rising = lines[5].starts_with("send and recv: t = α + β·n with α = ") && lines[5].contains(" µs, 1/β = ");
    assert!(rising || lines[5].starts_with("send and recv: the times do not grow with the size: "), "{printed}");
    let svg = std::fs::read_to_string(job.path("plots/plot.svg")).unwrap();
    // A point for each size.
    assert_eq!(svg.matches("<circle").count(), 4);
}

#[test]
fn fails_but_keeps_results_when_the_plot_cannot_be_saved() {
    let job = lab();
    let onto_a_full_disk = QUICK.map(|arg| if arg == "plots/plot.svg" { "/dev/full" } else { arg });
    let output = threads(&job, 2, &[&["--part", "ring", "--part", "latency"], &onto_a_full_disk[..]].concat());
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("failed to save the plot to /dev/full"), "{message}");
    for rank in 0..2 {
        let held = job.results(rank);
        assert_eq!(
            (held["ring"][1].as_f64(), held["latency"].as_array().unwrap().len()),
            (Some(2.0), 3),
            "rank {rank}"
        );
    }
}

#[test]
fn sends_to_another_rank() {
    let job = lab();
    let args = ["--part", "send-recv", "--part", "isend-irecv", "--to", "2", "--results", "results", "--device", "cpu"];
    assert!(threads(&job, 3, &args).status.success());
    for (rank, sent) in [(0, 1.0), (1, 0.0), (2, 1.0)] {
        let wanted = serde_json::json!({"send-recv": [sent], "isend-irecv": [sent]});
        assert_eq!(job.results(rank), wanted, "rank {rank}");
    }
}

#[test]
fn rejects_wrong_use_with_exit_code_2() {
    for (args, named) in [
        (["--nprocs", "1"], "a message needs two ranks, but there is 1: ask for more with --nprocs=2"),
        (["--nprocs", "0"], "cannot run 0 ranks as threads: ask for 1 or more"),
        (["--to", "2"], "--to is 2, but ranks run from 0 to 1"),
        (["--to", "0"], "--to is 0, but rank 0 cannot send to itself"),
        (["--max-bytes", "12"], "a message of 12 bytes cannot be measured"),
        (["--max-bytes", "4611686018427387904"], "a message of 4611686018427387904 bytes cannot be measured"),
        (["--patience", "0"], "the time must be more than 0 seconds"),
        (["--part", "gossip"], "'gossip' for '--part <PARTS>'"),
    ] {
        let output = lab().alone(&args);
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{message}");
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn rejects_a_number_of_ranks_that_contradicts_the_launcher() {
    for output in lab().attempt(2, &["--nprocs", "3"]).0 {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("3 ranks were asked for, but a launcher has started 2"), "{message}");
    }
}

#[test]
fn three_ranks_print_what_three_ranks_of_the_python_script_do() {
    let Some(mut twin) = Job::in_python("lab 04 and its Python script") else { return };
    let python = twin.attempt(3, &[concat!(env!("CARGO_MANIFEST_DIR"), "/point_to_point.py")]);
    assert!(python.succeeded(), "{}", python.stderr());
    let own = lab().attempt(3, &QUICK);
    assert!(own.succeeded(), "{}", own.stderr());
    let words = ["has data ", "ring: ", "start to send, then receive: "];
    assert_prints_alike(&own.stdout(), &python.stdout(), &words, 0.0);
}
