//! A report as one self-contained HTML page: no script, no font, no other file. `maud` escapes all texts.

mod page;
mod picture;

pub(crate) use super::formatting::plain;
pub(super) use page::render;
pub(crate) use page::{command, fact, machine, numbers, page};
pub(crate) use picture::round_up;
