//! The job's time limit: when the workers save a snapshot and end, so that no step is lost.
//!
//! Pure: [`super::run`] waits, asks the scheduler and signals the workers. Only the first agent of a job does this: a request to one rank
//! reaches all.

use std::time::{Duration, Instant, SystemTime};

use lockstep_contract::scheduler::{self, Allocation, JobState, Question, Read};

/// How long before the end the workers are asked, by default: this, or a tenth of the time that is left when the agent learns the end,
/// if that is less.
const NOTICE: Duration = Duration::from_secs(60);

/// How long after the first start the scheduler is asked for the end. Jobs that are over by then send it no request.
const ASK_AFTER: Duration = Duration::from_secs(20);

/// What is known of the time limit.
pub(super) struct TimeLimit {
    /// `--save-before-limit`.
    notice: Option<Duration>,
    question: Option<(Instant, Question<JobState>)>,
    end: Option<End>,
    /// The workers could not be asked the first time.
    retried: bool,
}

/// The end of the job.
struct End {
    at: Instant,
    ask_at: Instant,
    /// Who says so.
    from: String,
}

/// What is to be done now.
#[derive(Debug)]
pub(super) enum Due {
    /// Ask the scheduler for the end.
    Ask(Question<JobState>),
    /// Ask the workers to save a snapshot and to end, because the job ends at `end`, according to `from`.
    Save { end: Instant, from: String },
}

impl TimeLimit {
    /// The limit that the user, a variable or the scheduler's command gives, in this order. `limit` is `--time-limit`,
    /// `notice` is `--save-before-limit`. If `notice` is 0, there is no limit.
    pub(super) fn new(
        (limit, notice): (Option<Duration>, Option<Duration>),
        job: Option<&Allocation>,
        read: &Read<'_>,
        (now, wall): (Instant, SystemTime),
    ) -> Self {
        let mut known = TimeLimit { notice, question: None, end: None, retried: false };
        if notice == Some(Duration::ZERO) {
            return known;
        }
        if let Some(limit) = limit {
            known.ends_in(limit, "--time-limit".to_owned(), now);
        } else if let Some(end) = job.and_then(|_| scheduler::job_end(read)) {
            known.ends_in(end.duration_since(wall).unwrap_or_default(), "SLURM_JOB_END_TIME".to_owned(), now);
        } else {
            known.question = job.and_then(Allocation::ask_for_state).map(|question| (now + ASK_AFTER, question));
        }
        known
    }

    /// The scheduler has answered: `end` by this clock, or nothing.
    pub(super) fn answered(&mut self, end: Option<SystemTime>, from: String, (now, wall): (Instant, SystemTime)) {
        if let Some(end) = end {
            self.ends_in(end.duration_since(wall).unwrap_or_default(), from, now);
        }
    }

    fn ends_in(&mut self, left: Duration, from: String, now: Instant) {
        let notice = self.notice.unwrap_or_else(|| NOTICE.min(left / 10));
        // A job that has less time than the notice is not ended before it has begun: SIGTERM at its limit is a request, too.
        self.end = now.checked_add(left).filter(|_| left > notice).map(|at| End { at, ask_at: at - notice, from });
    }

    /// The workers cannot save yet: they are asked again `at`, unless the job has ended by then. Returns true the first time.
    pub(super) fn retry(&mut self, at: Instant, end: Instant, from: String) -> bool {
        self.end = (at < end).then_some(End { at: end, ask_at: at, from });
        !std::mem::replace(&mut self.retried, true)
    }

    /// When something is due.
    pub(super) fn at(&self) -> Option<Instant> {
        let question = self.question.as_ref().map(|(at, _)| *at);
        question.into_iter().chain(self.end.as_ref().map(|end| end.ask_at)).min()
    }

    /// What is due now; each once.
    pub(super) fn due(&mut self, now: Instant) -> Option<Due> {
        if let Some((_, question)) = self.question.take_if(|(at, _)| *at <= now) {
            return Some(Due::Ask(question));
        }
        let End { at, from, .. } = self.end.take_if(|end| end.ask_at <= now)?;
        Some(Due::Save { end: at, from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn limit(flags: (Option<Duration>, Option<Duration>), variables: &[(&str, &str)], now: Instant) -> TimeLimit {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let read = Read { variable: &variable, file: &|_: &str| Err(std::io::ErrorKind::NotFound.into()) };
        let job = Allocation::find(&read, None).unwrap();
        TimeLimit::new(flags, job.as_ref(), &read, (now, SystemTime::UNIX_EPOCH))
    }

    #[track_caller]
    fn assert_saves(limit: &mut TimeLimit, at: Instant, left: Duration, from: &str) {
        assert_eq!(limit.at(), Some(at));
        assert!(limit.due(at - Duration::from_millis(1)).is_none());
        let Some(Due::Save { end, from: by }) = limit.due(at) else { panic!("nothing is due") };
        assert_eq!((end - at, by.as_str()), (left, from));
        assert_eq!(limit.at(), None, "once");
    }

    #[test]
    fn saves_a_minute_before_the_end_that_the_user_gives() {
        let now = Instant::now();
        let mut hour = limit((Some(60 * MINUTE), None), &[("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "9")], now);
        assert_saves(&mut hour, now + 59 * MINUTE, MINUTE, "--time-limit");
    }

    #[test]
    fn saves_before_the_end_that_slurms_variable_says() {
        let now = Instant::now();
        let slurm = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "3600")];
        assert_saves(&mut limit((None, None), &slurm, now), now + 59 * MINUTE, MINUTE, "SLURM_JOB_END_TIME");
        let early = limit((None, Some(5 * MINUTE)), &slurm, now).at();
        assert_eq!(early, Some(now + 55 * MINUTE));
        // A variable that is left over from another job.
        assert_eq!(limit((None, None), &slurm[1..], now).at(), None);
    }

    #[test]
    fn asks_the_scheduler_once_where_no_variable_says_the_end() {
        let now = Instant::now();
        let mut asked = limit((None, None), &[("SLURM_JOB_ID", "17")], now);
        assert_eq!(asked.at(), Some(now + ASK_AFTER));
        assert!(asked.due(now).is_none());
        let Some(Due::Ask(question)) = asked.due(now + ASK_AFTER) else { panic!("nothing is asked") };
        assert_eq!((question.words[0].as_str(), asked.at()), ("squeue", None));
        let wall = SystemTime::UNIX_EPOCH;
        asked.answered(Some(wall + 5 * MINUTE), "squeue".into(), (now, wall));
        assert_saves(&mut asked, now + 5 * MINUTE - 30 * MINUTE / 60, MINUTE / 2, "squeue");
        asked.answered(None, "squeue".into(), (now, wall));
        assert_eq!(asked.at(), None);
    }

    #[test]
    fn asks_workers_again_that_cannot_save_yet_until_the_end() {
        let now = Instant::now();
        let mut asked = limit((Some(60 * MINUTE), None), &[], now);
        let (first, end) = (now + 59 * MINUTE, now + 60 * MINUTE);
        assert!(asked.due(first).is_some());
        let second = Duration::from_secs(1);
        assert!(asked.retry(first + second, end, "--time-limit".into()));
        assert_saves(&mut asked, first + second, MINUTE - second, "--time-limit");
        assert!(!asked.retry(end, end, "--time-limit".into()), "only once");
        assert_eq!(asked.at(), None, "the job has ended by then");
    }

    #[test]
    fn leaves_a_job_alone_that_has_no_limit_or_hardly_any_time_left() {
        let now = Instant::now();
        let slurm = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "3600")];
        assert_eq!(limit((None, Some(Duration::ZERO)), &slurm, now).at(), None);
        assert_eq!(limit((None, Some(Duration::ZERO)), &slurm[..1], now).at(), None);
        assert_eq!(limit((None, Some(60 * MINUTE)), &slurm, now).at(), None);
        assert_eq!(limit((None, None), &[("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "0")], now).at(), None);
        assert_eq!(limit((None, None), &[], now).at(), None);
        assert_eq!(limit((Some(Duration::MAX), None), &[], now).at(), None);
    }
}
