//! What lab 11 promises: several passes, other buckets and other numbers of ranks learn the same, compressed gradients nearly so, and
//! the table has the step's calls and bytes.

#![allow(clippy::unwrap_used)] // a test may

use std::collections::BTreeMap;
use std::path::Path;

use lockstep::events::Event;
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, margin};
use tch::{Kind, Tensor};

/// Six steps of 32 samples over all ranks.
const SIZES: [&str; 10] =
    ["--samples", "96", "--epochs", "2", "--width", "32", "--device", "cpu", "--weights", "weights"];
/// The network's parameters: 784 × 32 + 32, 32 × 32 + 32, 32 × 10 + 10.
const PARAMETERS: u64 = 26_506;

fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-11-scaling")
}

/// A finished run: what rank 0 printed, and the weights.
struct Ended {
    printed: String,
    weights: BTreeMap<String, Tensor>,
}

impl Ended {
    fn of(world: usize, args: &[&str]) -> Self {
        let mut job = Job::new(lab());
        let ended = job.attempt(world, &[&SIZES[..], args].concat());
        assert!(ended.succeeded(), "{}", ended.stderr());
        job.weights(world); // equal on all ranks
        let weights = Tensor::read_safetensors(job.path("weights/rank-0.safetensors")).unwrap();
        Ended { printed: ended.stdout(), weights: weights.into_iter().collect() }
    }

    /// The largest difference between two weights.
    fn distance(&self, other: &Self) -> f64 {
        assert!(self.weights.keys().eq(other.weights.keys()));
        let of = |name: &String| (&self.weights[name] - &other.weights[name]).abs().max();
        let distances = self.weights.keys().map(|name| of(name).to_kind(Kind::Double).double_value(&[]));
        distances.fold(0.0, |most, one| if one > most || one.is_nan() { one } else { most })
    }

    /// Calls and bytes of a step.
    fn sent(&self) -> (u64, u64) {
        let line = self.printed.lines().find(|line| line.contains(" bytes a step")).unwrap();
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    }

    /// Of a step of this rank: buckets, calls, and milliseconds with data, with computing and in the exchange.
    fn counters(&self, rank: usize) -> Vec<f64> {
        let tag = format!("[rank {rank}] a step: ");
        let (_, counters) = self.printed.lines().find_map(|line| line.split_once(&tag)).unwrap();
        counters.split(' ').filter_map(|word| word.parse().ok()).collect()
    }

    fn loss(&self) -> f64 {
        let (_, rest) = self.printed.split_once("final loss ").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    }
}

#[test]
fn several_passes_learn_what_one_pass_does_and_send_no_more() {
    let one = Ended::of(2, &["--batch-size", "16"]);
    // Two halves, and parts that are not equal.
    for passes in ["2", "5"] {
        let several = Ended::of(2, &["--batch-size", "16", "--accumulate", passes]);
        margin::below(format!("distance of the weights after {passes} passes a step"), one.distance(&several), 1e-4);
        assert_eq!(several.sent(), one.sent(), "{passes} passes");
    }
}

#[test]
fn every_number_of_ranks_learns_what_one_rank_does_with_the_batches_of_all() {
    let one = Ended::of(1, &["--batch-size", "32"]);
    for (world, batch) in [(2, "16"), (4, "8")] {
        let several = Ended::of(world, &["--batch-size", batch]);
        margin::below(format!("distance of the weights of {world} ranks and one"), one.distance(&several), 1e-4);
        assert_eq!(several.sent(), (1, 4 * PARAMETERS));
    }
}

#[test]
fn buckets_a_log_a_slow_loader_and_a_straggler_show_in_the_counters_and_change_no_weight() {
    let with = |flags: &[&str]| Ended::of(2, &[&["--batch-size", "16"], flags].concat());
    let (usual, buckets) = (with(&[]), with(&["--bucket-mb", "0.001"]));
    let [logs, starves, lags] = [&["--log-every-step"][..], &["--slow-loader", "20"], &["--straggler", "20"]].map(with);
    assert_eq!((usual.sent(), logs.sent()), ((1, 4 * PARAMETERS), (3, 4 * PARAMETERS + 8)));
    assert!(buckets.sent().0 >= 3 && buckets.sent().1 == 4 * PARAMETERS, "{:?}", buckets.sent());
    for rank in 0..2 {
        assert_eq!(usual.counters(rank)[..2], [1.0, 1.0], "buckets and calls");
        assert_eq!(logs.counters(rank)[..2], [1.0, 3.0], "buckets and calls");
    }
    let (data, compute) = (starves.counters(1)[2], lags.counters(1)[3]);
    assert!(data >= 20.0 && compute >= 20.0, "data {data} ms, compute {compute} ms");
    // With two ranks no sum has another order.
    for other in [buckets, logs, starves, lags] {
        assert_eq!(usual.distance(&other), 0.0);
    }
}

#[test]
fn a_run_too_short_for_times_counts_calls_and_bytes() {
    let short = Ended::of(1, &["--batch-size", "96"]);
    assert!(short.printed.contains("too few steps to time: 2,") && !short.printed.contains("NaN"), "{}", short.printed);
    assert_eq!(short.sent(), (1, 4 * PARAMETERS));
}

#[test]
fn compressed_gradients_are_smaller_and_the_model_learns_nearly_the_same() {
    let seed = margin::seed(0).to_string();
    let args = |hook| ["--batch-size", "16", "--epochs", "4", "--samples", "512", "--seed", &seed, "--hook", hook];
    let with = |hook| {
        let mut job = Job::new(lab());
        let fixed = ["--width", "32", "--device", "cpu", "--weights", "weights"];
        let ended = job.attempt(2, &[&args(hook)[..], &fixed].concat());
        assert!(ended.succeeded(), "{}", ended.stderr());
        job.weights(2);
        Ended { printed: ended.stdout(), weights: BTreeMap::new() }
    };
    let whole = with("none");
    assert_eq!(whole.sent(), (1, 4 * PARAMETERS));
    for (hook, bytes, limit) in [
        ("fp16", 2 * PARAMETERS, 1.3),
        ("bf16", 2 * PARAMETERS, 1.3),
        // Three matrices as two of rank 2, and three vectors as they are: 4 bytes each, in two calls.
        ("powersgd", 4 * (2 * (784 + 32 + 32 + 32 + 32 + 10) + 32 + 32 + 10), 3.0),
    ] {
        let compressed = with(hook);
        assert_eq!(compressed.sent().1, bytes, "{hook}");
        margin::below(format!("loss with {hook}, of that without"), compressed.loss() / whole.loss(), limit);
    }
}

#[test]
fn the_event_file_names_a_straggler() {
    let mut job = Job::new(lab());
    // 75 steps of 200 ms at least: a finding comes after about 10 s.
    let steps = ["--samples", "1200", "--epochs", "1", "--batch-size", "8", "--width", "32", "--device", "cpu"];
    let ended = job.attempt(2, &[&steps[..], &["--straggler", "200"]].concat());
    assert!(ended.succeeded(), "{}", ended.stderr());
    assert!(ended.stderr().contains("warning: rank 1 on "), "{}", ended.stderr());
    assert!(ended.stderr().contains("warning: in all, rank 1 on "), "{}", ended.stderr());
    let late =
        |(_, event): &(u32, Event)| matches!(event, Event::Late { ranks, share, .. } if *ranks == [1] && *share > 0.5);
    assert!(job.events()[&0].iter().any(late), "{:?}", job.events()[&0]);
}

#[test]
fn passes_and_compression_learn_what_they_do_in_the_python_script() {
    let Some(mut twin) = Job::in_python("lab 11 and its Python script") else { return };
    lockstep::data::Digits::write_idx(&twin.path("digits"), 3, 300, 1).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scaling.py");
    for how in [["--accumulate", "3"], ["--hook", "fp16"]] {
        let args = [&["--seed", "3", "--epochs", "2", "--width", "32"], &how[..]].concat();
        let python = twin.attempt(2, &[&[script, "--data", "digits"], &args[..]].concat());
        assert!(python.succeeded(), "{}", python.stderr());
        let own = Job::new(lab()).attempt(2, &[&["--samples", "300", "--device", "cpu"], &args[..]].concat());
        assert!(own.succeeded(), "{}", own.stderr());
        // An accuracy is in percent: one of 300 answers is 0.33.
        assert_prints_alike(&own.stdout(), &python.stdout(), &["final loss "], 1e-3);
    }
}
