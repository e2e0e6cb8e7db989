//! Tests of lab 01: its output, its checkpoint, its events, its exit codes; and the code of the book's page "Rust for people who know
//! Python", of which each example is compiled and run.

#![allow(clippy::unwrap_used)] // a test may

use std::process::Output;
use std::sync::Arc;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use assert_cmd::assert::OutputAssertExt;
use assert_cmd::cargo::cargo_bin;
use c10d::Rank;
use lockstep::events::{self, Event};
use lockstep_process::watchdog;
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, margin, names, numbers, text};
use predicates::prelude::*;
use safetensors::{Dtype, SafeTensors};
use tch::{Device, IndexOp, Kind, Tensor};

fn lab() -> Job {
    Job::new(cargo_bin!("lab-01-single-gpu"))
}

/// Runs the lab to its end on the CPU. Returns what it printed.
fn run(lab: &Job, args: &[&str]) -> String {
    text(&lab.alone(&[args, &["--device", "cpu"]].concat()).assert().success().get_output().stdout)
}

/// Runs the lab where a limit on the size of files, as a full disk, lets it write none.
fn run_on_a_full_disk(lab: &Job, args: &[&str]) -> Output {
    // The shell sets the limit, so it applies only to the lab.
    let mut shell = lab.command("sh");
    shell.args(["-c", "ulimit -f 0; trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(lab.program()).args(args).args(["--device", "cpu"]).env_remove(events::FOLDER);
    watchdog::output(shell).assert().code(1).get_output().clone()
}

/// The bytes of the checkpoint after a separate run.
fn checkpoint_of(args: &[&str]) -> Vec<u8> {
    let lab = lab();
    run(&lab, args);
    fs::read(lab.path("checkpoint.safetensors")).unwrap()
}

/// A tensor of a checkpoint: shape and values.
fn tensor(checkpoint: &[u8], name: &str) -> (Vec<usize>, Vec<f32>) {
    let tensors = SafeTensors::deserialize(checkpoint).unwrap();
    let view = tensors.tensor(name).unwrap();
    assert_eq!(view.dtype(), Dtype::F32);
    let values = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    (view.shape().to_vec(), values.collect())
}

/// The numbers of the epochs after which the lab reports a checkpoint.
fn saved_after(printed: &str) -> Vec<u64> {
    let line =
        |line: &str| line.strip_suffix(" | Training checkpoint saved at checkpoint.safetensors").map(str::to_owned);
    printed.lines().filter_map(line).map(|line| line.strip_prefix("Epoch ").unwrap().parse().unwrap()).collect()
}

/// The mean loss of each epoch, as printed.
fn losses(printed: &str) -> Vec<f64> {
    numbers(printed, " | Loss: ")
}

#[test]
fn learns_to_a_loss_lower_by_a_wide_factor() {
    let printed = run(&lab(), &["10", "2", "--seed", &margin::seed(0).to_string()]);
    assert!(printed.contains("[rank 0] Epoch 9 | Batchsize: 32 | Steps: 64\n"));
    let losses = losses(&printed);
    assert_eq!(losses.len(), 10);
    margin::above("loss of the first epoch over that of the tenth", losses[0] / losses[9], 10.0);
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
}

#[test]
fn saves_only_after_every_nth_epoch_and_the_last() {
    assert_eq!(saved_after(&run(&lab(), &["5", "2"])), [1, 3, 4]);
    assert_eq!(saved_after(&run(&lab(), &["4", "2"])), [1, 3]);
    assert_eq!(saved_after(&run(&lab(), &["2", "9"])), [1]);
}

#[test]
fn writes_no_checkpoint_before_its_time() {
    // The first attempt to save ends the run, after two epochs.
    assert_eq!(losses(&text(&run_on_a_full_disk(&lab(), &["5", "2"]).stdout)).len(), 2);
}

#[test]
fn overwrites_the_checkpoint_with_later_weights() {
    assert_ne!(checkpoint_of(&["2", "2"]), checkpoint_of(&["4", "2"]));
}

#[test]
fn saves_a_safetensors_file_with_pythons_names_and_shapes() {
    let checkpoint = checkpoint_of(&["1", "1"]);
    let mut names: Vec<String> =
        SafeTensors::deserialize(&checkpoint).unwrap().names().into_iter().map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, ["bias", "weight"]);
    let ((weight, values), (bias, _)) = (tensor(&checkpoint, "weight"), tensor(&checkpoint, "bias"));
    assert_eq!((weight, bias), (vec![1, 20], vec![1]));
    assert!(values.iter().all(|value| value.is_finite()));
}

#[test]
fn learns_the_rule_that_made_the_data_with_every_weight() {
    use lockstep::data::Toy;
    // A learning rate of 0 keeps the initial weights.
    let seed = margin::seed(0).to_string();
    let of = |args: [&str; 4]| checkpoint_of(&[&args[..], &["--seed", &seed]].concat());
    let (before, after) = (of(["1", "1", "--lr", "0"]), of(["40", "40", "--lr", "0.05"]));
    let ((_, before), (_, after)) = (tensor(&before, "weight"), tensor(&after, "weight"));
    assert!(before.iter().zip(&after).all(|(a, b)| a != b), "some weight did not move: {before:?} {after:?}");
    let furthest = |weights: &[f32]| {
        weights.iter().zip(Toy::weights()).map(|(weight, rule)| (weight - rule).abs()).fold(0.0, f32::max)
    };
    margin::above("distance of the first weights from the rule", furthest(&before).into(), 0.5);
    margin::below("distance of the learned weights from the rule", furthest(&after).into(), 0.05);
}

#[test]
fn gives_the_same_bits_only_for_the_same_seed() {
    let seven = checkpoint_of(&["3", "3", "--seed", "7"]);
    assert_eq!(seven, checkpoint_of(&["3", "3", "--seed", "7"]));
    assert_ne!(seven, checkpoint_of(&["3", "3", "--seed", "8"]));
}

#[test]
fn visits_every_sample_once_per_epoch_in_a_new_order() {
    let lab = lab();
    run(&lab, &["2", "2", "--batch-size", "100"]);
    let events: Vec<Event> = lab.events().remove(&0).unwrap().into_iter().map(|(_, event)| event).collect();
    let order = |event: &Event| if let Event::Samples { indices, .. } = event { Some(indices.clone()) } else { None };
    let orders: Vec<Vec<u64>> = events.iter().filter_map(order).collect();
    assert_ne!(orders[0], orders[1]);
    for mut order in orders {
        order.sort_unstable();
        assert_eq!(order, (0..2048).collect::<Vec<u64>>());
    }
    let trained = |event: &Event| if let Event::Step { epoch: 1, samples, .. } = event { Some(*samples) } else { None };
    let batches: Vec<u64> = events.iter().filter_map(trained).collect();
    assert_eq!((batches.len(), batches[20], batches.iter().sum::<u64>()), (21, 48, 2048));
}

#[test]
fn rejects_invalid_arguments_by_name_with_exit_code_2() {
    for (args, named) in [
        (&["ten"][..], "'ten' for '[TOTAL_EPOCHS]'"),
        (&["10", "0"], "'0' for '[SAVE_EVERY]'"),
        (&["--batch-size", "0"], "'0' for '--batch-size <BATCH_SIZE>'"),
        (&["--device", "abacus"], "'abacus' for '--device <DEVICE>'"),
        (&["--rank", "0"], "'--rank'"),
    ] {
        let lab = lab();
        lab.alone(args).assert().code(2).stdout("").stderr(predicate::str::contains(named));
        assert!(names(&lab.path("")).is_empty());
    }
}

#[test]
fn rejects_a_learning_rate_that_is_nan() {
    let refusal = predicate::str::contains("invalid lr for SGD: NaN");
    lab().alone(&["--lr", "nan", "--device", "cpu"]).assert().code(1).stderr(refusal);
}

#[test]
fn refuses_a_checkpoint_that_cannot_be_written_before_it_trains() {
    let lab = lab();
    fs::write(lab.path("file"), "").unwrap();
    fs::create_dir(lab.path("c.safetensors")).unwrap();
    for (path, why) in [
        ("file/c.safetensors", "file is a file, and a folder is meant"),
        ("c.safetensors", "c.safetensors is a folder, and a file is meant"),
    ] {
        let args = ["1", "1", "--device", "cpu", "--checkpoint", path];
        lab.alone(&args).assert().code(2).stderr(predicate::str::contains(why));
    }
    assert_eq!(names(&lab.path("")), ["c.safetensors", "file"]);
}

#[test]
fn keeps_the_last_good_checkpoint_when_the_next_cannot_be_written() {
    let lab = lab();
    run(&lab, &["1", "1"]);
    let good = fs::read(lab.path("checkpoint.safetensors")).unwrap();
    let message = text(&run_on_a_full_disk(&lab, &["1", "1", "--seed", "5"]).stderr);
    assert!(message.contains("failed to save a checkpoint to checkpoint.safetensors"), "{message}");
    assert_eq!(fs::read(lab.path("checkpoint.safetensors")).unwrap(), good);
    assert_eq!(names(&lab.path("")), ["checkpoint.safetensors", "events"]);
}

#[test]
fn the_losses_are_those_of_the_python_script() {
    let Some(twin) = Job::in_python("lab 01 and its Python script") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/single_gpu.py");
    let python = twin.alone(&[script, "3", "2", "--lr", "0.01", "--seed", "5"]);
    assert!(python.status.success(), "{}", text(&python.stderr));
    let own = run(&lab(), &["3", "2", "--lr", "0.01", "--seed", "5"]);
    assert_prints_alike(&own, &text(&python.stdout), &["Loss: "], 1e-3);
}

// ANCHOR: result
/// Reads a batch size.
fn batch_size(text: &str) -> Result<i64> {
    let size: i64 = text.parse().with_context(|| format!("{text:?} is no batch size"))?;
    ensure!(size > 0, "a batch of {size} samples is empty");
    Ok(size)
}
// ANCHOR_END: result

#[test]
fn a_result_is_a_value_or_an_error() {
    let read = |text| {
        // ANCHOR: match
        match batch_size(text) {
            Ok(size) => format!("{size} samples"),
            Err(error) => format!("error: {error}"),
        }
        // ANCHOR_END: match
    };
    assert_eq!(read("32"), "32 samples");
    assert_eq!(read("many"), "error: \"many\" is no batch size");
    assert_eq!(read("0"), "error: a batch of 0 samples is empty");
}

// ANCHOR: borrow
/// Borrows the numbers to read them.
fn total(numbers: &[f64]) -> f64 {
    numbers.iter().sum()
}

/// Borrows the numbers to change them.
fn double(numbers: &mut [f64]) {
    for number in numbers {
        *number *= 2.0;
    }
}

/// Takes the numbers: the caller has them no longer.
fn take(numbers: Vec<f64>) -> usize {
    numbers.len()
}
// ANCHOR_END: borrow

#[test]
fn a_value_has_one_owner() {
    // ANCHOR: owner
    let mut losses = vec![1.0, 2.0, 3.0];
    double(&mut losses);
    let sum = total(&losses);
    let count = take(losses);
    // `total(&losses)` would not compile here: "borrow of moved value: `losses`"
    // ANCHOR_END: owner
    assert_eq!((sum, count), (12.0, 3));
}

// ANCHOR: trait
/// Anything that can say which samples an epoch visits.
trait Order {
    fn indices(&self, epoch: u64) -> Vec<usize>;
}

struct InOrder {
    samples: usize,
}

impl Order for InOrder {
    fn indices(&self, _epoch: u64) -> Vec<usize> {
        (0..self.samples).collect()
    }
}

fn first(order: &impl Order) -> Option<usize> {
    order.indices(0).first().copied()
}
// ANCHOR_END: trait

#[test]
fn a_trait_is_an_interface() {
    assert_eq!(first(&InOrder { samples: 3 }), Some(0));
    assert_eq!(first(&InOrder { samples: 0 }), None);
}

#[test]
fn a_closure_uses_the_variables_around_it() {
    // ANCHOR: closure
    let scale = 0.5;
    let scaled: Vec<f64> = [2.0, 4.0].iter().map(|x| x * scale).collect();
    // ANCHOR_END: closure
    assert_eq!(scaled, [1.0, 2.0]);
}

#[test]
fn an_arc_has_several_owners() {
    // ANCHOR: arc
    let data = Arc::new(vec![1, 2, 3]);
    let theirs = Arc::clone(&data); // a second owner of the same vector, not a copy
    let thread = thread::spawn(move || theirs.len()); // `move`: the thread owns `theirs` from here on
    let length = thread.join().expect("the thread does not panic");
    // ANCHOR_END: arc
    assert_eq!((length, data.len()), (3, 3));
}

#[test]
#[rustfmt::skip] // Python in a column of its own
fn tensors_are_made_and_read() -> Result<()> {
    // ANCHOR: tensors
    let t = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0]);          // torch.tensor([1., 2., 3., 4.])
    let z = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));  // torch.zeros(2, 3)
    let m = t.view([2, 2]);                                     // t.view(2, 2): the same memory
    let row = m.get(0);                                         // m[0]
    let column = m.i((.., 1));                                  // m[:, 1]
    let part = t.narrow(0, 1, 2);                               // t[1:3]: from 1, two of them
    let number = m.double_value(&[1, 0]);                       // m[1, 0].item()
    let numbers = Vec::<f64>::try_from(&t)?;                    // t.tolist()
    let shape = z.size();                                       // z.shape
    let sum = (&t * 2.0 + 1.0).sum(Kind::Double);               // (t * 2 + 1).sum()
    let means = m.mean_dim(0, false, Kind::Double);             // m.mean(dim=0)
    let rest = 1.0_f64 - &t;                                    // 1 - t
    let whole = t.to_kind(Kind::Int64);                         // t.long()
    let mut u = t.copy();                                       // u = t.clone()
    u += &t;                                                    // u += t
    u.copy_(&t);                                                // u.copy_(t)
    let same = t.shallow_clone();                               // same = t: two names of one
    // ANCHOR_END: tensors
    assert_eq!((row.sum(Kind::Double).double_value(&[]), column.sum(Kind::Double).double_value(&[])), (3.0, 6.0));
    assert_eq!((part.double_value(&[0]), number, numbers, shape), (2.0, 3.0, vec![1.0, 2.0, 3.0, 4.0], vec![2, 3]));
    assert_eq!((sum.double_value(&[]), means.double_value(&[1]), whole.int64_value(&[3])), (24.0, 3.0, 4));
    assert_eq!((u.double_value(&[3]), rest.double_value(&[3]), same.data_ptr()), (4.0, -3.0, t.data_ptr()));
    Ok(())
}

#[test]
fn a_rank_is_no_number() {
    // ANCHOR: rank
    let rank = Rank::new(2);
    let is_first = rank == Rank::ZERO;
    let number: usize = rank.get();
    // ANCHOR_END: rank
    assert_eq!((is_first, number), (false, 2));
}
