//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod deadline;
mod exchange;
mod prefetch;
mod ring;
mod tasks;

#[path = "../../mutants/deadline_any_error.rs"]
mod deadline_any_error;
#[path = "../../mutants/deadline_error.rs"]
mod deadline_error;
#[path = "../../mutants/deadline_forever.rs"]
mod deadline_forever;
#[path = "../../mutants/deadline_polls.rs"]
mod deadline_polls;
#[path = "../../mutants/exchange_far_ends.rs"]
mod exchange_far_ends;
#[path = "../../mutants/exchange_one_tag.rs"]
mod exchange_one_tag;
#[path = "../../mutants/exchange_waits_early.rs"]
mod exchange_waits_early;
#[path = "../../mutants/prefetch_before_wait.rs"]
mod prefetch_before_wait;
#[path = "../../mutants/prefetch_one_buffer.rs"]
mod prefetch_one_buffer;
#[path = "../../mutants/prefetch_serial.rs"]
mod prefetch_serial;
#[path = "../../mutants/prefetch_two_buffers.rs"]
mod prefetch_two_buffers;
#[path = "../../mutants/ring_all_send.rs"]
mod ring_all_send;
#[path = "../../mutants/ring_backwards.rs"]
mod ring_backwards;
#[path = "../../mutants/ring_keeps.rs"]
mod ring_keeps;
#[path = "../../mutants/ring_one_breaks.rs"]
mod ring_one_breaks;
#[path = "../../mutants/ring_overwrites.rs"]
mod ring_overwrites;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::ring(ring::ring),
        tasks::ring(ring_all_send::ring).variant("all_send"),
        tasks::ring(ring_backwards::ring).variant("backwards"),
        tasks::ring(ring_keeps::ring).variant("keeps"),
        tasks::ring(ring_one_breaks::ring).variant("one_breaks"),
        tasks::ring(ring_overwrites::ring).variant("overwrites"),
        tasks::exchange(exchange::exchange),
        tasks::exchange(exchange_far_ends::exchange).variant("far_ends"),
        tasks::exchange(exchange_one_tag::exchange).variant("one_tag"),
        tasks::exchange(exchange_waits_early::exchange).variant("waits_early"),
        tasks::prefetch(prefetch::prefetch),
        tasks::prefetch(prefetch_before_wait::prefetch).variant("before_wait"),
        tasks::prefetch(prefetch_one_buffer::prefetch).variant("one_buffer"),
        tasks::prefetch(prefetch_serial::prefetch).variant("serial"),
        tasks::prefetch(prefetch_two_buffers::prefetch).variant("two_buffers"),
        tasks::deadline(deadline::deadline),
        tasks::deadline(deadline_any_error::deadline).variant("any_error"),
        tasks::deadline(deadline_error::deadline).variant("error"),
        tasks::deadline(deadline_forever::deadline).variant("forever"),
        tasks::deadline(deadline_polls::deadline).variant("polls"),
    ])
}
