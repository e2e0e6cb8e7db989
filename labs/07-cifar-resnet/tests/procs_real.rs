//! The lab on real photographs, if they are available: 2 ranks on the CPU, with the README's recipe.

#![allow(clippy::unwrap_used)] // a test may

mod common;

use common::{new_job, numbers};
use lockstep::data::real_data_dir;
use lockstep_testkit::margin;

#[test]
fn two_ranks_learn_to_sort_40_percent_of_real_photographs() {
    let data = real_data_dir().filter(|dir| dir.join("cifar-10-batches-bin").is_dir());
    let Some(data) = data else {
        println!("not verified here: lab 07 on CIFAR-10; set LOCKSTEP_DATA to a folder that has cifar-10-batches-bin/");
        return;
    };
    let mut job = new_job();
    let (data, seed) = (data.to_str().unwrap(), margin::seed(0).to_string());
    let sizes = ["--width", "32", "--epochs", "8", "--seed", &seed];
    // A minute or so on two quiet cores.
    let args = [&["--data", data, "--device", "cpu"][..], &sizes].concat();
    let ended = job.attempt(2, &args);
    assert!(ended.succeeded(), "{}", ended.stderr());
    let printed = ended.stdout();
    println!("{printed}");
    let (losses, shares) = (numbers(&printed, "train loss: "), numbers(&printed, "train accuracy: "));
    assert_eq!((losses.len(), shares.len()), (8, 8), "{printed}");
    margin::above("fall of the loss over eight epochs", losses[0] - losses[7], 0.3);
    margin::above("rise of the accuracy in training", shares[7] - shares[0], 0.1);
    let best = numbers(&printed, ", Accuracy: ").into_iter().fold(0.0, f64::max);
    margin::above("best accuracy on ten classes", best, 0.4);
}
