//! The top-level command line: the list of subcommands. Each module defines its own options.

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lockstep_author::{self as author, course, new};
use lockstep_launch::command::Shell;
use lockstep_launch::exit::Code;
use lockstep_prove::{inject, same, tour, verify};
use lockstep_report::{Screen, listing};
use lockstep_site::{cluster, doctor, render};
use {
    lockstep_bench as bench, lockstep_learn as learn, lockstep_replay as replay,
    lockstep_report_command as report_command,
};

use crate::{reference, stacks};

/// Distributed deep-learning training on libtorch, step by step, and proofs that the steps are right
#[derive(Parser)]
#[command(name = "lockstep", version, arg_required_else_help = true, after_help = crate::exit_codes::HELP)]
pub(crate) struct Cli {
    /// Print a script that completes `lockstep` in this shell, and exit
    #[arg(long, value_name = "SHELL")]
    print_completion: Option<Shell>,
    #[command(subcommand)]
    command: Option<Command>,
}

// Not a doc comment: clap would show it as the program's description.
// `lockstep run` alone: building the whole command line takes 2 ms and memory, and an agent should start fast and stay small.
#[derive(Parser)]
#[command(name = "lockstep")]
struct RunCli {
    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Subcommand)]
enum RunCommand {
    Run(Box<lockstep_launch::command::RunOptions>),
}

#[derive(Subcommand)]
enum Command {
    Run(Box<lockstep_launch::command::RunOptions>),
    Stacks(stacks::StacksOptions),
    Report(report_command::ReportOptions),
    Replay(replay::ReplayOptions),
    Tour(tour::TourOptions),
    Inject(inject::InjectOptions),
    Same(same::SameOptions),
    Verify(verify::VerifyOptions),
    Render(render::RenderOptions),
    Doctor(doctor::DoctorOptions),
    Bench(bench::BenchOptions),
    Init(learn::Init),
    Grade(learn::Grade),
    Class(learn::ClassOptions),
    Hint(learn::Hint),
    Progress(learn::ShowProgress),
    Reset(learn::Reset),
    Solution(learn::Solution),
    Watch(learn::Watch),
    Book(learn::Book),
    New(new::NewOptions),
    Data(author::DataOptions),
    Cluster(cluster::ClusterOptions),
    Course(course::CourseOptions),
    Measure(bench::MeasureOptions),
    #[command(name = bench::RANK, hide = true)]
    BenchRank(bench::Rank),
    #[command(name = bench::STORE, hide = true)]
    BenchStore(bench::Serve),
    #[command(name = cluster::INIT, hide = true)]
    ClusterInit(cluster::Init),
}

/// The subcommands as the page of help lists them, by what one wants to do.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Learning", &["tour", "init", "grade", "hint", "watch", "progress", "reset", "solution", "book", "class"]),
    ("Running", &["run", "report", "replay", "stacks", "new", "data"]),
    ("Proving", &["verify", "inject", "same"]),
    ("Measuring", &["bench"]),
    ("At your site", &["doctor", "render", "cluster"]),
    ("For maintainers", &["course", "measure"]),
];

/// The page of help, with the subcommands in groups; clap lists them in one.
fn page(command: &clap::Command) -> String {
    let width = Screen::new(false).style().width;
    let entry = |name: &&str| {
        let about = command.find_subcommand(name).and_then(clap::Command::get_about);
        (format!("  {name:8}"), about.map(ToString::to_string).unwrap_or_default())
    };
    let group = |(title, names): &(&str, &[&str])| {
        let entries: Vec<_> = names.iter().map(entry).collect();
        let entries: Vec<_> = entries.iter().map(|(name, about)| (name.as_str(), about.as_str())).collect();
        format!("{title}:\n{}\n\n", listing(&entries, Some(width)))
    };
    let groups: String = GROUPS.iter().map(group).collect();
    format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}")
}

impl Cli {
    /// The command line of this process; ends it after a page of help or an error.
    pub(crate) fn of_this_process() -> Self {
        if std::env::args_os().nth(1).is_some_and(|name| name == "run") {
            let RunCommand::Run(options) = lockstep_launch::command::parse::<RunCli>().command;
            return Cli { print_completion: None, command: Some(Command::Run(options)) };
        }
        let command = Cli::command();
        let page = page(&command);
        let found = command.help_template(page).get_matches();
        Cli::from_arg_matches(&found).unwrap_or_else(|error| error.exit())
    }

    /// Runs the subcommand.
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        if let Some(shell) = self.print_completion {
            return shell.print(&Cli::command());
        }
        let Some(command) = self.command else {
            Cli::command().error(ErrorKind::MissingSubcommand, "a command is missing").exit();
        };
        match command {
            Command::Run(options) => options.exec(|| Ok(Cli::command())),
            Command::Stacks(options) => options.exec(),
            Command::Report(options) => options.exec(),
            Command::Replay(options) => options.exec(),
            Command::Tour(options) => options.exec(),
            Command::Inject(options) => options.exec(),
            Command::Same(options) => options.exec(),
            Command::Verify(options) => options.exec(cluster::why_no_slurm),
            Command::Render(options) => options.exec(),
            Command::Doctor(options) => options.exec(),
            Command::Bench(options) => options.exec(),
            Command::BenchRank(rank) => rank.exec(),
            Command::BenchStore(serve) => serve.exec(),
            Command::Init(options) => options.exec(),
            Command::Grade(options) => options.exec(),
            Command::Class(options) => options.exec(),
            Command::Hint(options) => options.exec(),
            Command::Progress(options) => options.exec(),
            Command::Reset(options) => options.exec(),
            Command::Solution(options) => options.exec(),
            Command::Watch(options) => options.exec(),
            Command::Book(options) => options.exec(),
            Command::New(options) => options.exec(),
            Command::Data(options) => options.exec(),
            Command::Cluster(options) => options.exec(),
            Command::ClusterInit(init) => init.exec(),
            Command::Course(options) => options.exec(|page| reference::text(page, Cli::command())),
            Command::Measure(options) => options.exec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_line_of_run_alone_gives_the_same_help_and_errors() {
        for words in [&["--help"][..], &["-h"], &[], &["--no-such-flag"], &["--nnodes=x"], &["--version"]] {
            let words = ["lockstep", "run"].iter().chain(words);
            let [whole, alone] = [Cli::command(), RunCli::command()].map(|command| {
                let error = command.try_get_matches_from(words.clone()).unwrap_err();
                (error.exit_code(), error.render().to_string())
            });
            assert_eq!(whole, alone);
        }
    }

    #[test]
    fn the_reference_describes_every_public_command_and_no_hidden_one() {
        let text = reference::commands(Cli::command());
        let is_described = |name: &&str| text.contains(&format!("\n## lockstep {name}\n"));
        assert!(["run", "grade", "watch", "course check"].iter().all(is_described));
        let hidden = [bench::RANK, bench::STORE, cluster::INIT, "dies-with-parent", "confined-exec"];
        assert!(!hidden.iter().any(|name| text.contains(name)), "{text}");
    }

    #[test]
    fn the_page_of_help_lists_each_command_once() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        listed.sort_unstable();
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut visible: Vec<&str> = visible.map(clap::Command::get_name).collect();
        visible.sort_unstable();
        assert_eq!(listed, visible);
    }
}
