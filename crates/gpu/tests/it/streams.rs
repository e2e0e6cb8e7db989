//! What orders work on streams, and what does not.

use lockstep_gpu::host_waits;

use crate::{gpus, poll};

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
