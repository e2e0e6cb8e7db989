//! `--signals-to-handle`: the signals that end the job cleanly.

use lockstep_process::{known_signal_name, signal_number};

use super::error::ConfigError;
use super::given::Given;

/// The agent itself needs SIGCHLD, and no program can continue after the others.
const OTHERS: [&str; 4] = ["SIGCHLD", "SIGILL", "SIGFPE", "SIGSEGV"];

/// The signals that the agent handles: it forwards them to the workers and exits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Their numbers on this host, each once.
    pub numbers: Vec<i32>,
    /// As given; workers read it in TORCHELASTIC_SIGNALS_TO_HANDLE.
    pub text: String,
}

impl Signals {
    /// The signals, and a notice for each unknown name (torchrun ignores those, too).
    pub(super) fn parse(given: &Given) -> Result<(Self, Vec<String>), ConfigError> {
        let (mut numbers, mut notices) = (Vec::new(), Vec::new());
        for name in given.text.split(',').map(str::trim) {
            if ["SIGKILL", "SIGSTOP"].contains(&name) {
                return Err(ConfigError::not_allowed(given, format!("{name} cannot be handled by any program")));
            }
            match signal_number(name).filter(|_| !OTHERS.contains(&name)) {
                Some(number) if !numbers.contains(&number) => numbers.push(number),
                Some(_) => {}
                None => {
                    notices.push(format!("{given}: `{name}` is not a signal that can be handled here; it is ignored"))
                }
            }
        }
        Ok((Signals { numbers, text: given.text.clone() }, notices))
    }
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
    use super::super::given::Source;
    use super::*;

    fn parse(text: &str) -> Result<(Signals, Vec<String>), ConfigError> {
        Signals::parse(&Given { flag: "signals-to-handle", text: text.into(), source: Source::CommandLine })
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
