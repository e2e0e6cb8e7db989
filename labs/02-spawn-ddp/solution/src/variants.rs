//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod average;
mod shard;
mod tasks;

#[path = "../../mutants/average_gathers.rs"]
mod average_gathers;
#[path = "../../mutants/average_local.rs"]
mod average_local;
#[path = "../../mutants/average_summed.rs"]
mod average_summed;
#[path = "../../mutants/average_twice.rs"]
mod average_twice;
#[path = "../../mutants/shard_blocks.rs"]
mod shard_blocks;
#[path = "../../mutants/shard_short.rs"]
mod shard_short;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::shard(shard::shard),
        tasks::shard(shard_blocks::shard).variant("blocks"),
        tasks::shard(shard_short::shard).variant("short"),
        tasks::average(average::average),
        tasks::average(average_gathers::average).variant("gathers"),
        tasks::average(average_local::average).variant("local"),
        tasks::average(average_summed::average).variant("summed"),
        tasks::average(average_twice::average).variant("twice"),
    ])
}
