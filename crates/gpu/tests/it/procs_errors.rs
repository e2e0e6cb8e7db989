//! Errors that stay with a context or a process, in a process of their own: other tests share the devices of this one.

use std::thread;
use std::time::Duration;

use lockstep_gpu::{Comm, Kind, Reduction};

use crate::{gpus, is_alone, kind, poll};

/// A short deadline of the simulated device, in seconds.
const SHORT: [(&str, &str); 1] = [("LOCKSTEP_GPU_DEADLINE", "4")];
const TIMEOUT: &str = "CUDA_ERROR_LAUNCH_TIMEOUT";

#[test]
fn an_error_of_a_kernel_surfaces_later_and_stays() {
    let Some(gpus) = gpus(2) else { return };
    if !is_alone("procs_errors::an_error_of_a_kernel_surfaces_later_and_stays", &[]) {
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
    if !is_alone("procs_errors::a_wait_that_times_out_fails_the_context_so_that_no_copy_comes_later", &SHORT) {
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
    if !is_alone("procs_errors::an_operation_past_the_deadline_fails_and_an_aborted_one_ends", &SHORT) {
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
    if !is_alone("procs_errors::a_refused_join_leaves_nothing_behind", &[]) {
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
