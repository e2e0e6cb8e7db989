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
    // All tokens to one expert of this rank, which has a place for each.
    let output = mixture.expert(mixture.own().start, tokens)?;
    let balance = mixture.probabilities(tokens).sum(Kind::Double);
    Ok(Routed { output, dropped: 0, balance })
}
