//! Task `nested`: a program that its user starts, and the same started by a launcher.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Stage};

/// How many workers the program is told to start.
const NPROCS: usize = 2;
/// How many times a launcher starts it.
const LAUNCHED: usize = 2;
/// An error with one of these says what is wrong.
const WORDS: [&str; 6] = ["launch", "torchrun", "lockstep run", "RANK", "WORLD_SIZE", "spawn"];

type Variables = BTreeMap<String, String>;
/// The ranks of the workers that were started; the error's text.
type Ended = (Vec<usize>, Option<String>);

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let port = random.below(20_000..60_000).to_string();
    by_hand(stage, &port)?;
    launched(stage, &port)
}

/// The user may have set where the workers are to meet, as the tutorials' programs do themselves.
fn by_hand(stage: &mut Stage, port: &str) -> anyhow::Result<()> {
    let nprocs = NPROCS + 1;
    let address = variables(&[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)]);
    let outputs = stage.call::<_, Ended>(1, &[(nprocs, [&address])])?;
    let (started, error) = outputs.of(0, 0);
    let observed = format!("workers {started:?}, {}", told(error));
    let right = *started == (0..nprocs).collect::<Vec<_>>() && error.is_none();
    Claim::that(right, format!("workers 0 to {}", nprocs - 1), observed)
        .given(format!("nprocs {nprocs}, started by its user, with MASTER_ADDR and MASTER_PORT set"))
        .knows(
            started.is_empty() && error.is_some(),
            "the program refuses, although no launcher has started it: an address alone may come from the user. What only a \
             launcher sets are the ranks",
        )
        .otherwise("a program that its user has started makes its workers, each with its rank, and waits for them")
}

fn launched(stage: &mut Stage, port: &str) -> anyhow::Result<()> {
    let of = |rank: usize, world: usize| {
        let [rank, world] = [rank, world].map(|number| number.to_string());
        variables(&[
            ("RANK", &rank),
            ("LOCAL_RANK", &rank),
            ("WORLD_SIZE", &world),
            ("LOCAL_WORLD_SIZE", &world),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", port),
            ("TORCHELASTIC_RUN_ID", "job-7"),
        ])
    };
    let several: Vec<Variables> = (0..LAUNCHED).map(|rank| of(rank, LAUNCHED)).collect();
    let one: Vec<Variables> = (0..LAUNCHED).map(|_| of(0, 1)).collect();
    let outputs = stage.call::<_, Ended>(LAUNCHED, &[(NPROCS, &several), (NPROCS, &one)])?;
    let ended: Vec<&Ended> = outputs.all(0).collect();
    let all: Vec<usize> = ended.iter().flat_map(|(started, _)| started.iter().copied()).collect();
    let given = format!("nprocs {NPROCS}, started {LAUNCHED} times by a launcher");
    Claim::that(all.is_empty(), "no worker", format!("{} workers, which say that their ranks are {all:?}", all.len()))
        .given(&given)
        .knows(
            ended.iter().all(|(started, _)| started.len() == NPROCS),
            format!(
                "each of the {LAUNCHED} processes that the launcher has started starts {NPROCS} of its own: {} processes, of \
                 which several say that they are rank 0, fight over one address. Who was launched must not launch",
                LAUNCHED * NPROCS
            ),
        )
        .knows(
            !ended[0].0.is_empty(),
            "rank 0 goes on to start its workers: whether a launcher is there is not a matter of rank",
        )
        .otherwise("a program that a launcher has started must not start workers")?;
    for (rank, (_, error)) in ended.iter().enumerate() {
        let says = error.as_ref().is_some_and(|text| WORDS.iter().any(|word| text.contains(word)));
        Claim::that(says, "an error that speaks of the launcher", told(error))
            .on_rank(rank)
            .given(&given)
            .knows(
                error.is_none(),
                "the program does nothing and says nothing: the launcher takes that for a job well done",
            )
            .otherwise("the error does not say that a launcher has started a program that makes its own processes")?;
    }
    let (started, error) = outputs.of(0, 1);
    Claim::that(
        started.is_empty() && error.is_some(),
        "no worker, and an error",
        format!("{started:?}, {}", told(error)),
    )
    .on_rank(0)
    .given(format!("nprocs {NPROCS}, started once by a launcher: RANK=0 WORLD_SIZE=1"))
    .otherwise(
        "a launcher that starts one process is a launcher, too: it has its own store, and will start more another day",
    )
}

fn variables(pairs: &[(&str, &str)]) -> Variables {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn told(error: &Option<String>) -> String {
    error.as_ref().map_or("no error".to_owned(), |text| format!("the error \"{text}\""))
}
