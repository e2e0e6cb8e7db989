//! Grades `visible`: processes on a machine with simulated GPUs, with and without a batch system's list.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Runner};

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The number of the opened GPU on the machine, and how many GPUs the process sees.
type Opened = Result<(usize, usize), String>;

struct VisibleCase {
    gpus: usize,
    /// The batch system's list. `None` means all GPUs.
    list: Option<Vec<usize>>,
    local_rank: usize,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let gpus = random.below(4..9);
    // No GPU's position in the list is its number.
    let (shift, length) = (random.below(1..gpus), random.below(2..gpus));
    let list: Vec<usize> = (0..length).map(|place| (place + shift) % gpus).collect();
    // Local rank 1 comes first: for local rank 0, GPU 0 may be right by chance.
    let all = [1, 0, gpus - 1].map(|local_rank| VisibleCase { gpus, list: None, local_rank });
    let listed = [1, 0].map(|local_rank| VisibleCase { gpus, list: Some(list.clone()), local_rank });
    let too_few = [
        VisibleCase { gpus, list: None, local_rank: gpus },
        VisibleCase { gpus, list: Some(list), local_rank: length },
    ];
    // As many as some machines have: a number in a list may have two digits.
    let long = [3, 0, 1].map(|local_rank| VisibleCase { gpus: 16, list: Some(vec![12, 3, 15, 11]), local_rank });
    let cases: Vec<VisibleCase> = all.into_iter().chain(listed).chain(too_few).chain(long).collect();
    let inputs: Vec<_> = cases.iter().map(|case| (case.gpus, case.variables(), case.local_rank)).collect();
    let outputs = runner.call::<_, Opened>(1, &inputs)?;
    for (number, case) in cases.iter().enumerate() {
        case.check(outputs.of(0, number))?;
    }
    Ok(())
}

impl VisibleCase {
    fn variables(&self) -> BTreeMap<&str, String> {
        let text = |list: &Vec<usize>| list.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        self.list.iter().map(|list| (VISIBLE, text(list))).collect()
    }

    /// The job's GPUs.
    fn own(&self) -> Vec<usize> {
        self.list.clone().unwrap_or_else(|| (0..self.gpus).collect())
    }

    fn check(&self, opened: &Opened) -> anyhow::Result<()> {
        let VisibleCase { gpus, local_rank, .. } = self;
        let variable = self.variables().remove(VISIBLE).map_or("not set".to_owned(), |list| format!("\"{list}\""));
        let given = format!("a machine with {gpus} GPUs, {VISIBLE} is {variable}, local rank {local_rank}");
        let observed = match opened {
            Ok((gpu, seen)) => format!("GPU {gpu}, and the process sees {seen}"),
            Err(error) => format!("the error \"{error}\""),
        };
        let own = self.own();
        let Some(expected) = own.get(*local_rank) else {
            return Claim::that(opened.is_err(), "an error", observed)
                .given(given)
                .or_fail("the job has no GPU for this local rank, but the process takes one anyway");
        };
        let claim =
            Claim::that(*opened == Ok((*expected, 1)), format!("GPU {expected}, and the process sees 1"), observed);
        let claim = claim.given(given);
        match opened {
            Ok((gpu, seen)) => claim
                .diagnose_if(
                    *gpu == own[0] && *seen == own.len(),
                    format!(
                        "{VISIBLE} was set when CUDA was already initialized, so it has no effect, and every process opens \
                         the first GPU. Counting the devices is enough to initialize CUDA: set the variable before"
                    ),
                )
                .diagnose_if(
                    gpu == expected,
                    "this is the right GPU, but the process sees the others, too: any library that opens device 0 by default takes \
                     memory on the first process's GPU",
                )
                .diagnose_if(
                    gpu == local_rank && self.list.is_some(),
                    format!(
                        "the batch system has given the job the GPUs in {VISIBLE}, but this process has opened a GPU of another job: the \
                         local rank is a position in that list"
                    ),
                )
                .diagnose_if(
                    self.list.is_some() && self.gpus > 9,
                    "a GPU's number may have two digits, so a position in the list is not a position in its text: split the list at its \
                     commas",
                )
                .or_fail("this is not the GPU of this local rank"),
            Err(error) => claim
                .diagnose_if(
                    self.list.is_some() && self.gpus > 9,
                    "an error, although the list has an entry for this local rank. A number may have two digits: split the list at its \
                     commas",
                )
                .diagnose_if(
                    error.contains("invalid device ordinal") && *local_rank > 0,
                    "a process that sees one GPU knows it as device 0, whatever its number on the machine is",
                )
                .or_fail("an error, although the job has a GPU for this local rank"),
        }
    }
}
