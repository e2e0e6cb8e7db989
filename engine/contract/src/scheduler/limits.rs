//! When a scheduler ends a job, and how long it waits between SIGTERM and SIGKILL.
//!
//! If no variable gives an answer, a command of the scheduler does. A [`Question`] is that command and the function that reads its
//! output; the caller runs it, since it costs a process and a request to the scheduler. Also: how often the job was started before.

use std::time::{Duration, SystemTime};

use chrono::NaiveDateTime;

use super::{Allocation, Read, Scheduler};

/// PBS's delay if a queue has none of its own (PBS Professional Reference Guide, queue attribute `kill_delay`).
const KILL_DELAY: Duration = Duration::from_secs(10);

/// A command, and what its output says.
#[derive(Clone, Debug)]
pub struct Question<T> {
    /// The program and its arguments, to be run with `TZ=UTC` and `LC_ALL=C`: PBS prints dates.
    pub words: Vec<String>,
    answer: fn(&str, SystemTime) -> Option<T>,
}

/// What a scheduler's command says about a running job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobState {
    /// When it ends; `None` without a time limit.
    pub end: Option<SystemTime>,
    /// How often it was started before, if no variable says so.
    pub restarts: Option<u32>,
}

impl<T> Question<T> {
    fn new(words: &[&str], answer: fn(&str, SystemTime) -> Option<T>) -> Self {
        Question { words: words.iter().map(|word| (*word).to_owned()).collect(), answer }
    }

    /// Reads the command's output, printed at this time; `None` if it has no answer.
    #[must_use]
    pub fn read(&self, output: &str, now: SystemTime) -> Option<T> {
        (self.answer)(output, now)
    }
}

/// When the job ends, by the variable of newer versions of Slurm (sbatch(1), SLURM_JOB_END_TIME).
#[must_use]
pub fn job_end(read: &Read<'_>) -> Option<SystemTime> {
    let seconds = (read.variable)("SLURM_JOB_END_TIME")?.trim().parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// How often Slurm has started this job before; `None` without Slurm. PBS says it only when it is [asked](Allocation::ask_for_state).
#[must_use]
pub fn restarts(read: &Read<'_>) -> Option<u32> {
    let variable = |name: &str| (read.variable)(name).filter(|value| !value.is_empty());
    variable("SLURM_JOB_ID")?;
    Some(variable("SLURM_RESTART_COUNT").and_then(|text| text.parse().ok()).unwrap_or(0))
}

impl Allocation {
    /// Asks when this job ends; `None` without a scheduler that ends jobs.
    #[must_use]
    pub fn ask_for_state(&self) -> Option<Question<JobState>> {
        match self.scheduler {
            // The time that is left, because squeue prints the end in the local time of the machine.
            Scheduler::Slurm => {
                let job = self.id.split('.').next().unwrap_or_default();
                Some(Question::new(&["squeue", "--noheader", "--format=%L", "--jobs", job], slurm_state))
            }
            Scheduler::Pbs => Some(Question::new(&["qstat", "-f", &self.id], pbs_state)),
            Scheduler::Mpi | Scheduler::HostFile => None,
        }
    }

    /// Asks how long processes of this job have between SIGTERM and SIGKILL; `None` without a scheduler that ends jobs.
    #[must_use]
    pub fn ask_for_grace(&self, read: &Read<'_>) -> Option<Question<Duration>> {
        match self.scheduler {
            Scheduler::Slurm => Some(Question::new(&["scontrol", "show", "config"], kill_wait)),
            Scheduler::Pbs => {
                let queue = (read.variable)("PBS_QUEUE")?;
                Some(Question::new(&["qstat", "-Q", "-f", &queue], kill_delay))
            }
            Scheduler::Mpi | Scheduler::HostFile => None,
        }
    }
}

/// The earliest end among the parts of a heterogeneous job.
fn slurm_state(output: &str, now: SystemTime) -> Option<JobState> {
    let end = output.lines().filter_map(|line| now.checked_add(duration(line.trim())?)).min()?;
    Some(JobState { end: Some(end), restarts: None })
}

/// `KillWait                = 30 sec`.
fn kill_wait(output: &str, _: SystemTime) -> Option<Duration> {
    let seconds = attribute(output, "KillWait")?.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn pbs_state(output: &str, now: SystemTime) -> Option<JobState> {
    // OpenPBS counts all starts.
    let starts = attribute(output, "run_count").and_then(|text| text.parse::<u32>().ok());
    let restarts = starts.map(|starts| starts.saturating_sub(1));
    let end = pbs_end(output, now);
    (end.is_some() || restarts.is_some()).then_some(JobState { end, restarts })
}

/// Torque prints the time that is left; PBS Pro and OpenPBS print when the job began.
fn pbs_end(output: &str, now: SystemTime) -> Option<SystemTime> {
    if let Some(left) = attribute(output, "Walltime.Remaining").and_then(|text| text.parse().ok()) {
        return now.checked_add(Duration::from_secs(left));
    }
    let began = NaiveDateTime::parse_from_str(attribute(output, "stime")?, "%a %b %e %H:%M:%S %Y").ok()?;
    let began =
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(began.and_utc().timestamp().try_into().ok()?))?;
    began.checked_add(duration(attribute(output, "Resource_List.walltime")?)?)
}

fn kill_delay(output: &str, _: SystemTime) -> Option<Duration> {
    let given =
        attribute(output, "kill_delay").map_or(Some(KILL_DELAY), |text| Some(Duration::from_secs(text.parse().ok()?)));
    // Without a queue type, this is the output of something else.
    given.filter(|_| attribute(output, "queue_type").is_some())
}

/// The value in a line `name = value`.
fn attribute<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = output.lines().filter_map(|line| line.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// `[days-][hours:]minutes:seconds`, as Slurm and PBS print durations.
fn duration(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let seconds = parts.iter().try_fold(0_u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    Some(Duration::from_secs(days.checked_mul(86_400)?.checked_add(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::testing::find;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        NOW + Duration::from_secs(seconds)
    }

    fn with<T>(variables: &[(&str, &str)], ask: impl FnOnce(&Read<'_>) -> T) -> T {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        ask(&Read { variable: &variable, file: &|_: &str| Err(std::io::ErrorKind::NotFound.into()) })
    }

    #[test]
    fn reads_slurms_variable() {
        let end = |text| with(&[("SLURM_JOB_END_TIME", text)], job_end);
        assert_eq!(end("1763635200"), Some(at(1_763_635_200)));
        assert_eq!((end("soon"), with(&[], job_end)), (None, None));
    }

    #[test]
    fn counts_the_starts_of_a_slurm_job() {
        let of = |variables: &[(&str, &str)]| with(variables, restarts);
        let count = ("SLURM_RESTART_COUNT", "2");
        assert_eq!(
            [of(&[("SLURM_JOB_ID", "17")]), of(&[("SLURM_JOB_ID", "17"), count]), of(&[count])],
            [Some(0), Some(2), None]
        );
    }

    #[test]
    fn asks_slurm_for_the_time_that_is_left() {
        let job = find(&[("SLURM_JOB_ID", "17"), ("SLURM_STEP_ID", "0")], &[], None).unwrap();
        let question = job.ask_for_state().unwrap();
        assert_eq!(question.words.join(" "), "squeue --noheader --format=%L --jobs 17");
        let ends = [("9:57\n", 597), ("1-02:03:04\n", 93_784), ("1:00:00\n0:59\n", 59), ("0:00\n", 0)];
        assert!(
            ends.iter()
                .all(|(output, left)| question.read(output, at(5)).and_then(|state| state.end) == Some(at(5 + left)))
        );
        for none in ["", "UNLIMITED\n", "INVALID\n", "NOT_SET\n", "slurm_load_jobs error: Invalid job id\n", "1:2:3:4"]
        {
            assert!(question.read(none, NOW).is_none(), "{none}");
        }
    }

    #[test]
    fn asks_slurm_for_its_grace() {
        let job = find(&[("SLURM_JOB_ID", "17")], &[], None).unwrap();
        let question = with(&[], |read| job.ask_for_grace(read)).unwrap();
        let output = "Configuration data as of 2025\nKeepAliveTime           = SYSTEM_DEFAULT\nKillOnBadExit           = 0\nKillWait                = 600 sec\n";
        assert_eq!(question.read(output, NOW), Some(Duration::from_secs(600)));
        assert_eq!(question.read("Slurmctld is down\n", NOW), None);
    }

    /// As printed by qstat of OpenPBS and of Torque.
    #[test]
    fn asks_pbs_for_the_start_and_the_limit() {
        let job = find(&[("PBS_JOBID", "5.head")], &[], None).unwrap();
        let question = job.ask_for_state().unwrap();
        assert_eq!(question.words.join(" "), "qstat -f 5.head");
        let open = "Job Id: 5.head\n    Job_Name = train\n    Resource_List.walltime = 01:00:00\n    run_count = 2\n    stime = Tue Nov  4 10:00:00 2025\n    Variable_List = A=1,\n\tPBS_O_HOME=/home/a\n";
        assert_eq!(question.read(open, NOW), Some(JobState { end: Some(at(1_762_250_400 + 3600)), restarts: Some(1) }));
        let torque = "Job Id: 5.head\n    Resource_List.walltime = 01:00:00\n    Walltime.Remaining = 1200\n";
        assert_eq!(question.read(torque, at(7)), Some(JobState { end: Some(at(1207)), restarts: None }));
        for none in ["", "qstat: Unknown Job Id 5.head\n", "    stime = Tue Nov  4 10:00:00 2025\n"] {
            assert_eq!(question.read(none, NOW), None, "{none}");
        }
    }

    #[test]
    fn asks_pbs_for_the_queues_delay() {
        let job = find(&[("PBS_JOBID", "5.head")], &[], None).unwrap();
        let question = with(&[("PBS_QUEUE", "gpu")], |read| job.ask_for_grace(read)).unwrap();
        assert_eq!(question.words.join(" "), "qstat -Q -f gpu");
        let queue = "Queue: gpu\n    queue_type = Execution\n";
        assert_eq!(question.read(queue, NOW), Some(KILL_DELAY));
        assert_eq!(question.read(&format!("{queue}    kill_delay = 60\n"), NOW), Some(Duration::from_secs(60)));
        assert_eq!(question.read("", NOW), None);
        assert!(with(&[], |read| job.ask_for_grace(read)).is_none());
    }
}
