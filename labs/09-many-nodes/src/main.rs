//! Lab 09: many nodes. Lab 06's training, on nodes with unequal numbers of workers, whoever starts them.
//!
//! `lockstep run` by hand, under Slurm or PBS, or `mpirun` without a launcher: the final weights have the same bits, as long as the
//! number of ranks is the same. What is new is not in the training, so there is little here.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use lab_06_snapshot_resume as lab_06;
use lockstep::{LaunchEnv, Node, checkpoint, exit, init_process_group, nodes};

/// Train MNIST on nodes with any numbers of workers
#[derive(Parser)]
#[group(skip)] // its name is that of lab 06
struct Args {
    #[command(flatten)]
    training: lab_06::Args,
    /// Threads of each rank. Another number adds in another order, and a launcher's default depends on the workers of a node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    threads: i32,
}

// ANCHOR: main
fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        run(&LaunchEnv::from_env_or_alone()?, &args)
    })
}

fn run(env: &LaunchEnv, args: &Args) -> Result<()> {
    tch::set_num_threads(args.threads);
    let device = args.training.device.pick(env.local_rank, env.local_world_size)?;
    let group = init_process_group(env, device, &Default::default())?;
    if env.rank.is_zero() {
        println!("World size: {}", env.world_size);
    }
    for (number, node) in nodes(env, &group)?.iter().enumerate().filter(|_| env.rank.is_zero()) {
        match args.training.virtual_ranks {
            None => println!("node {number}: {node}; {}", share(node, env.world_size.get())),
            Some(_) => println!("node {number}: {node}"), // the shares are those of virtual ranks
        }
    }
    let weights = lab_06::train(env, group, &args.training)?;
    let digest = checkpoint::digest(&weights)?;
    if env.rank.is_zero() {
        println!("Final weights: {digest}");
    }
    Ok(())
}
// ANCHOR_END: main

// ANCHOR: share
/// The share of a node: `DistributedSampler` goes by rank and knows nothing of nodes.
fn share(node: &Node, world: usize) -> String {
    let positions: Vec<String> = node.ranks.iter().map(ToString::to_string).collect();
    format!("of every {world} samples, those at {}", positions.join(" "))
}
// ANCHOR_END: share
