//! Loads CUDA after libtorch has decided that there is none. Alone in its file because a process can make this mistake
//! only once.

use c10d::{ErrorKind, cuda};
use tch::Cuda;

#[test]
fn loading_cuda_too_late_is_an_error_that_says_so() {
    assert!(!Cuda::is_available(), "nothing has loaded CUDA");
    let error = cuda::load().expect_err("libtorch never looks again");
    assert_eq!(error.kind(), ErrorKind::Internal);
    let text = error.to_string();
    if text.contains("scripts/setup.sh") {
        println!("not verified here: this libtorch has no complete CUDA half ({text})");
        assert!(text.contains("libtorch_cuda.so"), "{text}");
    } else {
        assert!(text.contains("call c10d::cuda::load before tch::Cuda"), "{text}");
    }
    assert!(!Cuda::is_available());
}
