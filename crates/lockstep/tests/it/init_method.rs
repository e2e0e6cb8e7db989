//! Groups at an address, without a launcher.

use std::thread;

use c10d::{ReduceOp, Store, TcpStoreOptions};
use lockstep::{Rank, WorldSize, init_process_group_at};
use tch::{Device, Kind, Tensor};

fn joins(address: &str) {
    let size = WorldSize::new(3).unwrap();
    thread::scope(|scope| {
        for rank in size.ranks() {
            scope.spawn(move || {
                let group = init_process_group_at(address, rank, size, Device::Cpu, &Default::default()).unwrap();
                let mut sum = Tensor::from(rank.get() as i64 + 1).to_kind(Kind::Int64);
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum.int64_value(&[]), 6);
            });
        }
    });
}

#[test]
fn ranks_meet_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    joins(&format!("file://{}", folder.path().join("store").display()));
}

#[test]
fn ranks_meet_at_a_port() {
    // Keeps the port: stores of one process share a server.
    let options = TcpStoreOptions { host_server: true, multi_tenant: true, ..TcpStoreOptions::default() };
    let server = Store::tcp("127.0.0.1", 0, &options).unwrap();
    joins(&format!("tcp://127.0.0.1:{}", server.port().unwrap()));
}

#[test]
fn other_addresses_are_refused() {
    let error = init_process_group_at("env://", Rank::ZERO, WorldSize::ONE, Device::Cpu, &Default::default());
    assert!(error.unwrap_err().to_string().contains("tcp://HOST:PORT or file:///PATH"));
}
