//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod accuracy;
mod crop;
mod evaluation_shard;
mod learning_rate;
mod statistics;
mod tasks;

#[path = "../../mutants/accuracy_each_batch.rs"]
mod accuracy_each_batch;
#[path = "../../mutants/accuracy_gathers.rs"]
mod accuracy_gathers;
#[path = "../../mutants/accuracy_mean_of_ranks.rs"]
mod accuracy_mean_of_ranks;
#[path = "../../mutants/accuracy_of_batches.rs"]
mod accuracy_of_batches;
#[path = "../../mutants/accuracy_only_rank_0.rs"]
mod accuracy_only_rank_0;
#[path = "../../mutants/accuracy_own.rs"]
mod accuracy_own;
#[path = "../../mutants/crop_all_alike.rs"]
mod crop_all_alike;
#[path = "../../mutants/crop_clamped.rs"]
mod crop_clamped;
#[path = "../../mutants/crop_diagonal.rs"]
mod crop_diagonal;
#[path = "../../mutants/crop_one_short.rs"]
mod crop_one_short;
#[path = "../../mutants/crop_pads_first.rs"]
mod crop_pads_first;
#[path = "../../mutants/crop_process.rs"]
mod crop_process;
#[path = "../../mutants/crop_same_each_epoch.rs"]
mod crop_same_each_epoch;
#[path = "../../mutants/crop_seedless.rs"]
mod crop_seedless;
#[path = "../../mutants/evaluation_shard_blocks.rs"]
mod evaluation_shard_blocks;
#[path = "../../mutants/evaluation_shard_dropped.rs"]
mod evaluation_shard_dropped;
#[path = "../../mutants/evaluation_shard_everything.rs"]
mod evaluation_shard_everything;
#[path = "../../mutants/evaluation_shard_padded.rs"]
mod evaluation_shard_padded;
#[path = "../../mutants/evaluation_shard_rank_0.rs"]
mod evaluation_shard_rank_0;
#[path = "../../mutants/evaluation_shard_rest_to_last.rs"]
mod evaluation_shard_rest_to_last;
#[path = "../../mutants/learning_rate_blends.rs"]
mod learning_rate_blends;
#[path = "../../mutants/learning_rate_by_ranks.rs"]
mod learning_rate_by_ranks;
#[path = "../../mutants/learning_rate_falls.rs"]
mod learning_rate_falls;
#[path = "../../mutants/learning_rate_from_zero.rs"]
mod learning_rate_from_zero;
#[path = "../../mutants/learning_rate_no_warm_up.rs"]
mod learning_rate_no_warm_up;
#[path = "../../mutants/learning_rate_own_batch.rs"]
mod learning_rate_own_batch;
#[path = "../../mutants/learning_rate_rises_for_ever.rs"]
mod learning_rate_rises_for_ever;
#[path = "../../mutants/learning_rate_step_early.rs"]
mod learning_rate_step_early;
#[path = "../../mutants/statistics_means.rs"]
mod statistics_means;
#[path = "../../mutants/statistics_of_rank_0.rs"]
mod statistics_of_rank_0;
#[path = "../../mutants/statistics_own.rs"]
mod statistics_own;
#[path = "../../mutants/statistics_two_passes.rs"]
mod statistics_two_passes;
#[path = "../../mutants/statistics_unbiased.rs"]
mod statistics_unbiased;
#[path = "../../mutants/statistics_within.rs"]
mod statistics_within;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::crop(crop::crop),
        tasks::crop(crop_all_alike::crop).variant("all_alike"),
        tasks::crop(crop_clamped::crop).variant("clamped"),
        tasks::crop(crop_diagonal::crop).variant("diagonal"),
        tasks::crop(crop_one_short::crop).variant("one_short"),
        tasks::crop(crop_pads_first::crop).variant("pads_first"),
        tasks::crop(crop_process::crop).variant("process"),
        tasks::crop(crop_same_each_epoch::crop).variant("same_each_epoch"),
        tasks::crop(crop_seedless::crop).variant("seedless"),
        tasks::statistics(statistics::statistics),
        tasks::statistics(statistics_means::statistics).variant("means"),
        tasks::statistics(statistics_of_rank_0::statistics).variant("of_rank_0"),
        tasks::statistics(statistics_own::statistics).variant("own"),
        tasks::statistics(statistics_two_passes::statistics).variant("two_passes"),
        tasks::statistics(statistics_unbiased::statistics).variant("unbiased"),
        tasks::statistics(statistics_within::statistics).variant("within"),
        tasks::learning_rate(learning_rate::learning_rate),
        tasks::learning_rate(learning_rate_blends::learning_rate).variant("blends"),
        tasks::learning_rate(learning_rate_by_ranks::learning_rate).variant("by_ranks"),
        tasks::learning_rate(learning_rate_falls::learning_rate).variant("falls"),
        tasks::learning_rate(learning_rate_from_zero::learning_rate).variant("from_zero"),
        tasks::learning_rate(learning_rate_no_warm_up::learning_rate).variant("no_warm_up"),
        tasks::learning_rate(learning_rate_own_batch::learning_rate).variant("own_batch"),
        tasks::learning_rate(learning_rate_rises_for_ever::learning_rate).variant("rises_for_ever"),
        tasks::learning_rate(learning_rate_step_early::learning_rate).variant("step_early"),
        tasks::evaluation_shard(evaluation_shard::evaluation_shard),
        tasks::evaluation_shard(evaluation_shard_blocks::evaluation_shard).variant("blocks"),
        tasks::evaluation_shard(evaluation_shard_dropped::evaluation_shard).variant("dropped"),
        tasks::evaluation_shard(evaluation_shard_everything::evaluation_shard).variant("everything"),
        tasks::evaluation_shard(evaluation_shard_padded::evaluation_shard).variant("padded"),
        tasks::evaluation_shard(evaluation_shard_rank_0::evaluation_shard).variant("rank_0"),
        tasks::evaluation_shard(evaluation_shard_rest_to_last::evaluation_shard).variant("rest_to_last"),
        tasks::accuracy(accuracy::accuracy),
        tasks::accuracy(accuracy_each_batch::accuracy).variant("each_batch"),
        tasks::accuracy(accuracy_gathers::accuracy).variant("gathers"),
        tasks::accuracy(accuracy_mean_of_ranks::accuracy).variant("mean_of_ranks"),
        tasks::accuracy(accuracy_of_batches::accuracy).variant("of_batches"),
        tasks::accuracy(accuracy_only_rank_0::accuracy).variant("only_rank_0"),
        tasks::accuracy(accuracy_own::accuracy).variant("own"),
    ])
}
