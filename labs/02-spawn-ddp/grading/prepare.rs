//! Task `prepare`: three ranks, and a download that takes its time.

use lockstep_grading::{Claim, Fault, Stage, Verdict, explain};

const RANKS: usize = 3;

/// How often a rank has downloaded the file, and what it has read.
type Prepared = (usize, String);

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let words: Vec<String> = (0..20).map(|_| random.below(10_000..100_000).to_string()).collect();
    let text = words.join(" ");
    let outputs = stage.call::<_, Prepared>(RANKS, &[&text]).map_err(|error| explain(error, why))?;
    let counts: Vec<usize> = outputs.all(0).map(|(count, _)| *count).collect();
    let given = format!("{RANKS} ranks that share a disk");
    Claim::that(counts.iter().sum::<usize>() == 1, "one download", format!("by rank: {counts:?}"))
        .given(&given)
        .knows(
            counts.iter().all(|count| *count > 0),
            "every rank downloads the file, and all write to the same place at the same time: one rank prepares the data, and \
             the others wait for it",
        )
        .knows(counts.iter().all(|count| *count == 0), "nobody downloads the file")
        .otherwise("the file is downloaded more than once")?;
    for (rank, (_, read)) in outputs.all(0).enumerate() {
        Claim::equal(&text, read)
            .on_rank(rank)
            .given(&given)
            .knows(
                read.len() < text.len() && text.starts_with(read.as_str()),
                "this rank has read a file that was not complete: a file is there as soon as its download begins. Wait for the \
                 rank that downloads, not for the file",
            )
            .otherwise("this is not what the file holds")?;
    }
    Ok(())
}

/// What it means that ranks did not get through.
fn why(fault: &Fault) -> Option<String> {
    let rank = fault.rank.unwrap_or(0);
    match fault.verdict {
        Verdict::Crash if fault.diagnosis.contains("(os error 2)") => Some(format!(
            "rank {rank} looked for the file before it was there: it did not wait for the rank that downloads. A barrier holds \
             back those alone who call it, so every rank must ({})",
            fault.diagnosis
        )),
        Verdict::Crash if fault.diagnosis.contains("(os error 17)") => {
            Some(format!("another rank has made the folder before rank {rank} did: only one may ({})", fault.diagnosis))
        }
        Verdict::Hang => {
            let ranks = |words: &str| fault.table.iter().filter(|line| line.contains(words)).count();
            let some = ranks("barrier") > 0 && ranks("has finished") > 0;
            some.then(|| "some ranks wait in the barrier for those that never call it: every rank must, the one that has downloaded the file, too".to_owned())
        }
        _ => None,
    }
}
