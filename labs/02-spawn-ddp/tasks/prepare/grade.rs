//! Grades `prepare`: three ranks and a slow download.

use lockstep_grading::{Claim, Finding, Runner, Verdict, explain, given, joined};

const RANKS: usize = 3;

/// When the last rank comes, and how to say so.
const LAST: [(&str, &str); 3] = [
    ("together", ""),
    ("at_half", "; the last one comes when half of the file is there"),
    ("at_end", "; the last one comes after the download"),
];

/// How often a rank has downloaded the file, and the text that it has read.
type Prepared = (usize, String);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let words: Vec<String> = (0..20).map(|_| random.below(10_000..100_000).to_string()).collect();
    let text = words.join(" ");
    let cases = LAST.map(|(last, _)| (&text, last));
    let outputs = runner.call::<_, Prepared>(RANKS, &cases).map_err(|error| given(explain(error, why), shared))?;
    (0..LAST.len()).try_for_each(|case| check(case, &text, &outputs.all(case).collect::<Vec<_>>()))
}

fn shared(case: usize) -> String {
    format!("{RANKS} ranks that share a disk{}", LAST[case].1)
}

fn check(case: usize, text: &str, prepared: &[&Prepared]) -> anyhow::Result<()> {
    let shared = shared(case);
    let counts: Vec<usize> = prepared.iter().map(|(count, _)| *count).collect();
    Claim::that(counts.iter().sum::<usize>() == 1, "one download", format!("by rank: {}", joined(&counts, ", ")))
        .given(&shared)
        .diagnose_if(counts.iter().all(|count| *count == 0), "no rank downloads the file")
        .diagnose_if(
            LAST[case].0 == "at_end", // and the ranks that came together have downloaded it once
            "a rank that came later downloaded the file again, as if it were the first: choose the rank that downloads by its number, not \
             by which comes first",
        )
        .diagnose_if(
            counts.iter().all(|count| *count > 0),
            "every rank downloads the file: let one rank prepare the data while the others wait. Downloads to one path disturb each other, \
             and downloads in turn or to different paths are still one for each rank",
        )
        .or_fail("the file is downloaded more than once")?;
    for (rank, (_, read)) in prepared.iter().enumerate() {
        let observed = if read.is_empty() { "no text".to_owned() } else { format!("\"{read}\"") };
        Claim::that(text == read, format!("\"{text}\""), observed)
            .on_rank(rank)
            .given(&shared)
            .diagnose_if(
                read.is_empty(),
                "this rank returns no text: every rank reads the file, after the download",
            )
            .diagnose_if(
                read.len() < text.len() && text.starts_with(read.as_str()),
                "this rank has read a file that was not complete: the file exists as soon as its download begins. Wait for the \
                 rank that downloads, not for the file",
            )
            .or_fail("this is not the content of the file")?;
    }
    Ok(())
}

fn why(finding: &Finding) -> Option<String> {
    let rank = finding.rank.unwrap_or(0);
    match finding.verdict {
        Verdict::Crash if finding.diagnosis.contains("(os error 2)") => Some(format!(
            "rank {rank} looked for the file before it was there. `barrier` waits for the other ranks, however long the download takes, if \
             every rank calls it, and the one that downloads calls it after its download ({})",
            finding.diagnosis
        )),
        Verdict::Crash if finding.diagnosis.contains("(os error 17)") => Some(format!(
            "another rank created the folder before rank {rank} did: only one rank may create it ({})",
            finding.diagnosis
        )),
        Verdict::Hang => {
            let ranks = |words: &str| finding.table.iter().filter(|line| line.contains(words)).count();
            let some = ranks("barrier") > 0 && ranks("has finished") > 0;
            some.then(|| {
                "some ranks wait in the barrier for those that never call it: every rank must call it, including the one that downloads"
                    .to_owned()
            })
        }
        _ => None,
    }
}
