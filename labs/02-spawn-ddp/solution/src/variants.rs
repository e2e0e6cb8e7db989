//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod average;
mod download;
mod epochs;
mod line;
mod prepare;
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
#[path = "../../mutants/epochs_by_rank.rs"]
mod epochs_by_rank;
#[path = "../../mutants/epochs_keyed.rs"]
mod epochs_keyed;
#[path = "../../mutants/epochs_late.rs"]
mod epochs_late;
#[path = "../../mutants/epochs_runs_on.rs"]
mod epochs_runs_on;
#[path = "../../mutants/epochs_same.rs"]
mod epochs_same;
#[path = "../../mutants/line_at_the_end.rs"]
mod line_at_the_end;
#[path = "../../mutants/line_large.rs"]
mod line_large;
#[path = "../../mutants/line_serial.rs"]
mod line_serial;
#[path = "../../mutants/line_summed.rs"]
mod line_summed;
#[path = "../../mutants/line_weights.rs"]
mod line_weights;
#[path = "../../mutants/prepare_everyone.rs"]
mod prepare_everyone;
#[path = "../../mutants/prepare_nobody_waits.rs"]
mod prepare_nobody_waits;
#[path = "../../mutants/prepare_others_wait.rs"]
mod prepare_others_wait;
#[path = "../../mutants/prepare_polls.rs"]
mod prepare_polls;
#[path = "../../mutants/prepare_sends.rs"]
mod prepare_sends;
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
        tasks::epochs(epochs::epochs),
        tasks::epochs(epochs_by_rank::epochs).variant("by_rank"),
        tasks::epochs(epochs_keyed::epochs).variant("keyed"),
        tasks::epochs(epochs_late::epochs).variant("late"),
        tasks::epochs(epochs_runs_on::epochs).variant("runs_on"),
        tasks::epochs(epochs_same::epochs).variant("same"),
        tasks::line(line::line),
        tasks::line(line_at_the_end::line).variant("at_the_end"),
        tasks::line(line_large::line).variant("large"),
        tasks::line(line_serial::line).variant("serial"),
        tasks::line(line_summed::line).variant("summed"),
        tasks::line(line_weights::line).variant("weights"),
        tasks::prepare(prepare::prepare),
        tasks::prepare(prepare_everyone::prepare).variant("everyone"),
        tasks::prepare(prepare_nobody_waits::prepare).variant("nobody_waits"),
        tasks::prepare(prepare_others_wait::prepare).variant("others_wait"),
        tasks::prepare(prepare_polls::prepare).variant("polls"),
        tasks::prepare(prepare_sends::prepare).variant("sends"),
    ])
}
