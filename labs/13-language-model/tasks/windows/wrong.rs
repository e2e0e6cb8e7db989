//! Answers to `windows`: wrong ones, and unusual right ones.

use lockstep_answers::edit;

type Windows = Vec<(Vec<u32>, Vec<u32>)>;

/// The window that begins at this token.
fn at(stream: &[u32], begin: usize, window: usize) -> (Vec<u32>, Vec<u32>) {
    let end = (stream.len() - 1).min(begin + window);
    (stream[begin..end].to_vec(), stream[begin + 1..end + 1].to_vec())
}

fn count(stream: &[u32], window: usize) -> usize {
    (stream.len() - 1).div_ceil(window)
}

/// The given program: pieces of one token more, in blocks.
pub fn given(stream: &[u32], window: usize, rank: usize, ranks: usize, _: usize) -> Windows {
    let pieces: Vec<&[u32]> = stream.chunks(window + 1).collect();
    let each = pieces.len() / ranks;
    pieces[rank * each..][..each].iter().map(|piece| (piece[..piece.len() - 1].to_vec(), piece[1..].to_vec())).collect()
}

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
pub fn no_last(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let all = (stream.len() - 1) / window;
    (done + rank..all).step_by(ranks).map(|number| at(stream, number * window, window)).collect()
}

/// Each window begins one token after the one before.
pub fn sliding(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let pairs = stream.windows(window + 1).skip(done + rank).step_by(ranks);
    pairs.map(|pair| (pair[..window].to_vec(), pair[1..].to_vec())).collect()
}

/// Each window begins with the last input of the one before.
pub fn overlap(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let begins = (0..stream.len() - 1).step_by(window - 1).skip(done + rank).step_by(ranks);
    begins.map(|begin| at(stream, begin, window)).collect()
}

/// Each rank takes a block of neighbouring windows.
pub fn blocks(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let left = count(stream, window) - done;
    let begin = |rank: usize| done + left * rank / ranks;
    (begin(rank)..begin(rank + 1)).map(|number| at(stream, number * window, window)).collect()
}

/// Begins the epoch again.
pub fn from_the_start(stream: &[u32], window: usize, rank: usize, ranks: usize, _: usize) -> Windows {
    (rank..count(stream, window)).step_by(ranks).map(|number| at(stream, number * window, window)).collect()
}

/// Takes `done` for windows of each rank.
pub fn done_of_a_rank(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let mine = (done * ranks + rank..count(stream, window)).step_by(ranks);
    mine.map(|number| at(stream, number * window, window)).collect()
}

/// Takes `done` for tokens.
pub fn done_tokens(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let rest = &stream[done..];
    (rank..count(rest, window)).step_by(ranks).map(|number| at(rest, number * window, window)).collect()
}

/// Gives all ranks as many windows, the first ones again if there are too few.
pub fn padded(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let all = count(stream, window);
    let steps = (all - done).div_ceil(ranks);
    (0..steps).map(|step| at(stream, (done + step * ranks + rank) % all * window, window)).collect()
}

/// Gives all ranks as many windows, and leaves out the others.
pub fn equal(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let steps = (count(stream, window) - done) / ranks;
    (0..steps).map(|step| at(stream, (done + step * ranks + rank) * window, window)).collect()
}

/// The last input of the stream has no target.
pub fn last_input(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let inputs = stream.chunks(window).enumerate().skip(done + rank).step_by(ranks);
    let target = |number: usize| stream[number * window + 1..].iter().copied().take(window).collect();
    inputs.map(|(number, inputs)| (inputs.to_vec(), target(number))).collect()
}

/// Every rank takes all windows.
pub fn all_ranks(stream: &[u32], window: usize, _: usize, _: usize, done: usize) -> Windows {
    (done..count(stream, window)).map(|number| at(stream, number * window, window)).collect()
}

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
pub fn by_remainder(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let mine = (done..count(stream, window)).filter(|number| number % ranks == rank);
    mine.map(|number| at(stream, number * window, window)).collect()
}

/// Right: cuts inputs and targets separately, the last rank first.
pub fn two_streams(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Windows {
    let inputs = stream[..stream.len() - 1].chunks(window);
    let pairs = inputs.zip(stream[1..].chunks(window)).skip(done + ranks - 1 - rank).step_by(ranks);
    pairs.map(|(inputs, targets)| (inputs.to_vec(), targets.to_vec())).collect()
}
