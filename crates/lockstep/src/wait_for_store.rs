//! Waits until the job's store accepts connections, and prints a message while it does not.
//!
//! libtorch's client waits silently, and longer than its deadline. The actual connection and its protocol are left to it.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crate::LaunchEnv;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout of one attempt, for an address that drops packets.
const ATTEMPT: Duration = Duration::from_secs(3);
/// A wait is reported after this time; a slow start of the host is shorter.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// After the first report, the wait is reported at this interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Nothing listened at the address until the deadline.
#[derive(Debug, thiserror::Error)]
#[error("nobody listens at {address} (MASTER_ADDR:MASTER_PORT) after {waited:.0?}: {hint}")]
pub struct NobodyListens {
    /// Host and port.
    pub address: String,
    /// The time waited.
    pub waited: Duration,
    /// Which process should listen there, and what to check.
    pub hint: &'static str,
    /// The error of the last attempt.
    pub source: io::Error,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Retry,
    ReportAndRetry,
    GiveUp,
}

/// Returns once something listens at the store's address.
///
/// # Errors
/// [`NobodyListens`] at the deadline.
pub(crate) fn until_it_listens(env: &LaunchEnv, deadline: Duration) -> Result<(), NobodyListens> {
    let (begun, mut reported) = (Instant::now(), None);
    let address = format!("{}:{}", env.master_addr, env.master_port);
    loop {
        let left = deadline.saturating_sub(begun.elapsed());
        let Err(source) = try_connect(&env.master_addr, env.master_port, left.clamp(PAUSE, ATTEMPT)) else {
            return Ok(());
        };
        let waited = begun.elapsed();
        match next(waited, reported, deadline) {
            Next::GiveUp => return Err(NobodyListens { address, waited, hint: hint(env), source }),
            Next::ReportAndRetry => {
                reported = Some(waited);
                eprintln!(
                    "[rank {}] waiting for the store: nobody listens at {address} for {waited:.0?} ({source}); {}; giving up \
                     after {deadline:.0?}",
                    env.rank,
                    hint(env)
                );
            }
            Next::Retry => {}
        }
        thread::sleep(PAUSE);
    }
}

fn next(waited: Duration, reported: Option<Duration>, deadline: Duration) -> Next {
    let silent_since = reported.map_or(waited, |reported| waited.saturating_sub(reported));
    if waited >= deadline {
        Next::GiveUp
    } else if silent_since >= if reported.is_some() { REPORT_INTERVAL } else { REPORT_AFTER } {
        Next::ReportAndRetry
    } else {
        Next::Retry
    }
}

/// A connection that is closed at once.
fn try_connect(host: &str, port: u16, limit: Duration) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn hint(env: &LaunchEnv) -> &'static str {
    if env.agent_store {
        "the launcher hosts the store there: is it alive, and can this node reach it?"
    } else {
        "rank 0 hosts the store there: is it started, with the same address, and can this node reach it?"
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::Rank;

    fn client_of(port: u16) -> LaunchEnv {
        LaunchEnv { rank: Rank::new(1), master_port: port, ..LaunchEnv::alone() }
    }

    #[test]
    fn is_silent_at_first_then_reports_now_and_then_and_gives_up_at_the_deadline() {
        let (s, deadline) = (Duration::from_secs, Duration::from_secs(300));
        assert_eq!(next(s(4), None, deadline), Next::Retry);
        assert_eq!(next(s(5), None, deadline), Next::ReportAndRetry);
        assert_eq!(next(s(34), Some(s(5)), deadline), Next::Retry);
        assert_eq!(next(s(35), Some(s(5)), deadline), Next::ReportAndRetry);
        assert_eq!(next(s(300), Some(s(290)), deadline), Next::GiveUp);
        assert_eq!(next(s(2), None, s(2)), Next::GiveUp);
    }

    #[test]
    fn finds_a_listener_or_names_who_should_listen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        until_it_listens(&client_of(port), Duration::from_secs(60)).unwrap();
        // The port of a client: nobody listens there, and nobody else gets it.
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let port = client.local_addr().unwrap().port();
        let message = until_it_listens(&client_of(port), Duration::ZERO).unwrap_err().to_string();
        assert!(message.contains(&format!("nobody listens at 127.0.0.1:{port}")), "{message}");
        assert!(message.contains("rank 0 hosts the store there"), "{message}");
        let launched = LaunchEnv { agent_store: true, ..client_of(port) };
        let message = until_it_listens(&launched, Duration::ZERO).unwrap_err().to_string();
        assert!(message.contains("the launcher hosts the store there"), "{message}");
    }
}
