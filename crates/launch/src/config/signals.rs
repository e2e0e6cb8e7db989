//! `--signals-to-handle`: which signals end the job in order.

use lockstep_process::{known_signal_name, signal_number};

use super::error::ConfigError;
use super::given::Given;

/// The agent needs the first itself, and nobody can go on after the others.
const OTHERS: [&str; 4] = ["SIGCHLD", "SIGILL", "SIGFPE", "SIGSEGV"];

/// Signals that the agent handles: it passes them on to the workers and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Their numbers on this machine, each once.
    pub numbers: Vec<i32>,
    /// As given; workers read it in TORCHELASTIC_SIGNALS_TO_HANDLE.
    pub text: String,
}

impl Signals {
    /// The signals, and a notice for each name that is none (torchrun goes on without it too).
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
                    notices.push(format!("{given}: `{name}` is no signal that can be handled here; it is left out"))
                }
            }
        }
        Ok((Signals { numbers, text: given.text.clone() }, notices))
    }
}

/// The name of a signal, as Python's `signal.Signals` has it; `None` for one that has none.
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
    fn reads_names_and_leaves_unknown_ones_out_with_a_word() {
        let (signals, notices) = parse("SIGTERM, SIGUSR1,SIGTERM").unwrap();
        assert_eq!((signals.numbers, notices.len()), (vec![15, 10], 0));
        let (signals, notices) = parse("SIGINT,term").unwrap();
        assert_eq!((signals.numbers, signals.text.as_str()), (vec![2], "SIGINT,term"));
        assert!(notices[0].starts_with("--signals-to-handle=SIGINT,term: `term` is no signal"), "{notices:?}");
        assert!(parse("SIGCHLD").unwrap().0.numbers.is_empty(), "workers' deaths are no request to end");
    }

    #[test]
    fn rejects_signals_that_nobody_can_handle() {
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
