//! What lab 12 promises: every scheme learns what one rank learns from the whole batch, holds its share, and sends what the theory says.

#![allow(clippy::unwrap_used)] // a test may

use std::path::Path;

use lockstep_events::Event;
use lockstep_testkit::Job;
use lockstep_testkit::python::assert_prints_alike;

const STEPS: usize = 6;

fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-12-parallelism")
}

/// What a run printed.
struct Ended(String);

impl Ended {
    fn of(world: usize, args: &[&str]) -> Self {
        let mut job = Job::new(lab());
        let ended = job.attempt(world, &[&["--steps", "6"], args].concat());
        assert!(ended.succeeded(), "{args:?} on {world} ranks: {}", ended.stderr());
        Ended(ended.stdout())
    }

    fn losses(&self) -> Vec<f64> {
        let loss = |line: &str| line.split_once(" loss ").and_then(|(_, loss)| loss.parse().ok());
        self.0.lines().filter_map(loss).collect()
    }

    /// Of a rank: bytes of parameters, gradients and states, bytes sent in a step, and calls.
    fn held(&self, rank: usize) -> [u64; 5] {
        let (tag, mark) = (format!("[rank {rank}]"), "parameters ");
        let of_rank =
            |line: &&str| line.contains("optimizer's states") && (!line.contains("[rank") || line.contains(&tag));
        let line = self.0.lines().find(of_rank).unwrap_or_else(|| panic!("rank {rank} in {}", self.0));
        let (_, numbers) = line.split_once(mark).unwrap();
        let numbers = numbers.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
        numbers.collect::<Vec<_>>().try_into().unwrap()
    }
}

fn furthest(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!((one.len(), other.len()), (STEPS, STEPS));
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

const SCHEMES: [&[&str]; 8] = [
    &["--scheme", "ddp"],
    &["--scheme", "zero"],
    &["--scheme", "sharded"],
    &["--scheme", "sharded", "--recompute"],
    &["--scheme", "tensor"],
    &["--scheme", "tensor", "--recompute"],
    &["--scheme", "pipeline"],
    &["--scheme", "pipeline", "--schedule", "gpipe", "--recompute"],
];

#[test]
fn every_scheme_learns_what_one_rank_does_to_1e_10_in_double_precision() {
    let one = Ended::of(1, &["--double"]).losses();
    assert!(one[STEPS - 1] < one[0], "{one:?}");
    for scheme in SCHEMES {
        for world in [2, 3, 4] {
            let losses = Ended::of(world, &[scheme, &["--double"]].concat()).losses();
            assert!(furthest(&one, &losses) < 1e-10, "{scheme:?} on {world} ranks: {losses:?}, not {one:?}");
        }
    }
    let threads = Ended::of(1, &["--double", "--scheme", "threads", "--replicas", "3"]).losses();
    assert!(furthest(&one, &threads) < 1e-10, "{threads:?}, not {one:?}");
}

/// Batch normalization needs the whole batch, or the same micro-batches.
#[test]
fn the_resnet_learns_what_one_rank_does_to_1e_10_in_double_precision() {
    let resnet = |world, args: &[&str]| Ended::of(world, &[&["--double", "--model", "resnet"], args].concat()).losses();
    let one = resnet(1, &[]);
    for scheme in ["ddp", "zero", "sharded"] {
        for world in [2, 3] {
            let losses = resnet(world, &["--scheme", scheme]);
            assert!(furthest(&one, &losses) < 1e-10, "{scheme} on {world} ranks: {losses:?}, not {one:?}");
        }
    }
    let stages = |world| resnet(world, &["--scheme", "pipeline", "--micro-batches", "2"]);
    let one = stages(1);
    for world in [2, 3] {
        let losses = stages(world);
        assert!(furthest(&one, &losses) < 1e-10, "pipeline on {world} ranks: {losses:?}, not {one:?}");
    }
}

/// Adam divides a gradient by its own size, so rounding in the smallest ones shows in the second step.
#[test]
fn every_scheme_learns_what_one_rank_does_to_1e_3_in_single_precision() {
    let one = Ended::of(1, &[]).losses();
    for scheme in SCHEMES {
        let losses = Ended::of(2, scheme).losses();
        println!("{scheme:?}: {:.1e}", furthest(&one, &losses));
        assert!(furthest(&one, &losses) < 1e-3, "{scheme:?}: {losses:?}, not {one:?}");
    }
}

#[test]
fn each_rank_holds_its_share_and_sends_what_the_theory_says() {
    // Of 4 blocks: 12 f² + 9 f each; 96 f twice with a bias of 96; positions 32 f. In single precision.
    const F: u64 = 48;
    const BLOCK: u64 = (12 * F * F + 9 * F) * 4;
    const ENDS: u64 = (2 * 96 * F + 96 + 32 * F) * 4;
    const ALL: u64 = 4 * BLOCK + ENDS;
    const LOSS: u64 = 8; // of ranks that add up their parts of the loss
    let [parameters, gradients, states, sent, calls] = Ended::of(1, &["--scheme", "ddp"]).held(0);
    assert_eq!([parameters, gradients], [ALL, ALL]);
    assert_eq!(states, 2 * ALL);
    assert_eq!((sent, calls), (ALL + LOSS, 2));

    let ddp = Ended::of(2, &["--scheme", "ddp"]).held(1);
    assert_eq!(ddp, [ALL, ALL, states, ALL + LOSS, 2]);
    let zero = Ended::of(2, &["--scheme", "zero"]);
    let both = [zero.held(0), zero.held(1)];
    for [parameters, gradients, _, sent, _] in both {
        assert_eq!([parameters, gradients, sent], [ALL, ALL, 2 * ALL + LOSS]);
    }
    assert_eq!(both[0][2] + both[1][2], states);

    // Parts of each unit (the embedding, four blocks, the head) are gathered twice, and its gradients reduced once.
    let sharded = Ended::of(2, &["--scheme", "sharded"]);
    for rank in [0, 1] {
        assert_eq!(sharded.held(rank), [ALL / 2, ALL / 2, ALL, 2 * ALL / 2 + ALL + LOSS, 3 * 6 + 1]);
    }
    let whole = "bytes of whole parameters and gradients at once";
    let most = sharded
        .0
        .lines()
        .find_map(|line| line.split_once(whole)?.0.split(' ').rev().find_map(|word| word.parse::<u64>().ok()));
    assert!(most.is_some_and(|most| (2 * BLOCK..ALL).contains(&most)), "{most:?} in {}", sharded.0);

    // Sequences × characters × f: two exchanges a block each way; one more for the embedding forward, and the head backward. And three
    // numbers for each character in the loss.
    let activations = 12 * 32 * F * 4;
    let tensor = Ended::of(2, &["--scheme", "tensor"]).held(1);
    let whole = (4 * 2 * F + 32 * F) * 4; // biases after the sums, and positions
    assert_eq!(tensor[0], (ALL - whole) / 2 + whole);
    assert_eq!([tensor[3], tensor[4]], [(4 * 4 + 2) * activations + 3 * 12 * 32 * 4, 4 * 4 + 2 + 2]);

    let pipeline = Ended::of(2, &["--scheme", "pipeline"]);
    let [first, last] = [pipeline.held(0), pipeline.held(1)];
    assert_eq!(first[0] + last[0], ALL);
    assert_eq!(last[0], 2 * BLOCK + (96 * F + 96) * 4);
    for stage in [first, last] {
        assert_eq!([stage[3], stage[4]], [activations + LOSS, 4 + 1]);
    }
    assert!(pipeline.0.contains("held activations of 2 micro-batches"), "{}", pipeline.0);
}

#[test]
fn each_rank_notes_its_bytes_by_kind_after_each_step() {
    let mut job = Job::new(lab());
    job.succeeds(2, &["--scheme", "sharded", "--steps", "2"]);
    for (rank, events) in job.events() {
        let sent: Vec<u64> = events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Memory { parameters, gradients, optimizer, buckets, sent, .. } => {
                    assert!(
                        *parameters > 0
                            && gradients == parameters
                            && *optimizer == 2 * parameters
                            && buckets > parameters
                    );
                    Some(*sent)
                }
                _ => None,
            })
            .collect();
        assert!(sent.len() == 2 && sent[0] < sent[1], "rank {rank}: {sent:?}");
    }
}

#[test]
fn reads_a_real_text() {
    let mut job = Job::new(lab());
    std::fs::write(job.path("text.txt"), "Ein Zug fährt durch die Nacht.\n".repeat(40)).unwrap();
    let ended = job.attempt(2, &["--steps", "6", "--data", "text.txt"]);
    assert!(ended.succeeded(), "{}", ended.stderr());
    let losses = Ended(ended.stdout()).losses();
    assert!(losses[STEPS - 1] < losses[0], "{losses:?}");
}

#[test]
fn the_python_script_has_the_same_losses_in_each_scheme() {
    let Some(mut twin) = Job::in_python("lab 12 and its Python script") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/parallelism.py");
    for scheme in ["ddp", "zero", "sharded", "tensor", "pipeline"] {
        let args = ["--double", "--steps", "3", "--scheme", scheme];
        let python = twin.succeeds(2, &[&[script], &args[..]].concat());
        let own = Job::new(lab()).succeeds(2, &args);
        assert_prints_alike(&own.stdout(), &python.stdout(), &[" loss "], 1e-9);
    }
}

#[test]
fn refuses_sizes_that_cannot_be_divided() {
    for (args, says) in [
        (&["--batch-size", "13"][..], "cannot be divided into 2 equal parts"),
        (&["--scheme", "pipeline", "--blocks", "1"], "2 stages need at least as many --blocks"),
        (&["--scheme", "threads"], "is one process"),
        (&["--scheme", "tensor", "--model", "resnet"], "its convolutions have no parts here"),
    ] {
        let ended = Job::new(lab()).attempt(2, args);
        assert!(!ended.succeeded() && ended.stderr().contains(says), "{args:?}: {}", ended.stderr());
    }
}
