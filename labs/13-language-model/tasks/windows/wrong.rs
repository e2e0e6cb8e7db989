//! Answers to `windows`: wrong ones, and unusual right ones.

use lockstep_answers::{edit, given};

type Windows = Vec<(Vec<u32>, Vec<u32>)>;

fn count(stream: &[u32], window: usize) -> usize {
    (stream.len() - 1).div_ceil(window)
}

/// The given program: pieces of one token more, in blocks.
#[given]
pub fn given() {}

/// Cuts the stream into pieces of inputs and one more target.
pub fn pieces(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let pieces = stream.chunks(window + 1).filter(|piece| piece.len() > 1);
    let mine = pieces.skip(done + rank).step_by(ranks);
    mine.map(|piece| (piece[..piece.len() - 1].to_vec(), piece[1..].to_vec())).collect()
}

/// Predicts the token itself.
pub fn not_shifted(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    stream.chunks(window).skip(done + rank).step_by(ranks).map(|piece| (piece.to_vec(), piece.to_vec())).collect()
}

/// Leaves out the last window if it is shorter.
#[edit(targets.div_ceil(window) => targets / window)]
pub fn no_last() {}

/// Each window begins one token after the one before.
pub fn sliding(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let pairs = stream.windows(window + 1).skip(done + rank).step_by(ranks);
    pairs.map(|pair| (pair[..window].to_vec(), pair[1..].to_vec())).collect()
}

/// Each window begins with the last input of the one before.
#[edit(targets.div_ceil(window) => targets.div_ceil(window - 1))]
#[edit(number * window => number * (window - 1))]
pub fn overlap() {}

/// Each rank takes a block of neighbouring windows.
#[edit((done + rank..all).step_by(ranks) => (done + (all - done) * rank / ranks..done + (all - done) * (rank + 1) / ranks))]
pub fn blocks() {}

/// Begins the epoch again.
#[edit(done + rank..all => rank..all)]
pub fn from_the_start() {}

/// Takes `done` for windows of each rank.
#[edit(done + rank..all => done * ranks + rank..all)]
pub fn done_of_a_rank() {}

/// Takes `done` for tokens.
#[edit(let targets => let (stream, done) = (&stream[done..], 0); let targets)]
pub fn done_tokens() {}

/// Gives all ranks as many windows, the first ones again if there are too few.
#[edit((done + rank..all).step_by(ranks) => (0..(all - done).div_ceil(ranks)).map(|step| (done + step * ranks + rank) % all))]
pub fn padded() {}

/// Gives all ranks as many windows, and leaves out the others.
#[edit((done + rank..all).step_by(ranks) => (0..(all - done) / ranks).map(|step| done + step * ranks + rank))]
pub fn equal() {}

/// The last input of the stream has no target.
pub fn last_input(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let inputs = stream.chunks(window).enumerate().skip(done + rank).step_by(ranks);
    let target = |number: usize| stream[number * window + 1..].iter().copied().take(window).collect();
    inputs.map(|(number, inputs)| (inputs.to_vec(), target(number))).collect()
}

/// Every rank takes all windows.
#[edit((done + rank..all).step_by(ranks) => (done..all))]
pub fn all_ranks() {}

/// Loses a last window of one token.
#[edit(targets.div_ceil(window) => (targets - 1).div_ceil(window))]
pub fn one_token() {}

/// Swaps inputs and targets.
#[edit((stream[begin..end].to_vec(), stream[begin + 1..end + 1].to_vec()) => (stream[begin + 1..end + 1].to_vec(), stream[begin..end].to_vec()))]
pub fn swapped() {}

/// The target of the last input is the first one.
pub fn rolled(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let mut all = crate::windows::windows(stream, window, rank, ranks, done);
    for (inputs, targets) in &mut all {
        targets.clone_from(inputs);
        targets.rotate_left(1);
    }
    all
}

/// Has no target for a window's last input.
#[edit(stream[begin + 1..end + 1] => stream[begin + 1..end])]
pub fn no_last_target() {}

/// Fills the last window up.
pub fn filled_up(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let mut all = crate::windows::windows(stream, window, rank, ranks, done);
    all.iter_mut().for_each(|(inputs, targets)| {
        inputs.resize(window, 0);
        targets.resize(window, 0);
    });
    all
}

/// Adds a window without tokens where another rank has one more.
pub fn empty_window(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let mut all = crate::windows::windows(stream, window, rank, ranks, done);
    all.resize((count(stream, window) - done).div_ceil(ranks), (Vec::new(), Vec::new()));
    all
}

/// Right: each rank takes the windows whose number has its remainder.
#[edit((done + rank..all).step_by(ranks) => (done..all).filter(|number| number % ranks == rank))]
pub fn by_remainder() {}

/// Right: cuts inputs and targets separately, the last rank first.
pub fn two_streams(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let inputs = stream[..stream.len() - 1].chunks(window);
    let pairs = inputs.zip(stream[1..].chunks(window)).skip(done + ranks - 1 - rank).step_by(ranks);
    pairs.map(|(inputs, targets)| (inputs.to_vec(), targets.to_vec())).collect()
}
