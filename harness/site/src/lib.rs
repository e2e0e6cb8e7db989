//! Commands for the user's site: the nodes of a job (`doctor`), batch scripts (`render`), and a cluster on this
//! machine to try both on (`cluster`). [`rules`] prints what the first two find.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

pub mod cluster;
pub mod doctor;
pub mod render;
pub mod rules;

use lockstep_checkout as checkout;
use lockstep_launch::exit;
use lockstep_report as report;
