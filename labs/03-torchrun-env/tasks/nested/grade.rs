//! Grades `nested`: a program started by its user, and the same program started by a launcher.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Finding, Runner, Verdict, explain, given, joined};

/// The number of workers that the program is asked to start.
const NPROCS: usize = 2;
/// How many processes the launcher starts.
const LAUNCHED: usize = 2;
/// What its user has set.
const WITH: [&str; 3] =
    ["without any variable", "with MASTER_ADDR and MASTER_PORT set", "without any variable; a signal kills worker 1"];
/// The worker that fails in the last case: neither the first nor the last for which a program waits.
const FAILS: Option<usize> = Some(1);
/// An error that contains one of these words, in capitals or not, explains the problem.
const WORDS: [&str; 6] = ["launch", "torchrun", "lockstep run", "rank", "world", "spawn"];

type Variables = BTreeMap<String, String>;
/// The ranks of the workers that were started, and the error's text.
type Ended = (Vec<usize>, Option<String>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let port = random.below(20_000..60_000).to_string();
    by_hand(runner, &port)?;
    launched(runner, &port)
}

/// The user may have set the address at which the workers meet, as the tutorials' programs do, or nothing.
fn by_hand(runner: &mut Runner, port: &str) -> anyhow::Result<()> {
    let nprocs = NPROCS + 1;
    let address = variables(&[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)]);
    let given_case = |case: usize| format!("nprocs {nprocs}, started by its user, {}", WITH[case]);
    let none = Variables::new();
    let outputs = runner
        .call::<_, Ended>(1, &[(nprocs, [&none], None), (nprocs, [&address], None), (nprocs, [&none], FAILS)])
        .map_err(|error| given(explain(error, why_it_hangs), given_case))?;
    for case in 0..WITH.len() {
        let (started, error) = outputs.of(0, case);
        let observed = format!("workers {}, {}", listed(started), described(error));
        let all = *started == (0..nprocs).collect::<Vec<_>>();
        let (refuses, fails) = (started.is_empty() && error.is_some(), case == 2);
        let expected = format!("workers 0 to {}, {}", nprocs - 1, if fails { "an error" } else { "no error" });
        Claim::that(all && error.is_some() == fails, expected, observed)
            .given(given_case(case))
            .diagnose_if(
                refuses && case == 0,
                "the program refuses, although `variables` is empty: it reads something else, perhaps the environment of this process. Only \
                 `variables` says whether a launcher has started the program",
            )
            .diagnose_if(
                refuses,
                "the program refuses, although its user has started it: an address alone may come from the user. Only RANK and the other \
                 variables of ranks show a launcher",
            )
            .diagnose_if(
                all && fails,
                "a worker failed, and the program reports success: it must look how each worker ended. An end by a signal is a failure, too, \
                 and has no exit code above 0",
            )
            .or_fail("a program that its user has started must start its workers, each with its rank, and wait for them")?;
    }
    Ok(())
}

/// Whatever else the program does, it must not wait for one worker before it has started all.
fn why_it_hangs(finding: &Finding) -> Option<String> {
    (finding.verdict == Verdict::Hang).then(|| {
        "the program does not end. Its workers wait for each other, as in `init_process_group`: start all of them, and only then wait for the \
         end of one"
            .into()
    })
}

fn launched(runner: &mut Runner, port: &str) -> anyhow::Result<()> {
    let of = |rank: usize, world: usize, torchrun: bool| {
        let [rank, world] = [rank, world].map(|number| number.to_string());
        let all = [("RANK", &*rank), ("WORLD_SIZE", &world), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)];
        let more = [("LOCAL_RANK", &*rank), ("LOCAL_WORLD_SIZE", &world), ("TORCHELASTIC_RUN_ID", "job-7")];
        variables(&[&all[..], if torchrun { &more } else { &[] }].concat())
    };
    let several: Vec<Variables> = (0..LAUNCHED).map(|rank| of(rank, LAUNCHED, true)).collect();
    let one: Vec<Variables> = (0..LAUNCHED).map(|_| of(0, 1, true)).collect();
    let other: Vec<Variables> = (0..LAUNCHED).map(|rank| of(rank, LAUNCHED, false)).collect();
    let inputs = [&several, &one, &other].map(|by_rank| (NPROCS, by_rank, None::<usize>));
    let outputs = runner.call::<_, Ended>(LAUNCHED, &inputs)?;
    let ended: Vec<&Ended> = outputs.all(0).collect();
    let all: Vec<usize> = ended.iter().flat_map(|(started, _)| started.iter().copied()).collect();
    let given = format!("nprocs {NPROCS}, started {LAUNCHED} times by a launcher");
    Claim::that(all.is_empty(), "no worker", format!("{} workers, which claim the ranks {}", all.len(), listed(&all)))
        .given(&given)
        .diagnose_if(
            ended.iter().all(|(_, error)| error.is_some()),
            "the program refuses, but only after it has asked for workers, which have claimed their ranks by then: look for the launcher \
             first",
        )
        .diagnose_if(
            ended.iter().all(|(started, _)| started.len() == NPROCS),
            format!(
                "each of the {LAUNCHED} processes that the launcher has started starts {NPROCS} of its own. These {} processes compete for \
                 one address, and several claim to be rank 0: a launched program must not launch others",
                LAUNCHED * NPROCS
            ),
        )
        .diagnose_if(
            !ended[0].0.is_empty(),
            "rank 0 still starts its workers: all ranks were started by a launcher",
        )
        .or_fail("a program that a launcher has started must not start workers")?;
    for (rank, (_, error)) in ended.iter().enumerate() {
        let says = error.as_ref().is_some_and(|text| WORDS.iter().any(|word| text.to_lowercase().contains(word)));
        Claim::that(says, "an error that mentions the launcher", described(error))
            .on_rank(rank)
            .given(&given)
            .diagnose_if(
                error.is_none(),
                "the program does nothing and returns no error: the launcher reports that the job succeeded",
            )
            .or_fail("the error does not say that a launcher has started a program that starts its own processes")?;
    }
    let others = [
        (
            "once by a launcher: RANK=0 WORLD_SIZE=1",
            "a launcher that starts one process is still a launcher: it has its own store, and it may start more next time",
        ),
        (
            "twice by a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT only",
            "the program looks for a variable that torchrun sets and other launchers need not, such as LOCAL_RANK: all of them set RANK and \
             WORLD_SIZE",
        ),
    ];
    for (case, (how, diagnosis)) in others.into_iter().enumerate() {
        for (rank, (started, error)) in outputs.all(case + 1).enumerate() {
            let observed = format!("workers {}, {}", listed(started), described(error));
            Claim::that(started.is_empty() && error.is_some(), "no worker, and an error", observed)
                .on_rank(rank)
                .given(format!("nprocs {NPROCS}, started {how}"))
                .or_fail(diagnosis)?;
        }
    }
    Ok(())
}

fn variables(pairs: &[(&str, &str)]) -> Variables {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn listed(ranks: &[usize]) -> String {
    if ranks.is_empty() { "none".into() } else { joined(ranks, ", ") }
}

fn described(error: &Option<String>) -> String {
    error.as_ref().map_or("no error".to_owned(), |text| format!("the error \"{text}\""))
}
