//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod cuda;
mod device;
mod environment;
mod fleet;
mod nested;
mod tasks;
mod variables;
mod visible;

#[path = "../../mutants/device_global.rs"]
mod device_global;
#[path = "../../mutants/device_local.rs"]
mod device_local;
#[path = "../../mutants/device_modulo.rs"]
mod device_modulo;
#[path = "../../mutants/device_node_saves.rs"]
mod device_node_saves;
#[path = "../../mutants/environment_all_at_once.rs"]
mod environment_all_at_once;
#[path = "../../mutants/environment_anonymous.rs"]
mod environment_anonymous;
#[path = "../../mutants/environment_guesses.rs"]
mod environment_guesses;
#[path = "../../mutants/environment_mixes.rs"]
mod environment_mixes;
#[path = "../../mutants/environment_unwraps.rs"]
mod environment_unwraps;
#[path = "../../mutants/nested_address.rs"]
mod nested_address;
#[path = "../../mutants/nested_leaves.rs"]
mod nested_leaves;
#[path = "../../mutants/nested_quiet.rs"]
mod nested_quiet;
#[path = "../../mutants/nested_rank_0.rs"]
mod nested_rank_0;
#[path = "../../mutants/nested_unaware.rs"]
mod nested_unaware;
#[path = "../../mutants/visible_collects.rs"]
mod visible_collects;
#[path = "../../mutants/visible_late.rs"]
mod visible_late;
#[path = "../../mutants/visible_ordinal.rs"]
mod visible_ordinal;
#[path = "../../mutants/visible_overwrites.rs"]
mod visible_overwrites;
#[path = "../../mutants/visible_shows_all.rs"]
mod visible_shows_all;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::environment(environment::environment),
        tasks::environment(environment_all_at_once::environment).variant("all_at_once"),
        tasks::environment(environment_anonymous::environment).variant("anonymous"),
        tasks::environment(environment_guesses::environment).variant("guesses"),
        tasks::environment(environment_mixes::environment).variant("mixes"),
        tasks::environment(environment_unwraps::environment).variant("unwraps"),
        tasks::device(device::device),
        tasks::device(device_global::device).variant("global"),
        tasks::device(device_local::device).variant("local"),
        tasks::device(device_modulo::device).variant("modulo"),
        tasks::device(device_node_saves::device).variant("node_saves"),
        tasks::nested(nested::nested),
        tasks::nested(nested_address::nested).variant("address"),
        tasks::nested(nested_leaves::nested).variant("leaves"),
        tasks::nested(nested_quiet::nested).variant("quiet"),
        tasks::nested(nested_rank_0::nested).variant("rank_0"),
        tasks::nested(nested_unaware::nested).variant("unaware"),
        tasks::visible(visible::visible),
        tasks::visible(visible_collects::visible).variant("collects"),
        tasks::visible(visible_late::visible).variant("late"),
        tasks::visible(visible_ordinal::visible).variant("ordinal"),
        tasks::visible(visible_overwrites::visible).variant("overwrites"),
        tasks::visible(visible_shows_all::visible).variant("shows_all"),
    ])
}
