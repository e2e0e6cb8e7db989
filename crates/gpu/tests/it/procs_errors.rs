//! Errors that stay with a context, in a process of their own: other tests share the devices of this one.

use crate::{gpus, start_again};

const ALONE: &str = "LOCKSTEP_TEST_ALONE";

#[test]
fn an_error_of_a_kernel_surfaces_later_and_stays() {
    let Some(gpus) = gpus(2) else { return };
    if std::env::var_os(ALONE).is_none() {
        let test = "procs_errors::an_error_of_a_kernel_surfaces_later_and_stays";
        assert!(start_again(test, ALONE, "1").wait().unwrap().success());
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
