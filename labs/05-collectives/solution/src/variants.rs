//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod leaders;
mod mean;
mod ring;
mod ring_all_reduce;
mod same_order;
mod tasks;
mod transpose;

#[path = "../../mutants/leaders_job_ranks.rs"]
mod leaders_job_ranks;
#[path = "../../mutants/leaders_keep_it.rs"]
mod leaders_keep_it;
#[path = "../../mutants/leaders_members_only.rs"]
mod leaders_members_only;
#[path = "../../mutants/leaders_one_level.rs"]
mod leaders_one_level;
#[path = "../../mutants/mean_of_means.rs"]
mod mean_of_means;
#[path = "../../mutants/mean_on_rank_0.rs"]
mod mean_on_rank_0;
#[path = "../../mutants/mean_own_count.rs"]
mod mean_own_count;
#[path = "../../mutants/mean_skips.rs"]
mod mean_skips;
#[path = "../../mutants/mean_weighted.rs"]
mod mean_weighted;
#[path = "../../mutants/ring_all_reduce_adds_twice.rs"]
mod ring_all_reduce_adds_twice;
#[path = "../../mutants/ring_all_reduce_drops_rest.rs"]
mod ring_all_reduce_drops_rest;
#[path = "../../mutants/ring_all_reduce_one_half.rs"]
mod ring_all_reduce_one_half;
#[path = "../../mutants/ring_all_reduce_own_chunk.rs"]
mod ring_all_reduce_own_chunk;
#[path = "../../mutants/ring_all_reduce_whole.rs"]
mod ring_all_reduce_whole;
#[path = "../../mutants/same_order_as_it_comes.rs"]
mod same_order_as_it_comes;
#[path = "../../mutants/same_order_by_value.rs"]
mod same_order_by_value;
#[path = "../../mutants/same_order_rank_0s.rs"]
mod same_order_rank_0s;
#[path = "../../mutants/transpose_columns.rs"]
mod transpose_columns;
#[path = "../../mutants/transpose_gathers.rs"]
mod transpose_gathers;
#[path = "../../mutants/transpose_strided.rs"]
mod transpose_strided;
#[path = "../../mutants/transpose_viewed.rs"]
mod transpose_viewed;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::mean(mean::mean),
        tasks::mean(mean_of_means::mean).variant("of_means"),
        tasks::mean(mean_on_rank_0::mean).variant("on_rank_0"),
        tasks::mean(mean_own_count::mean).variant("own_count"),
        tasks::mean(mean_skips::mean).variant("skips"),
        tasks::mean(mean_weighted::mean).variant("weighted"),
        tasks::transpose(transpose::transpose),
        tasks::transpose(transpose_columns::transpose).variant("columns"),
        tasks::transpose(transpose_gathers::transpose).variant("gathers"),
        tasks::transpose(transpose_strided::transpose).variant("strided"),
        tasks::transpose(transpose_viewed::transpose).variant("viewed"),
        tasks::same_order(same_order::same_order),
        tasks::same_order(same_order_as_it_comes::same_order).variant("as_it_comes"),
        tasks::same_order(same_order_by_value::same_order).variant("by_value"),
        tasks::same_order(same_order_rank_0s::same_order).variant("rank_0s"),
        tasks::leaders(leaders::leaders),
        tasks::leaders(leaders_job_ranks::leaders).variant("job_ranks"),
        tasks::leaders(leaders_keep_it::leaders).variant("keep_it"),
        tasks::leaders(leaders_members_only::leaders).variant("members_only"),
        tasks::leaders(leaders_one_level::leaders).variant("one_level"),
        tasks::ring_all_reduce(ring_all_reduce::ring_all_reduce),
        tasks::ring_all_reduce(ring_all_reduce_adds_twice::ring_all_reduce).variant("adds_twice"),
        tasks::ring_all_reduce(ring_all_reduce_drops_rest::ring_all_reduce).variant("drops_rest"),
        tasks::ring_all_reduce(ring_all_reduce_one_half::ring_all_reduce).variant("one_half"),
        tasks::ring_all_reduce(ring_all_reduce_own_chunk::ring_all_reduce).variant("own_chunk"),
        tasks::ring_all_reduce(ring_all_reduce_whole::ring_all_reduce).variant("whole"),
    ])
}
