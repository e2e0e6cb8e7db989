//! Asks a command of the scheduler, without making the agent wait for it.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lockstep_contract::scheduler::Question;
use lockstep_process::{Process, Signal};

/// How long a scheduler may take to answer. A busy one takes seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the question's command in a thread of its own and calls `then` with the answer, if there is one in time.
pub fn ask<T: 'static>(question: Question<T>, then: impl FnOnce(T) + Send + 'static) {
    // Without a thread there is no answer.
    let _ = thread::Builder::new().name("scheduler".into()).spawn(move || {
        let output = output(&question.words, Instant::now() + PATIENCE);
        if let Some(answer) = output.and_then(|output| question.read(&output, SystemTime::now())) {
            then(answer);
        }
    });
}

/// What the command prints; `None` if it cannot run or has not ended by the deadline. The agent reaps all of its children, so this one
/// may be reaped elsewhere and its exit code is not known.
fn output(words: &[String], deadline: Instant) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env("TZ", "UTC").env("LC_ALL", "C");
    let mut process = Process::start(&mut command).ok()?;
    let mut stdout = process.child.stdout.take()?;
    process.wait_until(deadline);
    let in_time = Instant::now() < deadline;
    // Has no effect on a process that has ended.
    let _ = process.signal(Signal::KILL);
    let mut text = String::new();
    let read = in_time && stdout.read_to_string(&mut text).is_ok();
    let _ = process.child.wait();
    read.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(words: &[&str], patience: Duration) -> Option<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        output(&words, Instant::now() + patience)
    }

    #[test]
    fn returns_what_a_command_prints() {
        assert_eq!(answer(&["sh", "-c", "echo 9:57"], Duration::from_secs(60)).as_deref(), Some("9:57\n"));
        assert_eq!(answer(&["/no/such/scheduler"], Duration::from_secs(60)), None);
    }

    #[test]
    fn gives_up_a_command_that_does_not_end() {
        assert_eq!(answer(&["sleep", "1000"], Duration::ZERO), None);
    }
}
