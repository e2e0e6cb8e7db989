//! `lockstep new`: a package of the user's own, outside the course's workspace, as a copy of `template/`.
//!
//! It shares the checkout's target folder, lock file, flags and profile, so that only the course's own crates are compiled for it.

mod manifest;
mod options;

pub(crate) use options::Options;
