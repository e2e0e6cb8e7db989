//! What doctor knows of a job and its nodes: plain data, which [`gather`](super::gather) collects, [`job`](super::job) exchanges, and
//! [`check`](super::check) judges. Facts that cannot be read are left out.

mod job;
mod node;

pub(super) use job::{Job, Knock, Link, Lock, Missing, Outcome, Silent, User, View};
pub(super) use node::{
    Adapter, AdapterPort, Card, Cpu, Fabric, Folder, GpuPath, Gpus, Interface, Libtorch, Limits, Memory, Names, Node,
    Ports, Program, Resolved, Space,
};
