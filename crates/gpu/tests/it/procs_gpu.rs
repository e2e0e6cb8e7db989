//! Communicators between processes: the test starts itself once more for the second rank.

use std::process::Child;
use std::thread;
use std::time::Duration;

use lockstep_gpu::{Comm, Gpu, Kind, Reduction, UniqueId};

use crate::{gpus, is_alone, kind, poll, start_again};

const ID: &str = "LOCKSTEP_TEST_UNIQUE_ID";

/// Starts this program for one test, with the unique id in its environment.
fn second_rank(test: &str, id: &UniqueId) -> Child {
    let hex: String = id.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    start_again(&format!("procs_gpu::{test}"), &[(ID, &hex)])
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
    const NAME: &str = "procs_gpu::ranks_of_two_machines_meet_on_a_network_and_may_have_devices_of_one_number";
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

// Errors that stay with a context or a process, in a process of their own: other tests share the devices of this one.

/// A short deadline of the simulated device, in seconds.
const SHORT: [(&str, &str); 1] = [("LOCKSTEP_GPU_DEADLINE", "4")];
const TIMEOUT: &str = "CUDA_ERROR_LAUNCH_TIMEOUT";

#[test]
fn an_error_of_a_kernel_surfaces_later_and_stays() {
    let Some(gpus) = gpus(2) else { return };
    if !is_alone("procs_gpu::an_error_of_a_kernel_surfaces_later_and_stays", &[]) {
        return;
    }
    let (one, other) = (&gpus[0], &gpus[1]);
    let stream = one.stream().unwrap();
    let (own, far) = (stream.upload(&[1.0]).unwrap(), other.buffer(1).unwrap());
    // Memory of another device, to which nothing has given access: the launch itself succeeds.
    stream.add(&own, &far).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(error.is_cuda("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    let again = one.buffer(1).err().unwrap();
    assert!(again.is_cuda("CUDA_ERROR_ILLEGAL_ADDRESS"), "{again}");
    // Another device has a context of its own.
    assert!(other.buffer(1).is_ok());
}

#[test]
fn a_wait_that_times_out_fails_the_context_so_that_no_copy_comes_later() {
    let Some(gpus) = gpus(2) else { return };
    if kind() == Kind::Real {
        return println!("not verified here: a wait for a GPU has no deadline");
    }
    if !is_alone("procs_gpu::a_wait_that_times_out_fails_the_context_so_that_no_copy_comes_later", &SHORT) {
        return;
    }
    let comms = Comm::all(&gpus).unwrap();
    let streams = [gpus[0].stream().unwrap(), gpus[1].stream().unwrap()];
    let buffers = [streams[0].upload(&[1.0]).unwrap(), streams[1].upload(&[2.0]).unwrap()];
    let reduce = |rank: usize| comms[rank].all_reduce(&buffers[rank], Reduction::Sum, &streams[rank]).unwrap();
    // The other rank takes part in the first alone, and late: the wait for both is over before the second is.
    reduce(0);
    reduce(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(2500));
            reduce(1);
            // Its result does not count on a machine that is very late.
            let _ = streams[1].synchronize();
        });
        let error = streams[0].download(&buffers[0]).unwrap_err();
        assert!(error.is_cuda(TIMEOUT), "{error}");
    });
    // Ends the second without an error. The copy behind it must not run: its memory is gone.
    comms.iter().for_each(|comm| comm.abort().unwrap());
    let error = gpus[0].buffer(1).unwrap_err();
    assert!(error.is_cuda(TIMEOUT), "{error}");
}

#[test]
fn an_operation_past_the_deadline_fails_and_an_aborted_one_ends() {
    let Some(gpus) = gpus(2) else { return };
    if kind() == Kind::Real {
        return println!("not verified here: an operation of NCCL has no deadline");
    }
    if !is_alone("procs_gpu::an_operation_past_the_deadline_fails_and_an_aborted_one_ends", &SHORT) {
        return;
    }
    let stuck = |gpus: &[_]| {
        let comm = Comm::all(gpus).unwrap().swap_remove(0);
        let stream = comm.gpu().stream().unwrap();
        let buffer = stream.upload(&[1.0]).unwrap();
        comm.all_reduce(&buffer, Reduction::Sum, &stream).unwrap();
        (comm, stream, buffer)
    };
    let (comm, stream, _buffer) = stuck(&gpus);
    assert!(!stream.is_done().unwrap());
    comm.abort().unwrap();
    poll("the end of an aborted operation", || stream.is_done().unwrap().then_some(()));
    let (comm, stream, _buffer) = stuck(&gpus);
    let error = poll("the deadline", || match stream.is_done() {
        Ok(is_done) => {
            assert!(!is_done, "an operation without an answer is done");
            None
        }
        Err(error) => Some(error),
    });
    assert!(error.is_cuda(TIMEOUT), "{error}");
    assert!(comm.check().is_err());
}

#[test]
fn a_refused_join_leaves_nothing_behind() {
    let Some(gpus) = gpus(1) else { return };
    if kind() == Kind::Real {
        return println!("not verified here: which threads NCCL keeps is its own affair");
    }
    if !is_alone("procs_gpu::a_refused_join_leaves_nothing_behind", &[]) {
        return;
    }
    let left = || {
        let name =
            |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
        let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| name(task).ok());
        names.filter(|name| ["nccl answers", "nccl rank"].contains(&name.trim())).count()
    };
    assert!(Comm::all(&[gpus[0].clone(), gpus[0].clone()]).is_err());
    poll("the end of the threads of a refused communicator", || (left() == 0).then_some(()));
}

// Streams that nothing orders, in a process of their own: what other tests wait for would ask for this work, too.

/// On a GPU the result depends on the moment, so only the simulated device is asked, without delays of a seed.
#[test]
fn without_an_event_the_simulated_device_gives_wrong_data_each_time() {
    if kind() == Kind::Real {
        return println!("not verified here: on a GPU a race may end well");
    }
    let test = "procs_gpu::without_an_event_the_simulated_device_gives_wrong_data_each_time";
    if !is_alone(test, &[("LOCKSTEP_GPU_SEED", "")]) {
        return;
    }
    let Some(gpus) = gpus(1) else { return };
    for _ in 0..20 {
        let (one, other) = (gpus[0].stream().unwrap(), gpus[0].stream().unwrap());
        let (buffer, result) = (one.upload(&[1.0]).unwrap(), other.upload(&[0.0]).unwrap());
        one.scale(&buffer, 7.0).unwrap();
        other.add(&result, &buffer).unwrap();
        assert_eq!(other.download(&result).unwrap(), [1.0], "stale, since nothing has asked for the kernel yet");
        assert_eq!(one.download(&buffer).unwrap(), [7.0]);
    }
}
