//! Checks a scenario's expectations: a pure function from observations to findings.

use std::collections::BTreeMap;

use regex::Regex;

use crate::check_same::compare_weights;
use crate::evidence::Weights;
use crate::job_runner::Observed;
use crate::report::recovery::Restarts;
use crate::report::{Finding, Verdict, counted};
use crate::scenario::{Expect, Scenario};

/// The result of an undisturbed run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reference {
    /// The final weights by rank.
    pub(crate) weights: Vec<Weights>,
    /// Other models that it saves, such as the best one, by their file names.
    pub(crate) models: BTreeMap<String, Weights>,
}

impl Reference {
    /// The result of a run on one rank, as each of `ranks` ranks must have it.
    fn on(&self, ranks: usize) -> Reference {
        let weights = self.weights.iter().take(1).cycle().take(ranks).cloned().collect();
        Reference { weights, models: self.models.clone() }
    }
}

/// Compares the observations with the expectations. `reference`: the undisturbed run's weights, or why there are none.
pub(crate) fn check_expectations(
    scenario: &Scenario,
    seen: &Observed,
    reference: Result<&Reference, &str>,
) -> Vec<Finding> {
    let expect = &scenario.expect;
    let mut findings = vec![faults_came(scenario, seen), ended(expect, seen)];
    let unreadable = seen.events.unreadable.iter();
    findings.extend(unreadable.map(|flaw| finding("The event files can be read", Err(flaw.clone()))));
    findings.push(weights(scenario, seen, reference));
    findings.extend(world_sizes(expect, &seen.world_sizes));
    findings.extend(restarts(expect, &seen.restarts));
    findings.extend(repeated(expect, &seen.restarts));
    findings.extend(in_time(expect, &seen.restarts));
    findings.extend(expect.root_cause.map(|rank| root_cause(rank, expect, seen)));
    findings.extend(expect.says.iter().map(|text| says(text, seen)));
    if expect.nothing_leaked {
        findings.push(nothing_leaked(seen));
    }
    findings
}

fn finding(claim: impl Into<String>, proof: Result<String, String>) -> Finding {
    let verdict = if proof.is_ok() { Verdict::Passed } else { Verdict::Failed };
    let evidence = proof.unwrap_or_else(|contradiction| contradiction);
    Finding { claim: claim.into(), verdict, evidence }
}

/// A fault that did not happen proves nothing.
fn faults_came(scenario: &Scenario, seen: &Observed) -> Finding {
    let describe =
        |index: &usize| scenario.faults.get(*index).map_or_else(|| format!("fault {index}"), ToString::to_string);
    let failed = seen.injections.iter().filter_map(|injection| Some((injection, injection.failed.as_ref()?)));
    let failed = failed.map(|(injection, why)| format!("{}: {} failed: {why}", injection.who, injection.what));
    let missed = seen.missed.iter().map(|index| format!("never came: {}", describe(index)));
    let flaws: Vec<_> = missed.chain(failed).collect();
    let came: Vec<_> = scenario.faults.iter().map(ToString::to_string).collect();
    if scenario.expect.faults_may_miss {
        let evidence = if flaws.is_empty() { came } else { flaws };
        return finding("The faults happened, or came too late to matter", Ok(evidence.join("; ")));
    }
    let claim = "The faults came";
    match (flaws.is_empty(), came.is_empty()) {
        (true, true) => finding(claim, Ok("none was expected".into())),
        (true, false) => finding(claim, Ok(came.join("; "))),
        (false, _) => finding(claim, Err(flaws.join("; "))),
    }
}

/// It ended in time and with the expected code.
pub(crate) fn ended(expect: &Expect, seen: &Observed) -> Finding {
    let claim = format!("The launcher ends with exit code {}", expect.exit_code);
    if let Some(limit) = seen.timed_out {
        return finding(
            claim,
            Err(format!("it had not ended after {} s and was killed: {}", limit.as_secs_f64(), last_words(seen))),
        );
    }
    let odd = seen.codes.iter().find(|(_, code)| **code != Some(expect.exit_code));
    finding(
        claim,
        match odd {
            _ if seen.codes.is_empty() => Err("no agent ended by itself".into()),
            None => Ok(format!("after {:.1} s", seen.seconds)),
            Some((node, Some(code))) => Err(format!("node {node} ended with {code}: {}", last_words(seen))),
            Some((node, None)) => Err(format!("node {node} was ended by a signal")),
        },
    )
}

/// The last lines of output.
fn last_words(seen: &Observed) -> String {
    let lines: Vec<_> = seen.output.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.len() {
        0 => "it printed nothing".into(),
        count => format!("its last lines: {}", lines[count.saturating_sub(3)..].join(" / ")),
    }
}

fn weights(scenario: &Scenario, seen: &Observed, reference: Result<&Reference, &str>) -> Finding {
    if scenario.expect.same_weights() {
        let virtual_ranks = scenario.run.virtual_ranks.is_some();
        let on_one = if virtual_ranks { " on one rank" } else { "" };
        let claim = format!("The final weights are bit for bit those of the undisturbed run{on_one}");
        return match reference {
            Ok(reference) if virtual_ranks => finding(claim, same_as(&reference.on(seen.weights.len()), seen)),
            Ok(reference) => finding(claim, same_as(reference, seen)),
            Err(why) => finding(claim, Err(format!("there is no undisturbed run to compare with: {why}"))),
        };
    }
    if scenario.expect.exit_code != 0 {
        return finding("No rank claims to have finished", none_finished(seen));
    }
    finding("All ranks end with the same weights", agree(seen))
}

fn same_as(reference: &Reference, seen: &Observed) -> Result<String, String> {
    let Reference { weights, models } = reference;
    if seen.weights.len() != weights.len() {
        return Err(format!("{} ranks, the undisturbed run had {}", seen.weights.len(), weights.len()));
    }
    for (rank, (own, due)) in seen.weights.iter().zip(weights).enumerate() {
        let own = own.as_ref().map_err(String::clone)?;
        compare_weights(due, own).map_err(|difference| format!("rank {rank}: {difference}"))?;
    }
    for (name, due) in models {
        let own = seen.models.get(name).ok_or_else(|| format!("{name} was not kept"))?;
        compare_weights(due, own.as_ref().map_err(String::clone)?)
            .map_err(|difference| format!("{name}: {difference}"))?;
    }
    let values: usize = weights.first().map_or(0, |weights| weights.values().map(crate::evidence::Tensor::len).sum());
    if values == 0 || seen.weights.is_empty() {
        return Err("no weights were saved".into());
    }
    let kept: String = models.keys().map(|name| format!(", and all of {name}")).collect();
    Ok(format!("{} on each of {}{kept}", counted(values, "value"), counted(weights.len(), "rank")))
}

fn agree(seen: &Observed) -> Result<String, String> {
    let saved: Vec<_> = seen.weights.iter().filter_map(|weights| weights.as_ref().ok()).collect();
    let Some((first, others)) = saved.split_first() else { return Err("no rank saved weights".into()) };
    others.iter().try_for_each(|other| compare_weights(first, other))?;
    Ok(format!("{} saved the same", counted(saved.len(), "rank")))
}

fn none_finished(seen: &Observed) -> Result<String, String> {
    match seen.weights.iter().position(Result::is_ok) {
        Some(rank) => Err(format!("rank {rank} saved final weights although the job failed")),
        None => Ok("no final weights were saved".into()),
    }
}

fn world_sizes(expect: &Expect, found: &[usize]) -> Option<Finding> {
    if expect.world_sizes.is_empty() {
        return None;
    }
    let claim = format!("It trains on {} ranks", in_turn(&expect.world_sizes));
    let holds = *expect.world_sizes == *found;
    let text = format!("rank 0 recorded {}", in_turn(found));
    Some(finding(claim, if holds { Ok(text) } else { Err(text) }))
}

/// `8 → 3 → 5`.
pub(crate) fn in_turn(counts: &[usize]) -> String {
    counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" → ")
}

fn restarts(expect: &Expect, found: &Restarts) -> Option<Finding> {
    let text = counted(found.count as usize, "restart");
    let (claim, holds) = match (expect.restarts, expect.restarts_at_most) {
        (Some(due), _) => (format!("It takes {}", counted(due as usize, "restart")), found.count == due),
        (_, Some(most)) => (format!("It takes {} at most", counted(most as usize, "restart")), found.count <= most),
        _ => return None,
    };
    Some(finding(claim, if holds { Ok(text) } else { Err(format!("{text}{}", because(found))) }))
}

fn because(found: &Restarts) -> String {
    let deaths: Vec<_> = found.deaths().map(|(rank, code)| format!("rank {rank} ended with {code}")).collect();
    if deaths.is_empty() { String::new() } else { format!(": {}", deaths.join(", then ")) }
}

fn repeated(expect: &Expect, found: &Restarts) -> Option<Finding> {
    let most = expect.steps_repeated_at_most?;
    let claim = format!("At most {} are done again", counted(most as usize, "step"));
    let text = format!("{} of {}", counted(found.steps_repeated as usize, "step"), found.steps);
    Some(finding(claim, if found.steps_repeated <= most { Ok(text) } else { Err(text) }))
}

fn in_time(expect: &Expect, found: &Restarts) -> Option<Finding> {
    let most = expect.recovers_within_seconds?;
    let claim = format!("Training continues within {most} s of the death");
    let proof = match found.slowest() {
        None => Err("no step was done after a restart".into()),
        Some(seconds) if seconds <= most => Ok(format!("{seconds:.2} s from the death to the next step of all ranks")),
        Some(seconds) => Err(format!("it took {seconds:.2} s")),
    };
    Some(finding(claim, proof))
}

/// For a failed job, the root cause that the launcher prints; for one that recovered, the rank whose death caused its restart.
fn root_cause(rank: usize, expect: &Expect, seen: &Observed) -> Finding {
    let claim = format!("Rank {rank} is named as the root cause");
    let died = seen.restarts.deaths().next();
    if let Some((other, code)) = died.filter(|(died, _)| *died != rank) {
        return finding(claim, Err(format!("rank {other} died first, with {code}")));
    }
    if expect.exit_code == 0 && seen.events.agents.is_empty() {
        let evidence = "this launcher writes no events, and its report is only printed in the end".into();
        return Finding { claim, verdict: Verdict::NotVerified, evidence };
    }
    if expect.exit_code == 0 {
        let text = died.map(|(_, code)| format!("rank {rank} died first, with {code}"));
        return finding(claim, text.ok_or_else(|| "the agent's events record no death".into()));
    }
    finding(claim, named_in(&seen.output, rank))
}

fn named_in(output: &str, rank: usize) -> Result<String, String> {
    let (_, report) = output.rsplit_once("Root Cause").ok_or("the launcher printed no root cause")?;
    let line =
        report.lines().find(|line| line.trim_start().starts_with("rank")).ok_or("its root cause names no rank")?;
    let named: String = line.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    let text = format!("the report says \"{}\"", line.trim());
    if named.parse() == Ok(rank) { Ok(text) } else { Err(text) }
}

fn says(text: &str, seen: &Observed) -> Finding {
    // A parsed scenario has only valid expressions.
    let found = Regex::new(text).ok().and_then(|text| seen.output.lines().find(|line| text.is_match(line)));
    let proof = found.map(|line| format!("\"{}\"", line.trim())).ok_or_else(|| last_words(seen));
    finding(format!("The output says {text:?}"), proof)
}

/// No process, port or temporary file is left.
pub(crate) fn nothing_leaked(seen: &Observed) -> Finding {
    let claim = "No process, port or temporary file is left";
    match (&*seen.leaks, seen.timed_out) {
        (_, Some(_)) => Finding {
            claim: claim.into(),
            verdict: Verdict::NotVerified,
            evidence: "the run was killed by the harness".into(),
        },
        ([], None) => finding(claim, Ok("none found".into())),
        (leaks, None) => finding(claim, Err(leaks.join("; "))),
    }
}
