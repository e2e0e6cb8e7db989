//! The documented semantics of CUDA and NCCL, as lab 10 relies on them.
//!
//! The tests run on the simulated device, with four devices, and with `LOCKSTEP_GPU=real` on GPUs. What needs more GPUs than there are
//! prints "not verified here".

#![allow(clippy::unwrap_used)] // a test may

mod comms;
mod procs_gpu;
mod streams;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_gpu::{GPU, Gpu, Kind, open, simulate};

/// Far longer than any test takes.
const DEADLINE: Duration = Duration::from_secs(120);
/// Set in a process that is one test's own.
const ALONE: &str = "LOCKSTEP_TEST_ALONE";

/// The first devices, or none if there are fewer.
fn gpus(count: usize) -> Option<Vec<Gpu>> {
    kind();
    let there = Gpu::count().unwrap();
    if there < count {
        println!("not verified here: {there} GPUs, and this test needs {count}");
        return None;
    }
    Some((0..count).map(|number| Gpu::open(number).unwrap()).collect())
}

/// The kind of device that the tests run on. The number of simulated devices in the caller's environment is ignored.
fn kind() -> Kind {
    let is_real = std::env::var(GPU).is_ok_and(|kind| kind == "real");
    if is_real { open().unwrap() } else { simulate(4).unwrap() }
}

/// Starts this program once more for one test, with variables that tell it what it is.
fn start_again(test: &str, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
    command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

/// Returns true in a process of the test's own, with these variables. Otherwise starts it and waits until it has succeeded.
fn is_alone(test: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let variables = [&[(ALONE, "1")], variables].concat();
    assert!(start_again(test, &variables).wait().unwrap().success());
    false
}

/// Asks until there is an answer.
fn poll<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < DEADLINE, "{what}: not within {} s", DEADLINE.as_secs());
        std::thread::yield_now();
    }
}
