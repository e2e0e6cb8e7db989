//! What orders work on streams, and what does not.

use lockstep_gpu::{Gpu, Kind, Tier, host_waits};

use crate::{gpus, kind, poll};

#[test]
fn work_on_one_stream_runs_in_order() {
    let Some(gpus) = gpus(1) else { return };
    let stream = gpus[0].stream().unwrap();
    let buffer = stream.upload(&[1.0, 2.0]).unwrap();
    for _ in 0..10 {
        stream.scale(&buffer, 2.0).unwrap();
        stream.add(&buffer, &buffer).unwrap();
    }
    assert_eq!(stream.download(&buffer).unwrap(), [1_048_576.0, 2_097_152.0]);
}

#[test]
fn an_event_orders_two_streams_without_the_host() {
    let Some(gpus) = gpus(1) else { return };
    let (one, other) = (gpus[0].stream().unwrap(), gpus[0].stream().unwrap());
    let (buffer, result) = (one.upload(&[1.0; 4096]).unwrap(), other.upload(&[0.0; 4096]).unwrap());
    let before = host_waits();
    for _ in 0..20 {
        one.scale(&buffer, 2.0).unwrap();
    }
    let scaled = one.record().unwrap();
    other.wait(&scaled).unwrap();
    other.add(&result, &buffer).unwrap();
    assert_eq!(host_waits(), before);
    assert_eq!(other.download(&result).unwrap(), [1_048_576.0; 4096]);
}

#[test]
fn a_wait_counts_the_record_before_it_and_not_later_ones() {
    let Some(gpus) = gpus(1) else { return };
    let (one, other) = (gpus[0].stream().unwrap(), gpus[0].stream().unwrap());
    let buffer = one.upload(&[1.0]).unwrap();
    let event = one.record().unwrap();
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    other.wait(&event).unwrap();
    other.scale(&buffer, 3.0).unwrap();
    assert_eq!(other.download(&buffer).unwrap(), [3.0]);
}

#[test]
fn queries_do_not_wait_and_work_ends_under_them() {
    let Some(gpus) = gpus(1) else { return };
    let stream = gpus[0].stream().unwrap();
    let buffer = gpus[0].buffer(1 << 16).unwrap();
    stream.fill(&buffer, 1.0).unwrap();
    let (begin, before) = (stream.record().unwrap(), host_waits());
    stream.scale(&buffer, 2.0).unwrap();
    let end = stream.record().unwrap();
    poll("work under queries", || end.is_done().unwrap().then_some(()));
    assert!(stream.is_done().unwrap() && host_waits() == before);
    assert!(end.since(&begin).unwrap() >= 0.0);
}

// Devices, memory, and errors that surface later.

#[test]
fn a_simulated_device_says_so_wherever_it_is_named() {
    let Some(gpus) = gpus(1) else { return };
    let simulated = kind() == Kind::Simulated;
    assert_eq!(gpus[0].name().contains("simulated"), simulated);
    assert_eq!(format!("{:?}", gpus[0]).starts_with("simulated GPU 0"), simulated);
}

#[test]
fn a_device_that_is_not_there_is_an_error_of_cuda() {
    let Some(_) = gpus(1) else { return };
    let error = Gpu::open(Gpu::count().unwrap()).err().unwrap();
    assert!(error.is_cuda("CUDA_ERROR_INVALID_DEVICE"), "{error}");
}

#[test]
fn memory_is_counted_limited_and_given_back() {
    let Some(gpus) = gpus(1) else { return };
    let (free, total) = gpus[0].memory().unwrap();
    assert!(free <= total && total > 0);
    let error = gpus[0].buffer(total / 2).err().unwrap();
    assert!(error.is_cuda("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    // The error of a refused allocation does not stay.
    let buffers: Vec<_> = (0..3).map(|_| gpus[0].buffer(1 << 20).unwrap()).collect();
    assert!(gpus[0].memory().unwrap().0 < free);
    drop(buffers);
    assert!(gpus[0].buffer(1).is_ok());
}

#[test]
fn kernels_change_the_elements_that_they_are_given() {
    let Some(gpus) = gpus(1) else { return };
    let stream = gpus[0].stream().unwrap();
    // More than one block, and not a multiple of its threads.
    let elements: Vec<f32> = (0..1000).map(|number| number as f32).collect();
    let (one, other) = (stream.upload(&elements).unwrap(), gpus[0].buffer(1000).unwrap());
    stream.fill(&other, 0.5).unwrap();
    stream.scale(&one, 2.0).unwrap();
    stream.add(&one, &other).unwrap();
    let expected: Vec<f32> = elements.iter().map(|element| 2.0 * element + 0.5).collect();
    assert_eq!(stream.download(&one).unwrap(), expected);
    assert_eq!(stream.download(&other).unwrap(), [0.5; 1000]);
}

#[test]
fn the_topology_is_the_same_in_both_directions() {
    let Some(gpus) = gpus(4) else { return };
    let peers = |one: usize, other: usize| gpus[one].peer(&gpus[other]).unwrap();
    for (one, other) in [(0, 1), (0, 2), (1, 3), (2, 3)] {
        assert_eq!(peers(one, other), peers(other, one));
    }
    if kind() == Kind::Simulated {
        let found = [(0, 1), (2, 3), (0, 2)].map(|(one, other)| (peers(one, other).access, peers(one, other).tier));
        assert_eq!(found, [(true, Some(Tier::NvLink)), (true, Some(Tier::NvLink)), (false, Some(Tier::Phb))]);
    }
}
