//! The history of every rank over time: a pure function from event files to rows of spans and marks.

mod draw;
mod model;
mod rows;
#[cfg(test)]
mod tests;

pub(crate) use model::{Judged, Mark, MarkKind, Node, Redone, Row, Span, State, Timeline};
