//! A Rust rank and a Python rank in one process group: collectives, subgroups, messages, and DDP with each other.
//!
//! Needs a Python with PyTorch 2.11 (`LOCKSTEP_PYTHON`, else `python3`); otherwise prints "not verified here".

use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::{DEADLINE, rank};
use c10d::{
    Backend, DebugLevel, GroupOptions, ProcessGroup, ReduceOp, Reducer, ReducerOptions, Store, TcpStoreOptions,
    WorldSize, broadcast_coalesced, verify_params,
};
use lockstep_process::KillOnDrop;
use lockstep_testkit::python::python_with;
use tch::{Device, Kind, Tensor};

fn start(python: &str, rank: usize, port: u16, debug: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/python_rank.py"));
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .env("TORCH_DISTRIBUTED_DEBUG", debug)
        .env("GLOO_SOCKET_IFNAME", "lo")
        .env("OMP_NUM_THREADS", "1")
        .stdout(Stdio::piped());
    command
}

fn finish(mut child: KillOnDrop) {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.0.stdout.take().unwrap(), &mut text).unwrap();
    assert!(child.0.wait().unwrap().success() && text.contains("done"), "the Python rank failed: {text}");
}

/// The Rust side of python_rank.py, with the same calls.
fn converse(group: ProcessGroup) {
    let group = Rc::new(group);
    let (me, other) = (group.rank().get(), rank(1 - group.rank().get()));
    let float = |values: &[f32]| Tensor::from_slice(values);

    let mut t = float(&[1.0, 2.0]) * (me as f64 + 1.0);
    group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
    assert_eq!(t, float(&[3.0, 6.0]));

    for root in [0, 1].map(rank).into_iter().filter(|r| r.get() == me) {
        // Python broadcasts from the other rank, which is this one.
        let mut t = float(&[me as f32]);
        group.broadcast(&mut t, root).unwrap();
    }

    let mut outputs = [0, 0].map(|_| Tensor::zeros([1], (Kind::Int64, Device::Cpu)));
    group.all_gather(&mut outputs, &Tensor::from_slice(&[10 + me as i64])).unwrap();
    assert_eq!(outputs.map(|o| o.int64_value(&[0])), [10, 11]);

    // Every group that a rank creates counts for the names, so both sides create two.
    assert!(group.new_group(&[other], &options()).unwrap().is_none());
    let both = group.new_group(&[rank(0), rank(1)], &options()).unwrap().unwrap();
    let mut t = float(&[5.0 + me as f32]);
    both.all_reduce(&mut t, ReduceOp::Max).unwrap();
    assert_eq!(t, float(&[6.0]));

    group.send(&float(&[1.0, 2.0, 3.0]), other, 7).unwrap();
    let mut t = float(&[0.0; 3]);
    group.recv(&mut t, other, 8).unwrap();
    assert_eq!(t, float(&[2.0, 4.0, 6.0]));

    // Python's own DistributedDataParallel crashes in debug mode; see python_rank.py.
    if group.debug_level() != DebugLevel::Detail {
        ddp_step(&group);
    }
    group.barrier().unwrap();
}

/// What Python's `DistributedDataParallel` does around one step, so that the collectives of both sides match.
fn ddp_step(group: &Rc<ProcessGroup>) {
    let me = group.rank().get() as f64;
    let weight = Tensor::full([2, 4], me, (Kind::Float, Device::Cpu)).set_requires_grad(true);
    verify_params(group, std::slice::from_ref(&weight)).unwrap();
    tch::no_grad(|| broadcast_coalesced(group, &[weight.detach()], 250 << 20, rank(0)).unwrap());
    assert_eq!(weight.detach(), Tensor::zeros_like(&weight));
    let params = [("weight".to_owned(), weight.shallow_clone())];
    let reducer = Reducer::new(Rc::clone(group), &params, &ReducerOptions::default()).unwrap();
    reducer.prepare_for_forward().unwrap();
    let output = Tensor::full([1, 4], me + 1.0, (Kind::Float, Device::Cpu)).linear::<Tensor>(&weight, None);
    reducer.prepare_for_backward(&[]).unwrap();
    reducer.backward(&output.sum(Kind::Float)).unwrap();
    assert_eq!(weight.grad(), Tensor::full([2, 4], 1.5, (Kind::Float, Device::Cpu)));
}

fn options() -> GroupOptions {
    GroupOptions { timeout: DEADLINE, ..crate::common::options() }
}

fn joins(python_rank: usize, debug: DebugLevel, backend: Backend) {
    let Some(python) = python_with(&[], "a group of Rust and Python") else { return };
    let host = TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() };
    let store = Store::tcp("127.0.0.1", 0, &host).unwrap();
    let word = if debug == DebugLevel::Detail { "DETAIL" } else { "OFF" };
    let child = KillOnDrop(start(&python, python_rank, store.port().unwrap(), word).spawn().unwrap());
    let options = GroupOptions { debug: Some(debug), ..options() };
    let world = WorldSize::new(2).unwrap();
    let group = ProcessGroup::new(backend, &store, rank(1 - python_rank), world, &options).unwrap();
    assert_eq!(group.backend(), Backend::Gloo);
    let why = format!("rank {python_rank} is another program, which talks through Gloo only");
    assert_eq!(group.why_backend(), (backend == Backend::Auto).then_some(why.as_str()));
    converse(group);
    finish(child);
}

#[test]
fn debug_mode_compares_calls_across_the_languages() {
    joins(1, DebugLevel::Detail, Backend::Gloo);
}

#[test]
fn a_rust_rank_that_may_choose_uses_gloo_with_a_python_rank() {
    joins(1, DebugLevel::Off, Backend::Auto);
    joins(0, DebugLevel::Detail, Backend::Auto);
}

#[test]
fn a_rust_rank_joins_a_store_that_python_hosts() {
    let Some(python) = python_with(&[], "a group of Rust and Python") else { return };
    let folder = tempfile::tempdir().unwrap();
    let port_file = folder.path().join("port");
    let mut command = start(&python, 0, 0, "OFF");
    let mut child = KillOnDrop(command.env("LOCKSTEP_TEST_PORT_FILE", &port_file).spawn().unwrap());
    let deadline = Instant::now() + DEADLINE;
    let port = loop {
        if let Ok(text) = std::fs::read_to_string(&port_file) {
            break text.parse().unwrap();
        }
        assert!(child.0.try_wait().unwrap().is_none(), "the Python rank ended before it hosted a store");
        assert!(Instant::now() < deadline, "the Python rank never hosted a store");
        std::thread::sleep(Duration::from_millis(20));
    };
    let store = Store::tcp("127.0.0.1", port, &TcpStoreOptions::default()).unwrap();
    converse(ProcessGroup::gloo(&store, rank(1), WorldSize::new(2).unwrap(), &options()).unwrap());
    finish(child);
}
