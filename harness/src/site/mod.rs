//! Commands for the user's site: the nodes of a job (`doctor`), batch scripts (`render`), and a cluster on this
//! machine to try both on (`cluster`). [`rules`] prints what the first two find.

pub(crate) mod cluster;
pub(crate) mod doctor;
pub(crate) mod render;
pub(crate) mod rules;
