//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod batches;
mod checkpoints;
mod learns;
mod mean_loss;
mod tasks;

#[path = "../../mutants/batches_chunks.rs"]
mod batches_chunks;
#[path = "../../mutants/batches_dropped.rs"]
mod batches_dropped;
#[path = "../../mutants/batches_empty.rs"]
mod batches_empty;
#[path = "../../mutants/batches_overrun.rs"]
mod batches_overrun;
#[path = "../../mutants/checkpoints_early.rs"]
mod checkpoints_early;
#[path = "../../mutants/checkpoints_not_last.rs"]
mod checkpoints_not_last;
#[path = "../../mutants/checkpoints_twice.rs"]
mod checkpoints_twice;
#[path = "../../mutants/learns_constant.rs"]
mod learns_constant;
#[path = "../../mutants/learns_huber.rs"]
mod learns_huber;
#[path = "../../mutants/learns_no_grad.rs"]
mod learns_no_grad;
#[path = "../../mutants/learns_no_step.rs"]
mod learns_no_step;
#[path = "../../mutants/learns_pairs.rs"]
mod learns_pairs;
#[path = "../../mutants/learns_piles_up.rs"]
mod learns_piles_up;
#[path = "../../mutants/mean_loss_accuracy.rs"]
mod mean_loss_accuracy;
#[path = "../../mutants/mean_loss_added.rs"]
mod mean_loss_added;
#[path = "../../mutants/mean_loss_joined.rs"]
mod mean_loss_joined;
#[path = "../../mutants/mean_loss_means.rs"]
mod mean_loss_means;
#[path = "../../mutants/mean_loss_twice.rs"]
mod mean_loss_twice;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::batches(batches::batches),
        tasks::batches(batches_chunks::batches).variant("chunks"),
        tasks::batches(batches_dropped::batches).variant("dropped"),
        tasks::batches(batches_empty::batches).variant("empty"),
        tasks::batches(batches_overrun::batches).variant("overrun"),
        tasks::mean_loss(mean_loss::mean_loss),
        tasks::mean_loss(mean_loss_accuracy::mean_loss).variant("accuracy"),
        tasks::mean_loss(mean_loss_added::mean_loss).variant("added"),
        tasks::mean_loss(mean_loss_joined::mean_loss).variant("joined"),
        tasks::mean_loss(mean_loss_means::mean_loss).variant("means"),
        tasks::mean_loss(mean_loss_twice::mean_loss).variant("twice"),
        tasks::checkpoints(checkpoints::checkpoints),
        tasks::checkpoints(checkpoints_early::checkpoints).variant("early"),
        tasks::checkpoints(checkpoints_not_last::checkpoints).variant("not_last"),
        tasks::checkpoints(checkpoints_twice::checkpoints).variant("twice"),
        tasks::learns(learns::learns),
        tasks::learns(learns_constant::learns).variant("constant"),
        tasks::learns(learns_huber::learns).variant("huber"),
        tasks::learns(learns_no_grad::learns).variant("no_grad"),
        tasks::learns(learns_no_step::learns).variant("no_step"),
        tasks::learns(learns_pairs::learns).variant("pairs"),
        tasks::learns(learns_piles_up::learns).variant("piles_up"),
    ])
}
