//! Grades `visible`: processes on a machine with simulated GPUs, with and without a batch system's list.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Runner, Verdict, counted, explain, joined};

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The number of the returned GPU on the machine; the GPU that was opened; the list then, and how many GPUs the process sees.
type Opened = (Result<usize, String>, Option<usize>, Option<String>, usize);

/// The GPUs of a machine on which no number has two digits.
const MOST_WITH_ONE_DIGIT: usize = 10;

struct VisibleCase {
    gpus: usize,
    /// The batch system's list. `None` means all GPUs.
    list: Option<Vec<usize>>,
    local_rank: usize,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let gpus = random.below(5..9);
    // Neither the first GPUs of the machine nor all others: no local rank below 2 is the number of one of the job's GPUs.
    let length = random.below(2..gpus - 1);
    let shift = random.below(2..gpus - length + 1);
    let list: Vec<usize> = (shift..shift + length).collect();
    // Local rank 1 comes first: for local rank 0, GPU 0 may be right by chance.
    let all = [1, 0, gpus - 1].map(|local_rank| VisibleCase { gpus, list: None, local_rank });
    let listed = [1, 0].map(|local_rank| VisibleCase { gpus, list: Some(list.clone()), local_rank });
    let too_few = [
        VisibleCase { gpus, list: None, local_rank: gpus },
        VisibleCase { gpus, list: Some(list), local_rank: length },
    ];
    // As many as some machines have: a number in a list may have two digits.
    let long = [3, 0, 1].map(|local_rank| VisibleCase { gpus: 16, list: Some(vec![12, 3, 15, 11]), local_rank });
    let none = VisibleCase { gpus, list: Some(Vec::new()), local_rank: 0 };
    let cases: Vec<VisibleCase> = all.into_iter().chain(listed).chain(too_few).chain(long).chain([none]).collect();
    let inputs: Vec<_> = cases.iter().map(|case| (case.gpus, case.variables(), case.local_rank)).collect();
    let outputs = runner.call::<_, Opened>(1, &inputs).map_err(|error| {
        let error = explain(error, |finding| {
            let panicked = finding.verdict == Verdict::Crash && finding.diagnosis.contains("panicked");
            panicked.then(|| {
                format!("too few GPUs, or a wrong list, must be an error, not a panic ({})", finding.diagnosis)
            })
        });
        lockstep_grading::given(error, |input| cases[input].given())
    })?;
    for (number, case) in cases.iter().enumerate() {
        case.check(outputs.of(0, number))?;
    }
    Ok(())
}

impl VisibleCase {
    fn variables(&self) -> BTreeMap<&str, String> {
        self.list.iter().map(|list| (VISIBLE, joined(list, ","))).collect()
    }

    /// The job's GPUs.
    fn own(&self) -> Vec<usize> {
        self.list.clone().unwrap_or_else(|| (0..self.gpus).collect())
    }

    fn given(&self) -> String {
        let variable = self.variables().remove(VISIBLE).map_or("not set".to_owned(), |list| format!("\"{list}\""));
        format!("a machine with {} GPUs, {VISIBLE} is {variable}, local rank {}", self.gpus, self.local_rank)
    }

    fn check(&self, (returned, opened, variable, seen): &Opened) -> anyhow::Result<()> {
        let observed = match returned {
            Ok(gpu) => format!("GPU {gpu}, and the process sees {}", counted(*seen, "GPU")),
            Err(error) => format!("the error \"{error}\", and the process sees {}", counted(*seen, "GPU")),
        };
        let own = self.own();
        let Some(expected) = own.get(self.local_rank) else {
            return Claim::that(returned.is_err(), "an error", observed)
                .given(self.given())
                .diagnose_if(
                    own.is_empty(),
                    format!(
                        "{VISIBLE} is set and empty, so the job has no GPU, and the process takes one of another job: return an error"
                    ),
                )
                .or_fail("the job has no GPU for this local rank, but the process takes one anyway");
        };
        let right = returned.as_ref() == Ok(expected) && *opened == Some(*expected) && *seen == 1;
        let claim =
            Claim::that(right, format!("GPU {expected}, and the process sees 1 GPU"), observed).given(self.given());
        // The variable names one GPU, and yet the process sees as many as before.
        let late = *seen == own.len()
            && *seen > 1
            && variable.as_ref().is_some_and(|list| list.trim().parse::<usize>().is_ok());
        let claim = claim.diagnose_if(
            late && opened.is_none_or(|gpu| gpu == own[0]),
            format!(
                "{VISIBLE} was set when CUDA was already initialized, so it has no effect, and every process opens the first GPU. Counting \
                 the devices initializes CUDA: set the variable before that"
            ),
        );
        match returned {
            Ok(gpu) => claim
                .diagnose_if(
                    gpu == expected && opened.is_none(),
                    "this is the number of the right GPU, but the process has not opened it: `open` does that",
                )
                .diagnose_if(
                    gpu == expected,
                    "this is the right GPU, but the process sees the others, too: a library that opens device 0 by default takes memory on \
                     the first process's GPU",
                )
                .diagnose_if(
                    !own.contains(gpu) && self.gpus > MOST_WITH_ONE_DIGIT,
                    "a GPU's number may have two digits, so a position in the list is not a position in its text: split the list at its \
                     commas",
                )
                .diagnose_if(
                    !own.contains(gpu),
                    format!(
                        "the batch system has given the job the GPUs in {VISIBLE}, but this process has opened a GPU of another job: the \
                         local rank is a position in that list"
                    ),
                )
                .or_fail(
                    "this GPU belongs to another process of the job: the local rank is a position in the list, in the order in which the \
                     list is written",
                ),
            Err(error) => claim
                .diagnose_if(
                    self.list.is_some() && self.gpus > MOST_WITH_ONE_DIGIT,
                    "an error, although the list has an entry for this local rank. A number may have two digits: split the list at its \
                     commas",
                )
                .diagnose_if(
                    error.contains("invalid device ordinal") && self.local_rank > 0 && *seen == 1,
                    "a process that sees one GPU knows it as device 0, whatever its number on the machine is",
                )
                .or_fail("an error, although the job has a GPU for this local rank"),
        }
    }
}
