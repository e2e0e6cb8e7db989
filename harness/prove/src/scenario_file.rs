//! Reads a scenario's file: parses it, and finds contradictions in it. Errors name the file, the line, the column, and what is allowed
//! there. Pure.

use std::ops::Range;

use lockstep_contract::fault::SavePhase;
use regex::Regex;
use serde::Deserialize;
use toml::Spanned;

use crate::exit::Refused;
use crate::fault::{Fault, FaultAction, When, Who};
use crate::scenario::{Expect, RunSpec, Scenario};

/// Parses the text of the file `file`.
///
/// Errors: [`Refused`]: `FILE:LINE:COLUMN: what is wrong`, one line for each flaw.
pub(crate) fn parse(file: &str, text: &str) -> Result<Scenario, Refused> {
    let scenario: Scenario = toml::from_str(text).map_err(|error| {
        let (line, column) = place(text, error.span().map_or(0, |span| span.start));
        Refused(format!("{file}:{line}:{column}: {}", error.message()))
    })?;
    let messages: Vec<_> = flaws(&scenario).iter().map(|flaw| with_line(file, text, flaw)).collect();
    if messages.is_empty() { Ok(scenario) } else { Err(Refused(messages.join("\n"))) }
}

fn with_line(file: &str, text: &str, Flaw { place: at, what }: &Flaw) -> String {
    let (line, column) = place(text, start_of(text, *at));
    format!("{file}:{line}:{column}: {what}")
}

/// Where the parts of a file begin.
#[derive(Deserialize)]
struct Spans {
    #[serde(default)]
    fault: Vec<Spanned<toml::Table>>,
    run: Option<Spanned<toml::Table>>,
    expect: Option<Spanned<toml::Table>>,
}

fn start_of(text: &str, at: FilePart) -> usize {
    // It has been parsed before.
    let Ok(spans) = toml::from_str::<Spans>(text) else { return 0 };
    let start = |part: Option<&Spanned<toml::Table>>| part.map(Spanned::span).map(|span: Range<usize>| span.start);
    let found = match at {
        FilePart::Head => None,
        FilePart::Run => start(spans.run.as_ref()),
        FilePart::Expect => start(spans.expect.as_ref()),
        FilePart::Fault(index) => start(spans.fault.get(index)),
    };
    found.unwrap_or(0)
}

/// Line and column of a byte, counted from 1.
fn place(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_begin..].chars().count() + 1)
}

/// A contradiction.
#[derive(Debug, PartialEq)]
pub(crate) struct Flaw {
    pub(crate) place: FilePart,
    pub(crate) what: String,
}

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilePart {
    Head,
    Run,
    Expect,
    /// By its index in the list.
    Fault(usize),
}

/// Maximum of all durations, in seconds.
const LONGEST: f64 = 86_400.0;
/// Maximum number of ranks: each is a process.
const MOST_RANKS: usize = 256;

/// All flaws, in the order of the file's parts.
pub(crate) fn flaws(scenario: &Scenario) -> Vec<Flaw> {
    let at = |place| move |what| Flaw { place, what };
    let mut flaws: Vec<_> = head(&scenario.name).into_iter().map(at(FilePart::Head)).collect();
    flaws.extend(run(&scenario.run).into_iter().map(at(FilePart::Run)));
    flaws.extend(expect(&scenario.expect, &scenario.run).into_iter().map(at(FilePart::Expect)));
    for (index, one) in scenario.faults.iter().enumerate() {
        flaws.extend(fault(one, &scenario.run).into_iter().map(at(FilePart::Fault(index))));
        flaws.extend(arrival(scenario, index).map(at(FilePart::Fault(index))));
    }
    flaws
}

/// What is wrong with a node's arrival, which is fault number `index`.
fn arrival(scenario: &Scenario, index: usize) -> Option<String> {
    let Fault { who, what, when, .. } = &scenario.faults[index];
    if !what.0.contains(&FaultAction::Join) {
        return None;
    }
    let Who::Node(node) = *who else { return Some("\"join\" starts a node: who = { node = 1 }".into()) };
    if what.0.len() > 1 || when.save.is_some() {
        return Some("\"join\" stands alone, and comes at a step, after a time or at a line".into());
    }
    if scenario.run.min_nodes.is_none() {
        return Some("\"join\" goes with min-nodes: a job that needs all of its nodes takes on no other".into());
    }
    let of_node = |fault: &&Fault| matches!(fault.who, Who::Agent(of) | Who::Node(of) if of == node);
    let before = scenario.faults[..index].iter().rfind(of_node);
    let is_there = before.is_some_and(|fault| !fault.what.0.iter().any(FaultAction::ends));
    is_there.then(|| format!("node {node} is still there: a fault before \"join\" must end it"))
}

fn lab(run: &RunSpec) -> Option<String> {
    let name = run.lab.as_ref()?;
    if run.program.is_some() {
        return Some("lab and program are two things to run: name one of them".into());
    }
    (!is_name(name))
        .then(|| format!("the lab {name:?} must be the name of a lab's folder, such as \"07-cifar-resnet\""))
}

fn head(name: &str) -> Option<String> {
    (!is_name(name))
        .then(|| format!("the name {name:?} must be of letters, digits and dashes: folders are called by it"))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn run(run: &RunSpec) -> Vec<String> {
    let mut flaws = Vec::new();
    if run.ranks == 0 || run.nodes == 0 || run.ranks > MOST_RANKS {
        flaws.push(format!("ranks must be from 1 to {MOST_RANKS}, nodes from 1 on"));
    } else if !run.workers.is_empty() {
        flaws.extend(workers(run));
    } else if !run.ranks.is_multiple_of(run.nodes) {
        flaws.push(format!("{} ranks cannot be shared equally by {} nodes", run.ranks, run.nodes));
    }
    if run.rdzv_conf.is_some() && run.nodes == 1 {
        flaws.push("rdzv-conf goes with several nodes: the agent of a single one meets nobody".into());
    }
    let counts = [run.epochs, run.samples, run.save_every_steps, run.batch_size as u64, run.keep as u64];
    if counts.contains(&0) {
        flaws.push("epochs, samples, batch-size, save-every-steps and keep must be 1 or more".into());
    }
    flaws.extend(seconds("timeout-seconds", Some(run.timeout_seconds)));
    flaws.extend(seconds("late-seconds", Some(run.late_seconds)));
    flaws.extend(seconds("stop-timeout-seconds", run.stop_timeout_seconds));
    flaws.extend(order(run));
    flaws.extend(lab(run));
    flaws.extend(elastic(run));
    flaws
}

fn elastic(run: &RunSpec) -> Vec<String> {
    let mut flaws = Vec::new();
    if let Some(min) = run.min_nodes.filter(|min| run.nodes < 2 || !(1..=run.nodes).contains(min)) {
        flaws.push(format!("min-nodes is {min}: it goes with several nodes, and is from 1 to their number"));
    }
    if let Some(count) = run.virtual_ranks.filter(|count| *count < run.ranks) {
        flaws.push(format!("virtual-ranks is {count}: {} ranks need as many or more, one each", run.ranks));
    }
    if run.virtual_ranks.is_some() && run.program.is_some() {
        flaws.push("virtual-ranks is an argument of labs: give it to a program in args".into());
    }
    flaws
}

fn workers(run: &RunSpec) -> Option<String> {
    let RunSpec { ranks, nodes, workers, .. } = run;
    let fine = workers.len() == *nodes && !workers.contains(&0) && workers.iter().sum::<usize>() == *ranks;
    (!fine).then(|| format!("workers is {workers:?}: it has a number for each of {nodes} nodes, {ranks} in all"))
}

fn order(run: &RunSpec) -> Option<String> {
    let mut sorted = run.requeue_order.clone();
    sorted.sort_unstable();
    let some = run.min_nodes.is_some() && sorted.len() < run.nodes;
    let fine = match some {
        true => sorted.iter().all(|node| *node < run.nodes) && sorted.windows(2).all(|pair| pair[0] != pair[1]),
        false => sorted.is_empty() || sorted.into_iter().eq(0..run.nodes),
    };
    (!fine).then(|| {
        format!(
            "requeue-order is {:?}: it names each of the nodes 0 to {} once{}",
            run.requeue_order,
            run.nodes.saturating_sub(1),
            if some { ", or only some of them" } else { "" }
        )
    })
}

fn expect(expect: &Expect, run: &RunSpec) -> Vec<String> {
    let mut flaws = Vec::new();
    if expect.exit_code != 0 && expect.same_weights == Some(true) {
        flaws.push(
            "a run that fails has no final weights: same-weights and an exit-code other than 0 exclude each other"
                .into(),
        );
    }
    if expect.restarts.is_some() && expect.restarts_at_most.is_some() {
        flaws.push("give restarts or restarts-at-most, not both".into());
    }
    if run.min_nodes.is_some() && run.virtual_ranks.is_none() && expect.same_weights() {
        flaws.push(
            "with min-nodes the number of ranks may change, and the bits with it: give virtual-ranks, or same-weights = false".into(),
        );
    }
    if let Some(rank) = expect.root_cause.filter(|rank| *rank >= run.ranks) {
        flaws.push(format!("root-cause is rank {rank}, the run has ranks 0 to {}", run.ranks.saturating_sub(1)));
    }
    flaws.extend(expect.says.iter().filter_map(|text| pattern("says", text)));
    flaws.extend(seconds("recovers-within-seconds", expect.recovers_within_seconds));
    flaws
}

fn fault(fault: &Fault, run: &RunSpec) -> Vec<String> {
    let mut flaws: Vec<_> = [who(fault.who, run), when(&fault.when, run)].into_iter().flatten().collect();
    if fault.when.save.is_some() && fault.who != Who::Rank(0) {
        let who = "who = { rank = 0 }";
        flaws.push(format!("only rank 0 saves snapshots, so it alone can act during a save: {who}"));
    }
    if fault.what.0.is_empty() {
        flaws.push("what is an empty list: name an action such as \"kill\"".into());
    }
    flaws.extend(fault.what.0.iter().filter_map(|action| action_flaw(fault, action)));
    flaws.extend(seconds("for-seconds", fault.for_seconds));
    flaws.extend(seconds("replace-after-seconds", fault.replace_after_seconds));
    let heals =
        |action: &FaultAction| action.is_of_the_network() || action.is_of_the_disk() || *action == FaultAction::Stop;
    if fault.for_seconds.is_some() && (fault.inside(0).is_some() || !fault.what.0.iter().any(heals)) {
        flaws.push("for-seconds goes with a network, a disk or a stop that the harness makes".into());
    }
    flaws.extend(replacement(fault).map(str::to_owned));
    flaws
}

fn replacement(fault: &Fault) -> Option<&'static str> {
    let seconds = fault.replace_after_seconds?;
    let cut = fault.what.0.contains(&FaultAction::CutNetwork);
    let lost = matches!(fault.who, Who::Agent(_) | Who::Node(_)) && (cut || fault.what.0.iter().any(FaultAction::ends));
    if !lost {
        return Some(
            "replace-after-seconds goes with the end of an agent or a node: \"kill\", \"term\" or \"cut-network\"",
        );
    }
    let heals = !cut || fault.for_seconds.is_some_and(|network| network <= seconds);
    (!heals).then_some(
        "the network of a node that is replaced works again first: for-seconds is at most replace-after-seconds",
    )
}

fn who(who: Who, run: &RunSpec) -> Option<String> {
    match who {
        Who::Rank(rank) if rank >= run.ranks => {
            Some(format!("there is no rank {rank}: the run has ranks 0 to {}", run.ranks.saturating_sub(1)))
        }
        Who::Agent(node) | Who::Node(node) if node >= run.nodes => {
            Some(format!("there is no node {node}: the run has nodes 0 to {}", run.nodes.saturating_sub(1)))
        }
        _ => None,
    }
}

fn when(when: &When, run: &RunSpec) -> Option<String> {
    let point = when.epoch.is_some() || when.step.is_some() || when.save.is_some();
    let ways = [point, when.after_seconds.is_some(), when.log_line.is_some()];
    if ways.iter().filter(|way| **way).count() != 1 || point && when.point().is_none() {
        let forms = "{ epoch = 1, step = 3 }, { save = \"half-written\", epoch = 1, step = 4 }, { after-seconds = 0.5 } or \
                     { log-line = \"Epoch 1\" }";
        return Some(format!("when must be one of {forms}"));
    }
    if let Some(text) = &when.log_line {
        return pattern("log-line", text);
    }
    if let (Some(epoch), None) = (when.epoch, &run.program)
        && epoch >= run.epochs + u64::from(when.save.is_some())
    {
        return Some(format!("epoch {epoch} never comes: the run has epochs 0 to {}", run.epochs.saturating_sub(1)));
    }
    seconds("after-seconds", when.after_seconds)
}

fn action_flaw(fault: &Fault, action: &FaultAction) -> Option<String> {
    let of_rank = matches!(fault.who, Who::Rank(_));
    if action.is_of_the_network() || action.is_of_the_disk() {
        let node = matches!(fault.who, Who::Node(_));
        return (!node).then(|| format!("\"{action}\" meets a node: who = {{ node = 0 }}"));
    }
    if *action == FaultAction::NoSpace && !matches!(fault.when.save, Some(SavePhase::HalfWritten | SavePhase::Written))
    {
        return Some(
            "\"no-space\" meets a snapshot that is being written: when = { save = \"written\", epoch = 1, step = 4 }"
                .into(),
        );
    }
    if *action == FaultAction::Join {
        return None; // see `arrival`
    }
    let sendable = action.signal().is_some();
    match (sendable, of_rank, fault.when.point().is_some()) {
        (true, ..) | (false, true, true) => None,
        (false, false, _) => Some(format!("\"{action}\" is what a rank does to itself: who = {{ rank = 0 }}")),
        (false, true, false) => {
            Some(format!("\"{action}\" is what a rank does to itself at a point: when = {{ epoch = 0, step = 1 }}"))
        }
    }
}

fn pattern(field: &str, text: &str) -> Option<String> {
    let error = Regex::new(text).err()?.to_string();
    let last = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    Some(format!("{field} {text:?} is not a regular expression: {last}"))
}

fn seconds(field: &str, value: Option<f64>) -> Option<String> {
    let value = value?;
    let fine = (0.0..=LONGEST).contains(&value);
    (!fine).then(|| format!("{field} is {value}: it must be from 0 to {LONGEST}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::What;

    const HEAD: &str = "name = \"a\"\ntitle = \"b\"\nshows = \"c\"\n";

    fn error(rest: &str) -> String {
        parse("x.toml", &format!("{HEAD}{rest}")).unwrap_err().to_string()
    }

    #[test]
    fn reads_a_file_with_everything_in_it_and_writes_it_back() {
        let text = format!(
            "{HEAD}[run]\nranks = 4\nnodes = 2\nmax-restarts = 1\nargs = [\"--x\"]\n[expect]\nrestarts = 1\n\
             same-weights = false\n[[fault]]\nwho = {{ rank = 0 }}\nwhen = {{ save = \"half-written\", epoch = 1, step = 4 }}\n\
             what = [\"tear-snapshot\", {{ exit = 7 }}]\n[[fault]]\nwho = {{ node = 1 }}\nwhen = {{ after-seconds = 0.5 }}\n\
             what = \"kill\"\nreplace-after-seconds = 1.0\n"
        );
        let scenario = parse("x.toml", &text).unwrap();
        assert_eq!(
            scenario.run,
            RunSpec { ranks: 4, nodes: 2, max_restarts: 1, args: vec!["--x".into()], ..RunSpec::default() }
        );
        assert_eq!(scenario.expect, Expect { restarts: Some(1), same_weights: Some(false), ..Expect::default() });
        let when = When { epoch: Some(1), step: Some(4), save: Some(SavePhase::HalfWritten), ..When::default() };
        let what = What(vec![FaultAction::TearSnapshot, FaultAction::Exit(7)]);
        let first = Fault { who: Who::Rank(0), when, what, for_seconds: None, replace_after_seconds: None };
        assert_eq!(scenario.faults[0], first);
        assert_eq!(parse("y.toml", &scenario.to_toml()).unwrap(), scenario);
    }

    #[test]
    fn names_file_line_and_what_is_allowed() {
        let message = error("[run]\nrank = 2\n");
        assert!(message.starts_with("x.toml:5:1: unknown field `rank`, expected one of `lab`, `program`"), "{message}");
        let fault = "[[fault]]\nwho = { rank = 1 }\nwhen = { epoch = 0, step = 1 }\n";
        let message = error(&format!("{fault}what = \"explode\"\n"));
        assert!(message.starts_with("x.toml:7:"), "{message}");
        assert!(message.contains("unknown variant `explode`, expected one of `kill`, `term`, `stop`"), "{message}");
        let message = error("[[fault]]\nwho = { host = 1 }\nwhen = {}\nwhat = \"kill\"\n");
        assert!(
            message.contains("x.toml:5:") && message.contains("expected one of `rank`, `agent`, `node`"),
            "{message}"
        );
        let message = error("[run\n");
        assert!(message.starts_with("x.toml:4:"), "{message}");
        let message = parse("x.toml", "name = \"a\"\n").unwrap_err().to_string();
        assert!(message.contains("missing field `title`"), "{message}");
    }

    #[test]
    fn accepts_unequal_nodes_only_if_their_workers_are_the_ranks() {
        let run = |workers| {
            format!("name = \"a\"\ntitle = \"\"\nshows = \"\"\n[run]\nranks = 4\nnodes = 2\nworkers = {workers}\n")
        };
        assert_eq!(parse("x.toml", &run("[1, 3]")).unwrap().run.workers, [1, 3]);
        for workers in ["[4]", "[1, 2]", "[4, 0]"] {
            let message = parse("x.toml", &run(workers)).unwrap_err().to_string();
            assert!(message.contains("it has a number for each of 2 nodes, 4 in all"), "{message}");
        }
    }

    #[test]
    fn names_every_flaw_with_its_own_line() {
        let message = error("[run]\nranks = 3\nnodes = 2\n[[fault]]\nwho = { rank = 9 }\nwhen = {}\nwhat = \"kill\"\n");
        let lines: Vec<_> = message.lines().collect();
        assert!(lines[0].starts_with("x.toml:4:1: 3 ranks cannot be shared equally by 2 nodes"), "{message}");
        assert!(lines[1..].iter().all(|line| line.starts_with("x.toml:7:1: ")), "{message}");
        assert!(message.contains("rank 9") && message.contains("when"), "{message}");
    }

    #[test]
    fn survives_a_file_cut_at_any_byte() {
        let text = format!(
            "{HEAD}[[fault]]\nwho = {{ rank = 1 }}\nwhen = {{ epoch = 0, step = 1 }}\nwhat = {{ exit = 3 }} # ä\n"
        );
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            if let Err(refused) = parse("x.toml", &text[..end]) {
                assert!(refused.to_string().starts_with("x.toml:"), "{refused}");
            }
        }
    }

    fn result_of(run: &str, fault: &str) -> String {
        let text = format!("name = \"a\"\ntitle = \"b\"\nshows = \"c\"\n[run]\n{run}\n[[fault]]\n{fault}\n");
        parse("x", &text).map_or_else(|refused| refused.to_string(), |_| "fine".into())
    }

    #[test]
    fn rejects_an_unknown_lab() {
        let kill = "who = { rank = 0 }\nwhen = { epoch = 0, step = 1 }\nwhat = \"kill\"";
        assert_eq!(result_of("lab = \"07-cifar-resnet\"", kill), "fine");
        assert!(result_of("lab = \"../x\"", kill).contains("must be the name of a lab's folder"));
        assert!(result_of("lab = \"07-x\"\nprogram = \"y\"", kill).contains("name one of them"));
    }

    #[test]
    fn rejects_impossible_actions() {
        let point = "when = { epoch = 0, step = 1 }";
        let soon = "when = { after-seconds = 1 }";
        let cut = "what = [\"cut-network\", \"kill\"]\nfor-seconds = 1";
        for (fault, expected) in [
            (format!("who = {{ rank = 1 }}\n{point}\nwhat = \"kill\""), "fine"),
            (format!("who = {{ rank = 1 }}\n{soon}\nwhat = \"kill\""), "fine"),
            (format!("who = {{ rank = 1 }}\n{soon}\nwhat = \"panic\""), "at a point"),
            (format!("who = {{ node = 0 }}\n{point}\nwhat = {{ exit = 3 }}"), "what a rank does to itself"),
            (format!("who = {{ rank = 0 }}\n{soon}\nwhat = \"disk-full\""), "meets a node"),
            (format!("who = {{ node = 0 }}\n{soon}\nwhat = {{ slow-network = 100 }}\nfor-seconds = 1"), "fine"),
            (format!("who = {{ rank = 0 }}\n{point}\nwhat = \"stop\"\nfor-seconds = 1"), "for-seconds goes with"),
            (
                format!("who = {{ rank = 0 }}\n{soon}\nwhat = \"kill\"\nreplace-after-seconds = 1"),
                "replace-after-seconds goes",
            ),
            (format!("who = {{ node = 0 }}\n{soon}\n{cut}\nreplace-after-seconds = 2"), "fine"),
            (format!("who = {{ node = 0 }}\n{soon}\n{cut}\nreplace-after-seconds = 0.5"), "works again first"),
            (format!("who = {{ node = 1 }}\n{point}\nwhat = \"kill\""), "there is no node 1"),
            (format!("who = {{ rank = 0 }}\n{point}\nwhat = []"), "empty list"),
            (
                "who = { node = 0 }\nwhen = { save = \"named\", epoch = 0, step = 4 }\nwhat = \"kill\"".into(),
                "only rank 0 saves",
            ),
            (
                "who = { rank = 0 }\nwhen = { save = \"named\", epoch = 0, step = 4 }\nwhat = \"no-space\"".into(),
                "being written",
            ),
            ("who = { rank = 0 }\nwhen = { epoch = 3, step = 0 }\nwhat = \"kill\"".into(), "epoch 3 never comes"),
            ("who = { rank = 0 }\nwhen = { epoch = 1 }\nwhat = \"kill\"".into(), "when must be one of"),
            ("who = { rank = 0 }\nwhen = { log-line = \"(\" }\nwhat = \"kill\"".into(), "not a regular expression"),
            ("who = { rank = 0 }\nwhen = { after-seconds = -1 }\nwhat = \"kill\"".into(), "from 0 to"),
        ] {
            let result = result_of("", &fault);
            assert!(result.contains(expected), "{fault}\n{result}");
        }
    }

    #[test]
    fn rejects_elastic_runs_that_contradict_themselves() {
        let three = "nodes = 3\nranks = 3\nmin-nodes = 1\nvirtual-ranks = 4";
        let kill = "who = { node = 2 }\nwhen = { epoch = 0, step = 0 }\nwhat = \"kill\"";
        let join = "who = { node = 2 }\nwhen = { epoch = 0, step = 1 }\nwhat = \"join\"";
        for (run, fault, expected) in [
            (three, format!("{kill}\n[[fault]]\n{join}"), "fine"),
            (three, join.to_owned(), "fine"),
            (three, format!("{join}\n[[fault]]\n{join}"), "node 2 is still there"),
            (three, join.replace("node = 2", "rank = 2"), "\"join\" starts a node"),
            (three, join.replace("\"join\"", "[\"kill\", \"join\"]"), "stands alone"),
            ("nodes = 3\nranks = 3", join.to_owned(), "goes with min-nodes"),
            (&format!("{three}\nrequeues = 1\nrequeue-order = [2, 0]"), kill.to_owned(), "fine"),
            (&format!("{three}\nrequeue-order = [2, 2]"), kill.to_owned(), "or only some of them"),
            (&three.replace("min-nodes = 1", "min-nodes = 4"), kill.to_owned(), "is from 1 to their number"),
            (&three.replace("virtual-ranks = 4", "virtual-ranks = 2"), kill.to_owned(), "3 ranks need as many"),
            (&three.replace("virtual-ranks = 4", ""), kill.to_owned(), "give virtual-ranks, or same-weights"),
            (&format!("{three}\nprogram = \"x\""), kill.to_owned(), "is an argument of labs"),
        ] {
            let result = result_of(run, &fault);
            assert!(result.contains(expected), "{run}\n{fault}\n{result}");
        }
    }

    #[test]
    fn rejects_runs_and_expectations_that_contradict_themselves() {
        let fine = "who = { rank = 0 }\nwhen = { epoch = 0, step = 0 }\nwhat = \"kill\"";
        for (run, expected) in [
            ("ranks = 0", "ranks must be from 1"),
            ("ranks = 1000000", "ranks must be from 1 to 256"),
            ("samples = 0", "must be 1 or more"),
            ("rdzv-conf = \"takeover=false\"", "rdzv-conf goes with several nodes"),
            ("timeout-seconds = nan", "timeout-seconds is NaN"),
            ("[expect]\nexit-code = 1\nsame-weights = true", "exclude each other"),
            ("[expect]\nrestarts = 1\nrestarts-at-most = 1", "not both"),
            ("[expect]\nroot-cause = 2", "root-cause is rank 2"),
            ("[expect]\nsays = [\"[\"]", "says \"[\" is not a regular expression"),
        ] {
            let result = result_of(run, fine);
            assert!(result.contains(expected), "{run}\n{result}");
        }
    }
}
