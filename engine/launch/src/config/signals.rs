//! The signals to the agent: those that end the job cleanly (`--signals-to-handle`), with a snapshot first (`--snapshot-on`), and those
//! that are passed on to the workers (`--forward-signals`).

use lockstep_contract::snapshot_request::{SAVE, SAVE_AND_END};
use lockstep_process::{known_signal_name, signal_number};

use super::flags::{ConfigError, Given};

/// The agent itself needs SIGCHLD, and no program can continue after the others.
const OTHERS: [&str; 4] = ["SIGCHLD", "SIGILL", "SIGFPE", "SIGSEGV"];

/// The signals that the agent handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Those that end the job: their numbers on this host, each once.
    pub numbers: Vec<i32>,
    /// As given; workers read it in TORCHELASTIC_SIGNALS_TO_HANDLE.
    pub text: String,
    /// Those of `numbers` on which the workers may save a snapshot first.
    pub snapshot: Vec<i32>,
    /// Those that every worker gets while the job goes on.
    pub forward: Vec<i32>,
}

/// What the agent does when a signal arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Stop the workers with it, and exit.
    End,
    /// Ask the workers to save a snapshot and to end, if they can; stop them if they cannot.
    SaveAndEnd,
    /// Pass it on to the workers themselves.
    PassOn {
        /// Also to those that do not handle it, which may end them.
        to_all: bool,
    },
}

impl Signals {
    /// The signals, and a notice for each unknown name (torchrun ignores those, too).
    pub(super) fn parse(given: &Given, snapshot: &Given, forward: &Given) -> Result<(Self, Vec<String>), ConfigError> {
        let (numbers, mut notices) = parse(given)?;
        let (on_snapshot, more) = parse(snapshot)?;
        notices.extend(more);
        let (forwarded, more) = parse(forward)?;
        notices.extend(more);
        if on_snapshot.iter().any(|number| !numbers.contains(number)) {
            let why = format!("a snapshot is saved on signals that end the job, which are {given}");
            return Err(ConfigError::not_allowed(snapshot, why));
        }
        if forwarded.iter().any(|number| numbers.contains(number)) {
            let why = format!("the job goes on after a signal that is forwarded, and ends after {given}");
            return Err(ConfigError::not_allowed(forward, why));
        }
        Ok((Signals { numbers, text: given.text.clone(), snapshot: on_snapshot, forward: forwarded }, notices))
    }

    /// All signals that the agent handles.
    #[must_use]
    pub fn all(&self) -> Vec<i32> {
        let mut all = [&self.numbers[..], &self.forward, &[SAVE, SAVE_AND_END]].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The names of the signals that ask the workers themselves for a snapshot, too, joined by commas.
    #[must_use]
    pub fn snapshot_names(&self) -> String {
        let others = self.snapshot.iter().filter(|signal| ![SAVE, SAVE_AND_END].contains(signal));
        others.filter_map(|signal| name(*signal)).collect::<Vec<_>>().join(",")
    }

    /// What the agent does when this signal arrives.
    #[must_use]
    pub fn response(&self, signal: i32) -> Response {
        match signal {
            _ if self.snapshot.contains(&signal) => Response::SaveAndEnd,
            _ if self.numbers.contains(&signal) => Response::End,
            _ if self.forward.contains(&signal) => Response::PassOn { to_all: true },
            SAVE_AND_END => Response::SaveAndEnd,
            _ => Response::PassOn { to_all: false },
        }
    }
}

/// The numbers of a list of names, each once, and a notice for each unknown name.
fn parse(given: &Given) -> Result<(Vec<i32>, Vec<String>), ConfigError> {
    let (mut numbers, mut notices) = (Vec::new(), Vec::new());
    let given_names = given.text.split(',').map(str::trim);
    for name in given_names.filter(|name| !(name.is_empty() && given.text.is_empty())) {
        if ["SIGKILL", "SIGSTOP"].contains(&name) {
            return Err(ConfigError::not_allowed(given, format!("{name} cannot be handled by any program")));
        }
        match signal_number(name).filter(|_| !OTHERS.contains(&name)) {
            Some(number) if !numbers.contains(&number) => numbers.push(number),
            Some(_) => {}
            None => notices.push(format!("{given}: `{name}` is not a signal that can be handled here; it is ignored")),
        }
    }
    Ok((numbers, notices))
}

/// The name of a signal, as in Python's `signal.Signals`, if it has one.
pub fn name(number: i32) -> Option<&'static str> {
    match number {
        34 => Some("SIGRTMIN"),
        64 => Some("SIGRTMAX"),
        _ => known_signal_name(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::Source;

    fn parse(text: &str) -> Result<(Signals, Vec<String>), ConfigError> {
        with(text, "", "")
    }

    fn with(text: &str, snapshot: &str, forward: &str) -> Result<(Signals, Vec<String>), ConfigError> {
        let given = |flag, text: &str| Given { flag, text: text.into(), source: Source::CommandLine };
        let (snapshot, forward) = (given("snapshot-on", snapshot), given("forward-signals", forward));
        Signals::parse(&given("signals-to-handle", text), &snapshot, &forward)
    }

    #[test]
    fn ends_saves_or_passes_on_as_the_flags_say() {
        let (signals, _) = with("SIGTERM,SIGINT", "SIGTERM", "SIGWINCH").unwrap();
        let expected = [
            (2, Response::End),
            (15, Response::SaveAndEnd),
            (28, Response::PassOn { to_all: true }),
            (10, Response::PassOn { to_all: false }),
            (12, Response::SaveAndEnd),
        ];
        assert_eq!(expected.map(|(signal, _)| (signal, signals.response(signal))), expected);
        assert_eq!(signals.all(), [2, 10, 12, 15, 28]);
        let (signals, _) = with("SIGUSR1", "", "SIGUSR2").unwrap();
        assert_eq!([10, 12].map(|signal| signals.response(signal)), [Response::End, Response::PassOn { to_all: true }]);
    }

    #[test]
    fn refuses_a_signal_that_would_do_two_things() {
        let error = with("SIGTERM", "SIGUSR1", "").unwrap_err().to_string();
        assert!(error.starts_with("--snapshot-on=SIGUSR1: a snapshot is saved on signals that end the job"), "{error}");
        let error = with("SIGTERM,SIGUSR1", "", "SIGUSR1").unwrap_err().to_string();
        assert!(error.starts_with("--forward-signals=SIGUSR1: the job goes on after"), "{error}");
    }

    #[test]
    fn parses_names_and_ignores_unknown_ones_with_a_notice() {
        let (signals, notices) = parse("SIGTERM, SIGUSR1,SIGTERM").unwrap();
        assert_eq!((signals.numbers, notices.len()), (vec![15, 10], 0));
        let (signals, notices) = parse("SIGINT,term").unwrap();
        assert_eq!((signals.numbers, signals.text.as_str()), (vec![2], "SIGINT,term"));
        assert!(notices[0].starts_with("--signals-to-handle=SIGINT,term: `term` is not a signal"), "{notices:?}");
        assert!(parse("SIGCHLD").unwrap().0.numbers.is_empty(), "the death of a worker does not end the job");
    }

    #[test]
    fn rejects_signals_that_no_program_can_handle() {
        assert!(
            parse("SIGTERM,SIGKILL").unwrap_err().to_string().ends_with("SIGKILL cannot be handled by any program")
        );
        assert!(parse("SIGSTOP").is_err());
    }

    #[test]
    fn names_signals_as_python_does() {
        let names = [1, 2, 6, 7, 9, 11, 15, 19, 31, 34].map(name);
        let expected = ["HUP", "INT", "ABRT", "BUS", "KILL", "SEGV", "TERM", "STOP", "SYS", "RTMIN"];
        assert_eq!(names.map(|name| name.unwrap().to_owned()), expected.map(|name| format!("SIG{name}")));
        assert_eq!([name(0), name(35), name(-9)], [None, None, None]);
    }
}
