//! Ways to divide one model's training over ranks other than by whole copies, each small enough to read.
//!
//! Data parallelism by whole copies is [`crate::Ddp`]; its optimizer states divided over ranks, `optim`'s `ZeroRedundancyOptimizer`.
