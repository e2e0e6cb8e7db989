//! The ways between the GPUs of a machine. You do not change this file.

use serde::Deserialize;

/// The way between two GPUs, as `nvidia-smi topo -m` names it. The later in this list, the slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Way {
    Nv,
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

/// `ways[a][b]` is the way from GPU a to GPU b. `ways[a][a]` means nothing.
#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    pub ways: Vec<Vec<Way>>,
}
