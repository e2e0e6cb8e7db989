//! Training on MNIST: every sample is visited, all ranks have the same weights, and the digits are learned.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use assert_cmd::cargo::cargo_bin;
use common::{Lab, stdout};
use lockstep::data::real_data_dir;
use lockstep::events::Event;
use lockstep_testkit::margin;
use safetensors::SafeTensors;

fn mnist() -> &'static Path {
    cargo_bin!("lab-02-spawn-ddp")
}

/// The bytes of each rank's weights, by rank.
fn weights(lab: &Lab, nprocs: usize) -> Vec<Vec<u8>> {
    (0..nprocs).map(|rank| fs::read(lab.path(&format!("weights/rank-{rank}.safetensors"))).unwrap()).collect()
}

/// The samples of all ranks in an epoch, sorted.
fn seen(events: &BTreeMap<usize, Vec<Event>>, wanted: u64) -> Vec<u64> {
    let of = |event: &Event| match event {
        Event::Samples { epoch, indices } if *epoch == wanted => indices.clone(),
        _ => Vec::new(),
    };
    let mut seen: Vec<u64> = events.values().flatten().flat_map(of).collect();
    seen.sort_unstable();
    seen
}

/// Accuracy and number of samples of each evaluation of a rank.
fn evaluations(events: &[Event]) -> Vec<(f64, u64)> {
    let of = |event: &Event| match event {
        Event::Eval { accuracy, samples, .. } => Some((*accuracy, *samples)),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// The number of samples in all of a rank's steps of an epoch.
fn trained(events: &[Event], wanted: u64) -> u64 {
    let of = |event: &Event| match event {
        Event::Step { epoch, samples, .. } if *epoch == wanted => *samples,
        _ => 0,
    };
    events.iter().map(of).sum()
}

/// 337 training digits leave a remainder of 1 for 3 ranks, and so do 85 test digits.
fn trains_alike(nprocs: usize) {
    let lab = Lab::new();
    let args = ["--nprocs", &nprocs.to_string(), "--samples", "337", "--epochs", "2", "--weights", "weights"];
    lab.run(mnist(), &[&args[..], &["--device", "cpu"]].concat()).success();
    let all = weights(&lab, nprocs);
    assert!(all.iter().all(|weights| *weights == all[0]), "the ranks' weights differ");
    SafeTensors::deserialize(&all[0]).unwrap();

    let events = lab.events();
    let share = 337_usize.div_ceil(nprocs);
    assert_eq!(events.keys().copied().collect::<Vec<_>>(), (0..nprocs).collect::<Vec<_>>());
    for epoch in 0..2 {
        let mut seen = seen(&events, epoch);
        assert_eq!(seen.len(), share * nprocs);
        seen.dedup();
        assert_eq!(seen, (0..337).collect::<Vec<u64>>());
        assert!(events.values().all(|events| trained(events, epoch) == share as u64));
    }
    let evaluated = evaluations(&events[&0]);
    assert_eq!((evaluated.len(), evaluated[0].1), (2, 85), "each test digit counts once");
    assert!(events.values().all(|events| evaluations(events) == evaluated));
}

#[test]
fn one_rank_sees_every_digit() {
    trains_alike(1);
}

#[test]
fn three_ranks_end_with_the_same_bits_and_see_every_digit() {
    trains_alike(3);
}

#[test]
fn more_ranks_than_digits_train_without_a_hang() {
    let lab = Lab::new();
    let args = ["--nprocs", "3", "--samples", "2", "--epochs", "1", "--weights", "weights", "--device", "cpu"];
    lab.run(mnist(), &args).success();
    let all = weights(&lab, 3);
    assert!(all.iter().all(|weights| *weights == all[0]));
    assert_eq!(evaluations(&lab.events()[&2]), evaluations(&lab.events()[&0]));
}

/// The values of all tensors of a file, in the order of their names.
fn values(file: &[u8]) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let mut named = tensors.tensors();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    let bytes = named.iter().flat_map(|(_, view)| view.data().chunks_exact(4));
    bytes.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn two_ranks_of_16_equal_one_rank_of_32() {
    let run = |nprocs: &str, batch_size: &str| {
        let lab = Lab::new();
        let sizes = ["--nprocs", nprocs, "--batch-size", batch_size, "--samples", "320", "--epochs", "1"];
        lab.run(mnist(), &[&sizes[..], &["--weights", "weights", "--device", "cpu"]].concat()).success();
        values(&weights(&lab, 1)[0])
    };
    let (two, one) = (run("2", "16"), run("1", "32"));
    let furthest = two.iter().zip(&one).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Additions in another order round differently, by 1e-7; weights from other batches are 0.1 away.
    assert_eq!(two.len(), 105_866);
    margin::below("distance of the weights", furthest.into(), 1e-5);
}

#[test]
fn learns_drawn_digits() {
    let lab = Lab::new();
    let seed = margin::seed(0).to_string();
    let args = ["--samples", "1500", "--epochs", "3", "--batch-size", "16", "--device", "cpu", "--seed", &seed];
    let run = lab.run(mnist(), &args).success();
    let accuracy = evaluations(&lab.events()[&0]);
    margin::below("errors after three epochs", 1.0 - accuracy[2].0, 0.2);
    assert!(stdout(&run).contains(&format!("Epoch: 2, Accuracy: {:.4}, Loss: ", accuracy[2].0)));
}

#[test]
fn learns_the_real_digits_to_96_percent() {
    let Some(data) = real_data_dir().map(|data| data.join("mnist")).filter(|dir| dir.is_dir()) else {
        println!("not verified here: accuracy on the real MNIST; set LOCKSTEP_DATA to a folder that has mnist/");
        return;
    };
    let lab = Lab::new();
    let (data, seed) = (data.to_str().unwrap(), margin::seed(0).to_string());
    lab.run(mnist(), &["--data", data, "--epochs", "4", "--device", "cpu", "--seed", &seed]).success();
    let evaluated = evaluations(&lab.events()[&0]);
    let best = evaluated.iter().map(|(accuracy, _)| *accuracy).fold(0.0, f64::max);
    margin::below(format!("least errors on {} held-out digits", evaluated[0].1), 1.0 - best, 0.04);
}
