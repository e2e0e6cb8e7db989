//! All answers that the course keeps: its own, wrong ones that must get their diagnosis, unusual right ones that must pass.

#![allow(clippy::all)] // wrong answers are wrong in many ways

mod disk;
mod files;
mod job;
mod newest;
mod next_step;
mod order;
mod state;
mod tasks;
mod whole;

#[path = "../../mutants/newest_by_name.rs"]
mod newest_by_name;
#[path = "../../mutants/newest_by_time.rs"]
mod newest_by_time;
#[path = "../../mutants/newest_first_start.rs"]
mod newest_first_start;
#[path = "../../mutants/newest_gives_up.rs"]
mod newest_gives_up;
#[path = "../../mutants/newest_reads_all.rs"]
mod newest_reads_all;
#[path = "../../mutants/newest_unchecked.rs"]
mod newest_unchecked;
#[path = "../../mutants/newest_unwraps.rs"]
mod newest_unwraps;
#[path = "../../mutants/next_step_adds_on_load.rs"]
mod next_step_adds_on_load;
#[path = "../../mutants/next_step_every_epoch.rs"]
mod next_step_every_epoch;
#[path = "../../mutants/next_step_last_epoch.rs"]
mod next_step_last_epoch;
#[path = "../../mutants/next_step_last_step.rs"]
mod next_step_last_step;
#[path = "../../mutants/next_step_twice_next.rs"]
mod next_step_twice_next;
#[path = "../../mutants/order_history.rs"]
mod order_history;
#[path = "../../mutants/order_replays.rs"]
mod order_replays;
#[path = "../../mutants/order_same.rs"]
mod order_same;
#[path = "../../mutants/order_seedless.rs"]
mod order_seedless;
#[path = "../../mutants/state_computes_the_rate.rs"]
mod state_computes_the_rate;
#[path = "../../mutants/state_from_the_beginning.rs"]
mod state_from_the_beginning;
#[path = "../../mutants/state_rate_anew.rs"]
mod state_rate_anew;
#[path = "../../mutants/state_velocity_anew.rs"]
mod state_velocity_anew;
#[path = "../../mutants/state_weights.rs"]
mod state_weights;
#[path = "../../mutants/whole_chunks.rs"]
mod whole_chunks;
#[path = "../../mutants/whole_elsewhere.rs"]
mod whole_elsewhere;
#[path = "../../mutants/whole_name_unsynced.rs"]
mod whole_name_unsynced;
#[path = "../../mutants/whole_named.rs"]
mod whole_named;
#[path = "../../mutants/whole_removes.rs"]
mod whole_removes;
#[path = "../../mutants/whole_straight.rs"]
mod whole_straight;
#[path = "../../mutants/whole_unsynced.rs"]
mod whole_unsynced;

fn main() -> std::process::ExitCode {
    lockstep_exercise::main([
        tasks::next_step(next_step::next_step),
        tasks::next_step(next_step_adds_on_load::next_step).variant("adds_on_load"),
        tasks::next_step(next_step_every_epoch::next_step).variant("every_epoch"),
        tasks::next_step(next_step_last_epoch::next_step).variant("last_epoch"),
        tasks::next_step(next_step_last_step::next_step).variant("last_step"),
        tasks::next_step(next_step_twice_next::next_step).variant("twice_next"),
        tasks::state(state::state),
        tasks::state(state_computes_the_rate::state).variant("computes_the_rate"),
        tasks::state(state_from_the_beginning::state).variant("from_the_beginning"),
        tasks::state(state_rate_anew::state).variant("rate_anew"),
        tasks::state(state_velocity_anew::state).variant("velocity_anew"),
        tasks::state(state_weights::state).variant("weights"),
        tasks::order(order::order),
        tasks::order(order_history::order).variant("history"),
        tasks::order(order_replays::order).variant("replays"),
        tasks::order(order_same::order).variant("same"),
        tasks::order(order_seedless::order).variant("seedless"),
        tasks::whole(whole::whole),
        tasks::whole(whole_chunks::whole).variant("chunks"),
        tasks::whole(whole_elsewhere::whole).variant("elsewhere"),
        tasks::whole(whole_name_unsynced::whole).variant("name_unsynced"),
        tasks::whole(whole_named::whole).variant("named"),
        tasks::whole(whole_removes::whole).variant("removes"),
        tasks::whole(whole_straight::whole).variant("straight"),
        tasks::whole(whole_unsynced::whole).variant("unsynced"),
        tasks::newest(newest::newest),
        tasks::newest(newest_by_name::newest).variant("by_name"),
        tasks::newest(newest_by_time::newest).variant("by_time"),
        tasks::newest(newest_first_start::newest).variant("first_start"),
        tasks::newest(newest_gives_up::newest).variant("gives_up"),
        tasks::newest(newest_reads_all::newest).variant("reads_all"),
        tasks::newest(newest_unchecked::newest).variant("unchecked"),
        tasks::newest(newest_unwraps::newest).variant("unwraps"),
    ])
}
