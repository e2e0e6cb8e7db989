//! `lockstep doctor`: what keeps training from starting, on this machine or on the nodes of a job, and how to fix it.
//!
//! - [`facts`]: what is known of a node, as data; [`gather`] and [`gather_hardware`] collect it.
//! - [`meeting`]: how the nodes of a job find each other; [`exchange`]: how they exchange facts and try to reach each other ([`probe`]).
//! - [`rules`]: the faults, each a pure function of the facts, in a file for each subject.
//! - [`show`]: the report.

mod devices;
mod examples;
mod exchange;
mod fabric;
mod facts;
mod gather;
mod gather_hardware;
mod meeting;
mod names;
mod network;
mod nodes;
mod probe;
mod resources;
mod rules;
mod show;
mod variables;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Code, Interrupted};
use crate::site::rules::{Column, has_error, table};
use exchange::DoctorSettings;
use facts::JobFacts;
use meeting::{Meeting, Participation};
use rules::{Nodes, all};

/// The ports of torchrun's rendezvous and of its store.
const PORTS: [u16; 2] = [29_400, 29_500];

const AFTER_HELP: &str = "\
With --job, start it once on each node, as `lockstep run`: `srun --ntasks-per-node=1 lockstep doctor --job`, `mpirun --map-by ppr:1:node \
…`, a loop over ssh or pbsdsh with --hostfile, or `lockstep run … lockstep doctor --job`. The first node prints the report. A node that \
cannot reach it prints its own.

Nothing is changed: doctor opens ports while it runs, and writes small files in the folder for snapshots, which it removes.

Exit codes: 0 no errors were found (there may be warnings) · 1 errors were found, or the meeting failed · 2 usage";

/// Check this machine, or all nodes of a job, and say how to fix what is found
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DoctorOptions {
    /// Check all nodes of the job in which this is started
    #[arg(long)]
    job: bool,
    /// A file with a host on each line, the first of which hosts the meeting
    #[arg(long, value_name = "FILE", requires = "job")]
    hostfile: Option<PathBuf>,
    /// Where the nodes meet, if the launcher does not name its nodes
    #[arg(long, value_name = "HOST:PORT", requires = "job")]
    endpoint: Option<String>,
    /// The folder for snapshots, the same on all nodes [default: the current one]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Another port that all nodes must reach, besides 29400 and MASTER_PORT or 29500
    #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,
    /// Ends after this time, and names the nodes that have not answered
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3600))]
    deadline: u64,
    /// The form of the report
    #[arg(long, value_name = "FORM", default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

impl DoctorOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let settings = self.settings()?;
        let part = if self.job {
            Meeting::find(self.hostfile.as_deref(), self.endpoint.as_deref())?
        } else {
            Participation::Alone
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.context("cannot start the runtime")?;
        let job = runtime.block_on(async {
            tokio::select! {
                job = examine(&part, &settings) => job,
                signal = asked_to_end() => Err(signal?.into()),
            }
        });
        // A name server or a file server that does not answer must not hold the report.
        runtime.shutdown_background();
        job?.map_or(Ok(Code::Success), |job| self.report(&job))
    }

    fn settings(&self) -> anyhow::Result<DoctorSettings> {
        let here = std::env::current_dir().context("cannot find the current folder")?;
        let mut ports = vec![PORTS[0], master_port().unwrap_or(PORTS[1])];
        ports.extend(&self.ports);
        ports.sort_unstable();
        ports.dedup();
        let folder = self.folder.as_ref().map_or_else(|| here.clone(), |folder| here.join(folder));
        Ok(DoctorSettings { deadline: Duration::from_secs(self.deadline), folder, ports })
    }

    fn report(&self, job: &JobFacts) -> anyhow::Result<Code> {
        let findings = rules::examine(job);
        show::show(job, &findings, self.format == Format::Json)?;
        Ok(if has_error(&findings) { Code::Failure } else { Code::Success })
    }
}

async fn examine(part: &Participation, settings: &DoctorSettings) -> anyhow::Result<Option<JobFacts>> {
    match part {
        Participation::None => Ok(None),
        Participation::Alone => exchange::examine_alone(settings).await.map(Some),
        Participation::Node(meeting) => exchange::examine(meeting, settings).await,
    }
}

/// Waits for a signal. Whatever was examined until then is dropped, and with it the files in the folder for snapshots.
async fn asked_to_end() -> std::io::Result<Interrupted> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let kind = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    Ok(Interrupted { signal: kind.as_raw_value() })
}

fn master_port() -> Option<u16> {
    std::env::var("MASTER_PORT").ok()?.parse().ok().filter(|port| *port > 0)
}

/// The book's page on what doctor finds, without its title.
pub(crate) fn page() -> String {
    let intro = format!(
        "`lockstep doctor` knows {} faults; [When nodes do not find each other](when-nodes-do-not-meet.md) explains the command and the \
         most frequent of them. An *error* keeps training from starting, makes it hang or lose data, and the exit code is 1. With a \
         *warning* it works, until it does not, or it is slow. A *note* is good to know.\n",
        all().count()
    );
    let columns: [Column<Nodes>; 4] = [
        ("fault", |rule| format!("`{}`", rule.name)),
        ("level", |rule| rule.level.to_string()),
        ("what happens", |rule| rule.why.to_owned()),
        ("where doctor looks", |rule| rule.source.to_owned()),
    ];
    intro + &table(all(), &columns)
}
