//! Task 7: experts on other ranks.
//!
//! One to four ranks have the tokens of a batch, and one to three of the experts each. An expert takes a limited number of tokens of all
//! ranks together: first those of rank 0 in their order, then those of rank 1, and so on. So the result does not depend on the number of
//! ranks.

use anyhow::Result;
use tch::{Kind, Tensor};

use crate::mixture::{Mixture, Routed};

/// Sends each of this rank's `tokens` `[tokens, width]` to its most probable expert, on whichever rank that is, and brings the result back. All
/// ranks have as many tokens; numbers are in double precision.
///
/// The output of a token is its expert's, multiplied by the probability of this expert; a token without a place gets zeros. Only rows of
/// tokens with a place are sent, in one exchange there and one back.
///
/// The balancing loss of this rank is `experts` · Σ fₑ · Pₑ over all experts: fₑ is the part of **all ranks'** tokens for which the expert is
/// the most probable one, with a place or without; Pₑ is the mean of its probability over **this rank's** tokens. Gradients reach the router
/// by Pₑ, and by the probabilities in the output.
pub fn experts(mixture: &Mixture<'_>, tokens: &Tensor) -> Result<Routed> {
    // <answer>
    //~ // All tokens to one expert of this rank, which has a place for each.
    //~ let output = mixture.expert(mixture.own().start, tokens)?;
    //~ let balance = mixture.probabilities(tokens).sum(Kind::Double);
    //~ Ok(Routed { output, dropped: 0, balance })
    let (experts, ranks, own) = (mixture.experts(), mixture.ranks(), mixture.own());
    let probabilities = mixture.probabilities(tokens);
    let (probability, chosen) = probabilities.max_dim(1, false);
    let mut queues = vec![Vec::new(); experts];
    for (token, expert) in Vec::<i64>::try_from(chosen)?.into_iter().enumerate() {
        queues[expert as usize].push(token as i64);
    }
    let chosen = mixture.all_numbers(&queues.iter().map(|queue| queue.len() as i64).collect::<Vec<_>>())?;
    let all_who_chose = |expert: usize, ranks: usize| chosen[..ranks].iter().map(|of| of[expert]).sum::<i64>();
    // How many of a rank's tokens find a place at an expert, after those of lower ranks.
    let placed = |rank: usize, expert: usize| {
        chosen[rank][expert].min((mixture.limit() as i64 - all_who_chose(expert, rank)).max(0))
    };
    let placed: Vec<Vec<i64>> =
        (0..ranks).map(|rank| (0..experts).map(|expert| placed(rank, expert)).collect()).collect();

    let mine = &placed[mixture.rank()];
    let sent: Vec<i64> =
        queues.iter().zip(mine).flat_map(|(queue, count)| queue[..*count as usize].iter().copied()).collect();
    let (dropped, sent) = (tokens.size()[0] as usize - sent.len(), Tensor::from_slice(&sent));
    let to: Vec<i64> = mine.chunks(own.len()).map(|of| of.iter().sum()).collect();
    let from: Vec<i64> = placed.iter().map(|of| of[own.clone()].iter().sum()).collect();
    let there = mixture.exchange(&tokens.index_select(0, &sent), &to, &from)?;
    // Of each rank, the rows of each own expert.
    let counts: Vec<i64> = placed.iter().flat_map(|of| of[own.clone()].to_vec()).collect();
    let parts = there.split_with_sizes(counts, 0);
    let through = |(number, part): (usize, &Tensor)| mixture.expert(own.start + number % own.len(), part);
    let done = parts.iter().enumerate().map(through).collect::<Result<Vec<_>>>()?;
    let back = mixture.exchange(&Tensor::cat(&done, 0), &from, &to)?;

    let weighted = back * probability.index_select(0, &sent).unsqueeze(1);
    let total = (tokens.size()[0] * ranks as i64) as f64;
    let shares: Vec<f64> = (0..experts).map(|expert| all_who_chose(expert, ranks) as f64 / total).collect();
    let mean = probabilities.mean_dim([0].as_slice(), false, Kind::Double);
    Ok(Routed {
        output: tokens.zeros_like().index_add(0, &sent, &weighted),
        dropped,
        balance: (mean * Tensor::from_slice(&shares)).sum(Kind::Double) * experts as f64,
    })
    // </answer>
}
