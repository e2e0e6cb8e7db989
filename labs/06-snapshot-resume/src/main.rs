//! Lab 06's program: joins the group and trains. It runs alone, or under `lockstep run` or torchrun, which restart it after a failure.

use std::process::ExitCode;

use clap::Parser;
use lab_06_snapshot_resume::{Args, train};
use lockstep::{LaunchEnv, exit, init_process_group};

// ANCHOR: main
fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        let env = LaunchEnv::from_env_or_alone()?;
        let device = args.device.pick(env.local_rank, env.local_world_size)?;
        let group = init_process_group(&env, device, &Default::default())?;
        train(&env, group, &args).map(drop)
    })
}
// ANCHOR_END: main
