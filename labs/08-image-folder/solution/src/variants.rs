//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod best;
mod freeze;
mod job;
mod plateau;
mod smoothing;
mod tasks;
mod two_files;

#[path = "../../mutants/best_asks_if_promising.rs"]
mod best_asks_if_promising;
#[path = "../../mutants/best_broadcasts.rs"]
mod best_broadcasts;
#[path = "../../mutants/best_last_of_equals.rs"]
mod best_last_of_equals;
#[path = "../../mutants/best_mean_of_ranks.rs"]
mod best_mean_of_ranks;
#[path = "../../mutants/best_own.rs"]
mod best_own;
#[path = "../../mutants/best_rank_0_decides.rs"]
mod best_rank_0_decides;
#[path = "../../mutants/freeze_by_prefix.rs"]
mod freeze_by_prefix;
#[path = "../../mutants/freeze_counts_all.rs"]
mod freeze_counts_all;
#[path = "../../mutants/freeze_counts_tensors.rs"]
mod freeze_counts_tensors;
#[path = "../../mutants/freeze_detached.rs"]
mod freeze_detached;
#[path = "../../mutants/freeze_everything.rs"]
mod freeze_everything;
#[path = "../../mutants/freeze_thaws.rs"]
mod freeze_thaws;
#[path = "../../mutants/plateau_adds_up.rs"]
mod plateau_adds_up;
#[path = "../../mutants/plateau_against_the_last.rs"]
mod plateau_against_the_last;
#[path = "../../mutants/plateau_any_better.rs"]
mod plateau_any_better;
#[path = "../../mutants/plateau_impatient.rs"]
mod plateau_impatient;
#[path = "../../mutants/plateau_no_new_count.rs"]
mod plateau_no_new_count;
#[path = "../../mutants/plateau_not_a_number.rs"]
mod plateau_not_a_number;
#[path = "../../mutants/plateau_one_count.rs"]
mod plateau_one_count;
#[path = "../../mutants/smoothing_divided_twice.rs"]
mod smoothing_divided_twice;
#[path = "../../mutants/smoothing_no_minus.rs"]
mod smoothing_no_minus;
#[path = "../../mutants/smoothing_others_only.rs"]
mod smoothing_others_only;
#[path = "../../mutants/smoothing_overflows.rs"]
mod smoothing_overflows;
#[path = "../../mutants/smoothing_sharp.rs"]
mod smoothing_sharp;
#[path = "../../mutants/smoothing_summed.rs"]
mod smoothing_summed;
#[path = "../../mutants/smoothing_two_terms.rs"]
mod smoothing_two_terms;
#[path = "../../mutants/two_files_best_of_before.rs"]
mod two_files_best_of_before;
#[path = "../../mutants/two_files_from_the_best.rs"]
mod two_files_from_the_best;
#[path = "../../mutants/two_files_given.rs"]
mod two_files_given;
#[path = "../../mutants/two_files_snapshot_first.rs"]
mod two_files_snapshot_first;
#[path = "../../mutants/two_files_two_snapshots.rs"]
mod two_files_two_snapshots;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::freeze(freeze::freeze),
        tasks::freeze(freeze_by_prefix::freeze).variant("by_prefix"),
        tasks::freeze(freeze_counts_all::freeze).variant("counts_all"),
        tasks::freeze(freeze_counts_tensors::freeze).variant("counts_tensors"),
        tasks::freeze(freeze_detached::freeze).variant("detached"),
        tasks::freeze(freeze_everything::freeze).variant("everything"),
        tasks::freeze(freeze_thaws::freeze).variant("thaws"),
        tasks::smoothing(smoothing::smoothing),
        tasks::smoothing(smoothing_divided_twice::smoothing).variant("divided_twice"),
        tasks::smoothing(smoothing_no_minus::smoothing).variant("no_minus"),
        tasks::smoothing(smoothing_others_only::smoothing).variant("others_only"),
        tasks::smoothing(smoothing_overflows::smoothing).variant("overflows"),
        tasks::smoothing(smoothing_sharp::smoothing).variant("sharp"),
        tasks::smoothing(smoothing_summed::smoothing).variant("summed"),
        tasks::smoothing(smoothing_two_terms::smoothing).variant("two_terms"),
        tasks::plateau(plateau::plateau),
        tasks::plateau(plateau_adds_up::plateau).variant("adds_up"),
        tasks::plateau(plateau_against_the_last::plateau).variant("against_the_last"),
        tasks::plateau(plateau_any_better::plateau).variant("any_better"),
        tasks::plateau(plateau_impatient::plateau).variant("impatient"),
        tasks::plateau(plateau_no_new_count::plateau).variant("no_new_count"),
        tasks::plateau(plateau_not_a_number::plateau).variant("not_a_number"),
        tasks::plateau(plateau_one_count::plateau).variant("one_count"),
        tasks::best(best::best),
        tasks::best(best_asks_if_promising::best).variant("asks_if_promising"),
        tasks::best(best_broadcasts::best).variant("broadcasts"),
        tasks::best(best_last_of_equals::best).variant("last_of_equals"),
        tasks::best(best_mean_of_ranks::best).variant("mean_of_ranks"),
        tasks::best(best_own::best).variant("own"),
        tasks::best(best_rank_0_decides::best).variant("rank_0_decides"),
        tasks::two_files(two_files::two_files),
        tasks::two_files(two_files_best_of_before::two_files).variant("best_of_before"),
        tasks::two_files(two_files_from_the_best::two_files).variant("from_the_best"),
        tasks::two_files(two_files_given::two_files).variant("given"),
        tasks::two_files(two_files_snapshot_first::two_files).variant("snapshot_first"),
        tasks::two_files(two_files_two_snapshots::two_files).variant("two_snapshots"),
    ])
}
