//! All nodes of a job: how they find each other ([`meeting`]), and what they do together ([`exchange`]): each tells its facts, tries to
//! reach the others over TCP ([`probe`]), and looks at the shared folder ([`folder`]).

mod exchange;
mod folder;
mod meeting;
mod probe;

pub(super) use exchange::{Settings, examine, examine_alone};
pub(super) use meeting::{Meeting, Part};
