//! Grades `fill_pipeline`: whether the table is a schedule, how many micro-batches each stage holds, how long it takes, and the bubble.

use lockstep_cost::{Action, Schedule, ScheduleError};
use lockstep_grading::{Claim, Finding, Runner, Verdict, counted, explain};

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let stages = random.below(3..5);
    let cases = [(stages, stages + random.below(2..6)), (2, random.below(3..6)), (1, 2), (4, 3)];
    let outputs = runner.call::<_, (Vec<Vec<String>>, f64)>(1, &cases)?;
    for (number, case) in cases.into_iter().enumerate() {
        let (table, bubble) = outputs.of(0, number);
        check(case, table, *bubble)?;
    }
    // Fewer micro-batches than there are stages after the first.
    let few = (stages + 1, random.below(1..stages));
    let outputs = runner.call::<_, (Vec<Vec<String>>, f64)>(1, &[few]);
    let outputs = outputs.map_err(|error| explain(error, |finding| why(few, finding)))?;
    let (table, bubble) = outputs.of(0, 0);
    check(few, table, *bubble)
}

fn why((stages, micro_batches): (usize, usize), finding: &Finding) -> Option<String> {
    (finding.verdict == Verdict::Crash).then(|| {
        format!(
            "{}. This was with p = {stages} and m = {micro_batches}: the first stage has fewer micro-batches than there are stages after \
             it, so it begins with all of them",
            finding.diagnosis,
        )
    })
}

fn action(text: &str) -> anyhow::Result<Action> {
    let number = text[1..].parse()?;
    Ok(if text.starts_with('F') { Action::Forward(number) } else { Action::Backward(number) })
}

fn check((stages, micro_batches): (usize, usize), table: &[Vec<String>], bubble: f64) -> anyhow::Result<()> {
    let given = format!("{}, {}", counted(stages, "stage"), counted(micro_batches, "micro-batch"));
    let rows: Vec<Vec<Action>> =
        table.iter().map(|row| row.iter().map(|text| action(text)).collect()).collect::<anyhow::Result<_>>()?;
    let schedule = Schedule::new(rows).map_err(|error| {
        let why = match error {
            ScheduleError::Deadlock { .. } => {
                format!("{error}. Messages come in the order in which the neighbour sends them")
            }
            ScheduleError::Missing { action: Action::Forward(number) | Action::Backward(number), .. } if number >= micro_batches => {
                format!(
                    "a stage has micro-batch {number}, and the last one is {}: with fewer micro-batches than stages, the first stages \
                     begin with all of them",
                    micro_batches - 1
                )
            }
            _ => error.to_string(),
        };
        Finding::new(Verdict::WrongValue, why).given(&given)
    })?;
    Claim::equal(&(stages, micro_batches), &(schedule.stages(), schedule.micro_batches()))
        .given(&given)
        .or_fail("the table has another number of stages or micro-batches")?;
    check_peaks(&given, &schedule)?;
    check_waits(&given, &schedule)?;
    let expected = schedule.bubble(1, 1);
    Claim::close(&[expected], &[bubble], 1e-9)
        .given(given)
        .diagnose_if(
            (bubble - (stages - 1) as f64 / micro_batches as f64).abs() < 1e-9,
            "this is the time of waiting divided by the time of work: the bubble is the share of waiting in the whole time",
        )
        .or_fail("the table is right. A stage works in 2·m units of time and waits in 2·(p − 1)")
}

/// The least bubble is (p − 1) / (m + p − 1).
fn check_waits(given: &str, schedule: &Schedule) -> anyhow::Result<()> {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches());
    let least = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
    let found = schedule.bubble(1, 1);
    let at_once = |stage: usize| schedule.actions(stage).get(1) == Some(&Action::Backward(0));
    Claim::that(found < least + 1e-9, format!("a bubble of {least:.3}"), format!("{found:.3}\n{schedule}"))
        .given(given)
        .diagnose_if(
            stages > 1 && at_once(0),
            "stage 0 waits for the first gradient after a single forward pass, and meanwhile the others have no work: begin with a \
             forward pass for each stage that follows",
        )
        .diagnose_if(
            (0..stages - 1).any(|stage| schedule.peak(stage) < (stages - stage).min(micro_batches)),
            "a stage holds fewer micro-batches than it may, and so it waits: its first one comes back only after all later stages. Until \
             then the stage needs one forward pass for each of them and one of its own",
        )
        .or_fail("the stages wait longer than they must")
}

fn check_peaks(given: &str, schedule: &Schedule) -> anyhow::Result<()> {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches());
    let peaks: Vec<usize> = (0..stages).map(|stage| schedule.peak(stage)).collect();
    let limits: Vec<usize> = (0..stages).map(|stage| (stages - stage).min(micro_batches)).collect();
    let all_are = |peak: usize| peaks.iter().all(|found| *found == peak);
    Claim::that(
        peaks.iter().zip(&limits).all(|(peak, limit)| peak <= limit),
        format!("at most {limits:?} micro-batches at once, by stage"),
        format!("{peaks:?}"),
    )
    .given(given)
    .diagnose_if(
        all_are(micro_batches) && micro_batches > stages,
        "it is as fast as possible, but each stage holds the activations of all micro-batches at once: begin the backward passes as soon \
         as the last stage has a first micro-batch",
    )
    .diagnose_if(
        all_are(stages.min(micro_batches)),
        "all stages begin with as many forward passes as the first: stage s needs only one for each stage after it",
    )
    .or_fail("a stage begins with more forward passes than there are stages after it: it holds activations without being done earlier")
}
