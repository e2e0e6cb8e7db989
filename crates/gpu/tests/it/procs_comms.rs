//! Communicators between processes: the test starts itself once more for the second rank.

use std::process::Child;

use lockstep_gpu::{Comm, Gpu, Kind, Reduction, UniqueId};

use crate::{gpus, is_alone, kind, poll, start_again};

const ID: &str = "LOCKSTEP_TEST_UNIQUE_ID";

/// Starts this program for one test, with the unique id in its environment.
fn second_rank(test: &str, id: &UniqueId) -> Child {
    let hex: String = id.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    start_again(&format!("procs_comms::{test}"), &[(ID, &hex)])
}

/// The id, in the process of the second rank.
fn given() -> Option<UniqueId> {
    let hex = std::env::var(ID).ok()?;
    let bytes: Vec<u8> =
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    UniqueId::from_bytes(&bytes)
}

fn summed(gpu: &Gpu, id: &UniqueId, rank: usize) -> (Comm, Vec<f32>) {
    let comm = Comm::join(gpu, id, rank, 2).unwrap();
    let stream = gpu.stream().unwrap();
    let buffer = stream.upload(&[1.0 + rank as f32; 1000]).unwrap();
    comm.all_reduce(&buffer, Reduction::Sum, &stream).unwrap();
    let found = stream.download(&buffer).unwrap();
    (comm, found)
}

#[test]
fn ranks_of_two_processes_meet_by_the_unique_id() {
    let Some(gpus) = gpus(2) else { return };
    if let Some(id) = given() {
        assert_eq!(summed(&gpus[1], &id, 1).1, [3.0; 1000]);
        return;
    }
    let id = UniqueId::new().unwrap();
    let mut other = second_rank("ranks_of_two_processes_meet_by_the_unique_id", &id);
    assert_eq!(summed(&gpus[0], &id, 0).1, [3.0; 1000]);
    assert!(other.wait().unwrap().success());
}

#[test]
fn the_end_of_a_rank_is_an_error_that_a_check_finds() {
    let Some(gpus) = gpus(2) else { return };
    if let Some(id) = given() {
        let _comm = summed(&gpus[1], &id, 1).0;
        // Not a return: nothing is dropped, as in a crash.
        std::process::exit(0);
    }
    if kind() == Kind::Real {
        return println!("not verified here: between GPUs of one machine NCCL may not notice");
    }
    let id = UniqueId::new().unwrap();
    let mut other = second_rank("the_end_of_a_rank_is_an_error_that_a_check_finds", &id);
    let (comm, _) = summed(&gpus[0], &id, 0);
    other.wait().unwrap();
    let error = poll("the end of the other rank", || comm.check().err()).to_string();
    assert!(error.contains("remote process exited"), "{error}");
}

#[test]
fn ranks_of_two_machines_meet_on_a_network_and_may_have_devices_of_one_number() {
    const NAME: &str = "procs_comms::ranks_of_two_machines_meet_on_a_network_and_may_have_devices_of_one_number";
    if kind() == Kind::Real {
        return println!("not verified here: two machines");
    }
    if let Some(id) = given() {
        // Between two of one machine this would be refused.
        let gpu = Gpu::open(0).unwrap();
        assert_eq!(summed(&gpu, &id, 1).1, [3.0; 1000]);
        return;
    }
    // A machine is a name here, and its network the loopback device.
    if !is_alone(NAME, &[("NCCL_HOSTID", "first"), ("NCCL_SOCKET_IFNAME", "lo")]) {
        return;
    }
    let id = UniqueId::new().unwrap();
    let hex: String = id.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut other = start_again(NAME, &[(ID, &hex), ("NCCL_HOSTID", "second")]);
    let gpu = Gpu::open(0).unwrap();
    assert_eq!(summed(&gpu, &id, 0).1, [3.0; 1000]);
    assert!(other.wait().unwrap().success());
}
