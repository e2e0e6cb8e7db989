//! Task 1: a stream of tokens for many ranks.
//!
//! A text of some hundred tokens is cut into windows for one to four ranks. Some epochs begin in the middle: before the program was
//! stopped, all ranks together had trained with `done` windows of the stream, perhaps on more or fewer ranks.

/// Inputs and targets of each window that this rank trains with, in this order.
///
/// - A window has `window` inputs, which are neighbours in the stream, and as many targets: the token that follows each input. Only the last
///   window of the stream may be shorter.
/// - Every token of the stream but the first is a target exactly once, on one of the ranks, or was one in the first `done` windows.
/// - In each step the ranks together take the next windows of the stream, one each, so that the windows that are done are always the first ones.
///   In the last step some ranks may have none.
pub fn windows(stream: &[u32], window: usize, rank: usize, ranks: usize, done: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    // <answer>
    //~ // Pieces of inputs and one more target, a block of them for each rank.
    //~ let pieces: Vec<&[u32]> = stream.chunks(window + 1).collect();
    //~ let each = pieces.len() / ranks;
    //~ let mine = &pieces[rank * each..][..each];
    //~ mine.iter().map(|piece| (piece[..piece.len() - 1].to_vec(), piece[1..].to_vec())).collect()
    let targets = stream.len() - 1;
    let all = targets.div_ceil(window);
    let mine = (done + rank..all).step_by(ranks);
    mine.map(|number| {
        let begin = number * window;
        let end = targets.min(begin + window);
        (stream[begin..end].to_vec(), stream[begin + 1..end + 1].to_vec())
    })
    .collect()
    // </answer>
}
