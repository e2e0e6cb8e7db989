//! `lockstep tour --elastic`: trains on several nodes, loses one for good, goes on with the others, takes on a new one, and shows that the
//! result is that of one rank, to the bit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use lockstep_contract::events::AgentEvent;
use lockstep_contract::foreign::escaped;

use crate::evidence::Sizes;
use crate::exit::{Code, Refused};
use crate::fault::{Fault, FaultAction, What, When, Who};
use crate::job_runner::Observed;
use crate::library;
use crate::report::history::History;
use crate::report::{Finding, Report, ReportCase, Screen, Unproven, counted, counts, grouped};
use crate::scenario::{Expect, RunSpec, Scenario};
use crate::suite::{ScenarioOutcome, SuiteRunner, case, finish, job_runner};
use crate::tour::{BATCH, Epoch, Moment, TourOptions, epochs, losses, show_moments, told, train_on};

/// The scenario that it runs, with an arrival after the loss.
const SCENARIO: &str = "lost-for-good";
/// Nodes of one rank each.
const NODES: usize = 4;

/// Runs it.
///
/// # Errors
/// [`Refused`] where lab 06 cannot be compiled, or where the training is too short for a loss and an arrival; a run cannot be made.
pub(crate) fn exec(options: &TourOptions) -> anyhow::Result<Code> {
    let (begin, started) = (Instant::now(), SystemTime::now());
    #[cfg(feature = "whole")]
    if !crate::python_lab::can_have_the_lab()? {
        return Err(Refused(NO_LAB.into()).into());
    }
    let (targets, sizes) = (options.targets()?, options.sizes()?);
    let runner = job_runner(options.launcher.clone(), Some(Duration::from_secs(options.timeout)), true)?;
    let scenario = scenario(options, sizes)?;
    let screen = Screen::new(options.json);
    let mut suite = SuiteRunner::open(runner, options.keep.as_deref())?;
    let RunSpec { nodes, virtual_ranks, .. } = scenario.run;
    let shares = counted(virtual_ranks.unwrap_or_default(), "virtual rank");
    let (train, drawn) = (grouped(sizes.train), if options.data.is_some() { "" } else { "drawn " });
    screen.line(format!("Lockstep tour: {shares} learn {train} {drawn}digits, whatever the number of ranks is"));
    screen.line("\nRun A: one rank trains them all, and nothing happens");
    let one = suite.undisturbed(&scenario.run)?;
    let [lost, back] = [0, 1].map(|index| scenario.faults[index].when.to_string());
    screen
        .line(format!("Run B: {nodes} nodes with a rank each; one is lost for good {lost}, and another comes {back}"));
    let elastic = suite.run(scenario)?;
    let shown = show(&screen, &one.outcome, &elastic);
    let report = Report::here("Lockstep tour --elastic", started, begin.elapsed(), vec![shown]);
    let code = finish(&screen, suite, &report, &targets)?;
    screen.line(format!("the same as a page, with a picture: {}", options.page().display()));
    Ok(code)
}

#[cfg(feature = "whole")]
const NO_LAB: &str = "the elastic tour needs lab 06 in Rust: its Python program, which takes its place outside a checkout, has no \
    virtual ranks. Clone the course, and run `lockstep tour --elastic` there";

/// The library's scenario with this job: the last node is lost after three eighths of all steps, and another comes after five.
fn scenario(options: &TourOptions, sizes: Sizes) -> anyhow::Result<Scenario> {
    let scenario = library::scenario(SCENARIO)?;
    let nodes = options.nprocs.map_or(NODES, usize::from);
    let mut run = RunSpec {
        ranks: nodes,
        nodes,
        virtual_ranks: Some(nodes),
        epochs: options.epochs,
        batch_size: BATCH,
        samples: sizes.train,
        seed: options.seed,
        ..scenario.run
    };
    let steps = run.steps_per_epoch();
    run.save_every_steps = (steps / 4).max(1);
    train_on(&mut run, options.data.as_deref())?;
    let all = options.epochs * steps;
    let [lost, back] = [3, 5].map(|eighths| all * eighths / 8);
    if back <= lost || back + 1 >= all {
        let message = format!(
            "{} are too few to lose a node and to take on another: give more --samples",
            counted(all as usize, "step")
        );
        return Err(Refused(message).into());
    }
    let fault = |at: u64, action| Fault {
        who: Who::Node(nodes - 1),
        when: When { epoch: Some(at / steps), step: Some(at % steps), ..When::default() },
        what: What(vec![action]),
        for_seconds: None,
        replace_after_seconds: None,
    };
    let faults = vec![fault(lost, FaultAction::Kill), fault(back, FaultAction::Join)];
    let world_sizes = vec![nodes, nodes - 1, nodes];
    Ok(Scenario { run, faults, expect: Expect { world_sizes, restarts: Some(2), ..scenario.expect }, ..scenario })
}

/// Prints what happened and what the files prove; returns the report's case.
fn show(screen: &Screen, one: &ScenarioOutcome, elastic: &ScenarioOutcome) -> ReportCase {
    let mut case = case(elastic, Some("lockstep tour --elastic".into()), Some(elastic.scenario.run.seed));
    let learned = |outcome: &ScenarioOutcome| outcome.seen.as_ref().map_or_else(Vec::new, |seen| epochs(&seen.events));
    let epochs = [one, elastic].map(learned);
    case.findings.push(Finding::of("The network learns".into(), learns(&epochs[1])));
    case.tables.push(losses(&epochs));
    let moments: Vec<Moment> = elastic.seen.iter().flat_map(moments).collect();
    show_moments(screen, &moments, case.timeline.as_ref());
    screen.line("\nWhat the files prove");
    for Finding { claim, verdict, evidence } in &case.findings {
        screen.line(escaped(&format!("{} {claim}: {evidence}", verdict.symbol())));
    }
    let verdicts: Vec<_> = case.findings.iter().map(|finding| finding.verdict).collect();
    let seconds = |outcome: &ScenarioOutcome| outcome.seen.as_ref().map_or(0.0, |seen| seen.seconds);
    screen.line(format!("{}; run A took {:.1} s, run B {:.1} s", counts(&verdicts), seconds(one), seconds(elastic)));
    case
}

fn learns(epochs: &[Epoch]) -> Result<String, Unproven> {
    match epochs {
        [first, .., last] if last.loss < first.loss => {
            let right = last
                .accuracy
                .map_or(String::new(), |right| format!("; {:.2} % of the held-out digits right", 100.0 * right));
            Ok(format!("loss {:.4} in the first epoch, {:.4} in the last{right}", first.loss, last.loss))
        }
        [first, .., last] => {
            Err(Unproven::Failed(format!("loss {:.4} in the first epoch, {:.4} in the last", first.loss, last.loss)))
        }
        _ => Err(Unproven::NotVerified("one epoch shows no fall".into())),
    }
}

/// Starts, losses, arrivals, what the agents made of them, resumes and the end, in seconds since the first event of a rank.
fn moments(seen: &Observed) -> Vec<Moment> {
    told(&seen.events, |history| {
        let mut moments = starts(history);
        for injection in seen.injections.iter().filter(|injection| injection.fault.is_some()) {
            moments.push((injection.t, format!("{}: {}", injection.who, injection.what)));
            moments.extend(decision(history, injection.t));
        }
        moments
    })
}

/// The moment at which the last rank of each generation has joined.
fn starts(history: &History<'_>) -> Vec<(f64, String)> {
    let mut joined: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for attempt in &history.attempts {
        joined.entry(attempt.generation).or_default().extend(attempt.joined());
    }
    let told = joined.into_values().filter_map(|times| {
        let last = times.iter().copied().max_by(f64::total_cmp)?;
        Some((last, format!("the job has {}", counted(times.len(), "rank"))))
    });
    told.collect()
}

/// The first decision of an agent after this time to start its workers again.
fn decision(history: &History<'_>, after: f64) -> Option<(f64, String)> {
    let decided = history.agents.values().flatten().filter_map(|(t, event)| match event {
        AgentEvent::Restarting { reason, .. } if *t >= after => Some((*t, reason)),
        _ => None,
    });
    let (t, reason) = decided.min_by(|one, other| one.0.total_cmp(&other.0))?;
    Some((t, format!("the ranks are stopped: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_runner::Injection;
    use crate::report::history::RunEvents;
    use crate::report::testing::{FakeRun, NOON, formed, resume, start, started, step_of};

    #[test]
    fn lists_what_the_harness_did_with_what_the_agents_made_of_it() {
        let restarting = AgentEvent::Restarting { attempt: 0, restarts_left: 0, reason: "node b was lost".into() };
        let run = FakeRun::default().agent("a", 9.0, formed(0, 0, 0, 1)).agent("a", 9.1, started(0, 0, 70));
        let run = run.rank(0, 0, 10.0, start(2, 70)).rank(1, 0, 10.5, start(2, 71)).rank(0, 0, 11.0, step_of(0, 0));
        let run =
            run.agent("a", 12.25, restarting).agent("a", 12.5, formed(1, 1, 0, 1)).agent("a", 12.6, started(1, 0, 80));
        let run = run.rank(0, 0, 13.0, start(1, 80)).rank(0, 0, 13.5, resume(0, 0)).rank(0, 0, 14.0, step_of(0, 1));
        let kill =
            Injection { t: NOON + 12.0, fault: Some(0), who: Who::Node(1), what: "SIGKILL".into(), failed: None };
        let seen = Observed { events: run.0, injections: vec![kill], ..Observed::default() };
        let told: Vec<_> =
            moments(&seen).into_iter().map(|moment| format!("{:.2} {}", moment.at, moment.what)).collect();
        let due = [
            "0.50 the job has 2 ranks",
            "2.00 node 1: SIGKILL",
            "2.25 the ranks are stopped: node b was lost",
            "3.00 the job has 1 rank",
            "3.50 training continues at step 0 of epoch 0, from the newest snapshot",
            "4.00 the last rank is done",
        ];
        assert_eq!(told, due);
        assert_eq!(moments(&Observed { events: RunEvents::default(), ..Observed::default() }), []);
    }

    #[test]
    fn knows_from_the_losses_whether_the_network_learns() {
        let of = |losses: &[f64]| {
            let epochs: Vec<_> = losses.iter().map(|loss| Epoch { loss: *loss, accuracy: Some(0.75) }).collect();
            learns(&epochs)
        };
        assert!(of(&[2.0, 1.0]).unwrap().ends_with("; 75.00 % of the held-out digits right"));
        assert!(matches!(of(&[1.0, 1.0]), Err(Unproven::Failed(_))));
        assert!(matches!(of(&[1.0, f64::NAN]), Err(Unproven::Failed(_))));
        assert!(matches!(of(&[1.0]), Err(Unproven::NotVerified(_))));
    }
}
