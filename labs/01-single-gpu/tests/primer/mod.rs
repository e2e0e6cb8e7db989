//! The code of the book's page "Rust for people who know Python". Each example is compiled and run.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, ensure};
use c10d::Rank;
use tch::{Device, IndexOp, Kind, Tensor};

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
