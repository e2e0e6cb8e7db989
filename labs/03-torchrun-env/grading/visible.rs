//! Task `visible`: processes of a machine with simulated GPUs, with and without a batch system's list.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Stage};

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPU that was opened, by its number in the machine, and how many the process sees.
type Opened = Result<(usize, usize), String>;

/// A process.
struct Case {
    gpus: usize,
    /// The batch system's list, or all.
    list: Option<Vec<usize>>,
    local_rank: usize,
}

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let gpus = random.below(4..9);
    // No GPU of the list stands at the place of its own number.
    let (shift, length) = (random.below(1..gpus), random.below(2..gpus));
    let list: Vec<usize> = (0..length).map(|place| (place + shift) % gpus).collect();
    // Local rank 1 comes first: GPU 0 is right for local rank 0 by chance, too.
    let all = [1, 0, gpus - 1].map(|local_rank| Case { gpus, list: None, local_rank });
    let listed = [1, 0].map(|local_rank| Case { gpus, list: Some(list.clone()), local_rank });
    let too_few = [Case { gpus, list: None, local_rank: gpus }, Case { gpus, list: Some(list), local_rank: length }];
    let cases: Vec<Case> = all.into_iter().chain(listed).chain(too_few).collect();
    let inputs: Vec<_> = cases.iter().map(|case| (case.gpus, case.variables(), case.local_rank)).collect();
    let outputs = stage.call::<_, Opened>(1, &inputs)?;
    for (number, case) in cases.iter().enumerate() {
        case.judge(outputs.of(0, number))?;
    }
    Ok(())
}

impl Case {
    fn variables(&self) -> BTreeMap<&str, String> {
        let text = |list: &Vec<usize>| list.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        self.list.iter().map(|list| (VISIBLE, text(list))).collect()
    }

    /// The job's GPUs.
    fn own(&self) -> Vec<usize> {
        self.list.clone().unwrap_or_else(|| (0..self.gpus).collect())
    }

    fn judge(&self, opened: &Opened) -> anyhow::Result<()> {
        let Case { gpus, local_rank, .. } = self;
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
                .otherwise("the job has no GPU for this local rank, and the process takes one all the same");
        };
        let claim =
            Claim::that(*opened == Ok((*expected, 1)), format!("GPU {expected}, and the process sees 1"), observed);
        let claim = claim.given(given);
        match opened {
            Ok((gpu, seen)) => claim
                .knows(
                    *gpu == own[0] && *seen == own.len(),
                    format!(
                        "{VISIBLE} was set when CUDA was up already, so it has no effect, and every process opens the first \
                         GPU. Counting the devices is enough to bring CUDA up: set the variable before"
                    ),
                )
                .knows(
                    gpu == expected,
                    "the right GPU, but the process sees the others, too: any part of it that opens device 0 by default takes \
                     memory on the first process's GPU",
                )
                .knows(
                    gpu == local_rank && self.list.is_some(),
                    format!(
                        "the batch system has given the job the GPUs in {VISIBLE}, and this process has taken another's: the \
                         local rank counts among those of the list"
                    ),
                )
                .otherwise("not the GPU of this local rank"),
            Err(error) => claim
                .knows(
                    error.contains("invalid device ordinal") && *local_rank > 0,
                    "a process that sees one GPU knows it as device 0, whatever its number in the machine is",
                )
                .otherwise("an error, although the job has a GPU for this local rank"),
        }
    }
}
