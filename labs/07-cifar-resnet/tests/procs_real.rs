//! The lab on real photographs, where they are at hand: 2 ranks on the CPU, and the recipe that the README names.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use common::{new_job, numbers};
use lockstep::data::real_data_dir;

#[test]
fn two_ranks_reach_40_percent_on_real_photographs() {
    let data = real_data_dir().filter(|dir| dir.join("cifar-10-batches-bin").is_dir());
    let Some(data) = data else {
        println!("not verified here: lab 07 on CIFAR-10; set LOCKSTEP_DATA to a folder that has cifar-10-batches-bin/");
        return;
    };
    let mut job = new_job();
    let data = data.to_str().unwrap();
    // A minute or so on two quiet cores.
    let ended = job.attempt(2, &["--data", data, "--device", "cpu"]);
    assert!(ended.succeeded(), "{}", ended.told());
    let printed = ended.printed();
    println!("{printed}");
    let (losses, shares) = (numbers(&printed, "train loss: "), numbers(&printed, "train accuracy: "));
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{printed}");
    assert!(shares.last() > shares.first(), "{printed}");
    let best = numbers(&printed, ", Accuracy: ").into_iter().fold(0.0, f64::max);
    assert!(best >= 0.4, "{printed}");
}
