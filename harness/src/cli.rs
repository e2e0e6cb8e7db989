//! The top-level command line: the list of subcommands. Each module defines its own options.

use clap::{Parser, Subcommand};

use crate::exit::Code;
use crate::{bench, cluster, course, data, doctor, inject, learn, new, render, stacks, tour, verify};

/// Distributed deep-learning training on libtorch, step by step, and proofs that the steps are right
#[derive(Parser)]
#[command(name = "lockstep", version, arg_required_else_help = true, after_help = crate::exit::HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<lockstep_launch::command::Options>),
    Stacks(stacks::Options),
    Tour(tour::Options),
    Inject(inject::Options),
    Verify(verify::Options),
    Render(render::Options),
    Doctor(doctor::Options),
    Bench(bench::Options),
    Grade(learn::Grade),
    Hint(learn::Hint),
    Progress(learn::Show),
    Reset(learn::Reset),
    Solution(learn::Solution),
    Watch(learn::Watch),
    New(new::Options),
    Data(data::Options),
    Cluster(cluster::Options),
    Course(course::Options),
    #[command(name = bench::RANK, hide = true)]
    BenchRank(bench::Rank),
    #[command(name = bench::STORE, hide = true)]
    BenchStore(bench::Serve),
    #[command(name = cluster::INIT, hide = true)]
    ClusterInit(cluster::Init),
}

impl Cli {
    /// Runs the subcommand.
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Run(options) => options.exec(),
            Command::Stacks(options) => options.exec(),
            Command::Tour(options) => options.exec(),
            Command::Inject(options) => options.exec(),
            Command::Verify(options) => options.exec(),
            Command::Render(options) => options.exec(),
            Command::Doctor(options) => options.exec(),
            Command::Bench(options) => options.exec(),
            Command::BenchRank(rank) => rank.exec(),
            Command::BenchStore(serve) => serve.exec(),
            Command::Grade(options) => options.exec(),
            Command::Hint(options) => options.exec(),
            Command::Progress(options) => options.exec(),
            Command::Reset(options) => options.exec(),
            Command::Solution(options) => options.exec(),
            Command::Watch(options) => options.exec(),
            Command::New(options) => options.exec(),
            Command::Data(options) => options.exec(),
            Command::Cluster(options) => options.exec(),
            Command::ClusterInit(init) => init.exec(),
            Command::Course(options) => options.exec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
