//! `lockstep doctor`: what keeps training from starting, on this machine or on the nodes of a job, and how to fix it.
//!
//! - [`facts`]: what is known of a node, as data; [`gather`], [`gather_hardware`] and [`gather_gpus`] collect it.
//! - [`meeting`]: how the nodes of a job find each other; [`exchange`]: how they exchange facts and try to reach each other ([`probe`]).
//! - [`rules`]: the faults, each a pure function of the facts, in a file for each subject: [`devices`] (GPUs), [`fabric`] (RDMA), [`names`] (hosts and
//!   addresses), [`network`] (interfaces), [`nodes`] (the job as a whole) and [`resources`] (folders, memory, limits). [`examples`] has a
//!   healthy job.
//! - Below: the command's options, and its report.

mod examples;
mod exchange;
mod facts;
mod gather;
mod gather_gpus;
mod gather_hardware;
mod meeting;
mod probe;
mod rules;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use lockstep_contract::foreign::escaped;
use lockstep_process::{check_calls, check_room};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Code, Interrupted};
use crate::report::{Screen, Stdout, TextStyle, whole_words};
use crate::rules::{Column, Reported, has_error, listed, summary, table};
use exchange::DoctorSettings;
use facts::{JobFacts, Node};
use meeting::{Meeting, Participation};
use rules::names::ChosenInterface;
use rules::{AtNodes, Nodes, all, devices, names};

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
pub struct DoctorOptions {
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

/// Doctor's own threads, and a program that it asks.
const TASKS: usize = 6;

impl DoctorOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        let settings = self.settings()?;
        let part = if self.job {
            Meeting::find(self.hostfile.as_deref(), self.endpoint.as_deref())?
        } else {
            Participation::Alone
        };
        check_calls()?;
        check_room(TASKS)?; // without room for a thread, tokio panics
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.context("cannot start the runtime")?;
        let job = runtime.block_on(async {
            tokio::select! {
                job = examine(&part, &settings) => job,
                signal = asked_to_end() => Err(signal?.into()),
            }
        });
        // A name server or a file server that does not answer must not delay the report.
        runtime.shutdown_background();
        job?.map_or(Ok(Code::Success), |job| self.report(&job))
    }

    fn settings(&self) -> anyhow::Result<DoctorSettings> {
        let here = std::env::current_dir().context("cannot find the current folder")?;
        let port = std::env::var("MASTER_PORT").ok().and_then(|port| port.parse().ok()).filter(|port| *port > 0);
        let mut ports = vec![PORTS[0], port.unwrap_or(PORTS[1])];
        ports.extend(&self.ports);
        ports.sort_unstable();
        ports.dedup();
        let folder = self.folder.as_ref().map_or_else(|| here.clone(), |folder| here.join(folder));
        Ok(DoctorSettings { deadline: Duration::from_secs(self.deadline), folder, ports })
    }

    fn report(&self, job: &JobFacts) -> anyhow::Result<Code> {
        let findings = rules::examine(job);
        show(job, &findings, self.format == Format::Json)?;
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

/// The book's page on what doctor finds, without its title.
pub fn page() -> String {
    let intro = format!(
        "`lockstep doctor` knows {} faults; [When nodes do not find each other](when-nodes-do-not-meet.md) explains the command and the \
         most frequent of them. An *error* keeps training from starting, makes it hang or lose data, and the exit code is 1. A *warning* \
         makes training slow, or fail in some cases. A *note* is good to know.\n",
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

// ---- the report: a table of the nodes and a list of the faults for people, or JSON

/// At most this many gaps are shown.
const GAPS: usize = 4;

/// Prints the report.
fn show(job: &JobFacts, findings: &[Reported<AtNodes>], json: bool) -> anyhow::Result<()> {
    if json {
        let whole = serde_json::json!({ "findings": findings, "job": job });
        let text = serde_json::to_string_pretty(&whole)? + "\n";
        return Stdout.write_all(text.as_bytes()).context("cannot write to stdout");
    }
    let screen = Screen::new(false);
    screen.line(text(job, findings, screen.style()));
    Ok(())
}

fn text(job: &JobFacts, findings: &[Reported<AtNodes>], look: TextStyle) -> String {
    let mut parts = vec![title(job), nodes(job, look)];
    if !findings.is_empty() {
        parts.push(listed(findings, look).trim_end().to_owned());
    }
    let gaps = job.nodes.iter().flat_map(|node| node.unseen.iter().map(move |gap| (node, gap)));
    parts.extend(
        gaps.take(GAPS).map(|(node, gap)| format!("not verified here: {} (on {})", escaped(gap), escaped(&node.name))),
    );
    parts.push(summary(findings));
    parts.join("\n\n")
}

fn title(job: &JobFacts) -> String {
    if job.has_several() {
        format!("lockstep doctor: {}, {} of {} nodes", job.title, job.nodes.len(), job.size)
    } else {
        format!("lockstep doctor: {}", job.title)
    }
}

/// What there is on each node.
fn nodes(job: &JobFacts, look: TextStyle) -> String {
    let mut table = look.table(&["node", "processors", "memory", "GPUs", "Gloo takes", "NCCL takes", "libtorch"]);
    for node in &job.nodes {
        let memory = node.memory.limit.into_iter().chain(node.memory.total).min();
        let libtorch = node.libtorch.as_ref().map(|found| found.version.clone().unwrap_or_else(|| "unknown".into()));
        table.add_row([
            escaped(&node.name),
            node.processors().to_string(),
            memory.map_or_else(|| "?".into(), |bytes| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30))),
            gpus(node),
            taken(&names::gloo(node)),
            taken(&names::nccl(node)),
            libtorch.unwrap_or_else(|| "none".into()),
        ]);
    }
    whole_words(table, look)
}

fn gpus(node: &Node) -> String {
    let direct = node.gpus.paths.iter().any(|path| devices::is_direct(&path.tier));
    let ways = if direct { format!(", {}", devices::link(node.gpus.vendor)) } else { String::new() };
    match (node.gpus.present, node.gpus.cards.first()) {
        (0, _) => "none".into(),
        (count, None) => count.to_string(),
        (count, Some(card)) => format!("{count} × {}{ways}", escaped(&card.name)),
    }
}

fn taken(choices: &[ChosenInterface]) -> String {
    let shown = choices.iter().map(|choice| format!("{} ({})", escaped(&choice.interface), choice.address));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "nothing".into() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_nodes_and_faults_the_worst_first() {
        let mut job = examples::job(3);
        for rule in rules::all() {
            if ["port-blocked", "host-name-is-loopback", "omp-threads-exceed", "node-silent"].contains(&rule.name) {
                (rule.wrong)(&mut job);
            }
        }
        job.nodes[0].unseen.push("names of addresses: cannot run getent".into());
        let findings = rules::examine(&job);
        let shown = text(&job, &findings, TextStyle { width: 96, ..TextStyle::FILE });
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!("report", shown) });
    }

    #[test]
    fn says_that_nothing_was_found() {
        let job = examples::job(1);
        let text = text(&job, &[], TextStyle::FILE);
        assert!(text.ends_with("\n\nnothing wrong was found"), "{text}");
    }
}
