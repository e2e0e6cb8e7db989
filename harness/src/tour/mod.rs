//! `lockstep tour`: trains live, kills a rank in the middle, and shows that the result is the same to the bit.
//!
//! It is one scenario of [`inject`](crate::inject)'s library with more training, shown in detail: what happened ([`summary`]),
//! what was learned ([`figures`]), and what the files prove.

mod figures;
mod options;
mod shown;
mod summary;

pub(crate) use options::Options;
