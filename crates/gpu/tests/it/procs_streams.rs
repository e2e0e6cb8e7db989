//! Streams that nothing orders, in a process of their own: what other tests wait for would ask for this work, too.

use lockstep_gpu::Kind;

use crate::{gpus, is_alone, kind};

/// On a GPU the result depends on the moment, so only the simulated device is asked, without delays of a seed.
#[test]
fn without_an_event_the_simulated_device_gives_wrong_data_each_time() {
    if kind() == Kind::Real {
        return println!("not verified here: on a GPU a race may end well");
    }
    let test = "procs_streams::without_an_event_the_simulated_device_gives_wrong_data_each_time";
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
