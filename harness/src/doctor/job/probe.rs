//! TCP probes: each node listens on some ports, says its name and its time to whoever asks, and asks the others.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::facts::{Outcome, Ports};

/// The first word of an answer.
const DOCTOR: &str = "lockstep-doctor";
/// An answer is this word, a name and a number.
const LONGEST: u64 = 1024;

/// The open ports of this node. They answer until it is dropped.
pub(super) struct Listeners {
    pub(super) ports: Ports,
    _tasks: JoinSet<()>,
}

impl Listeners {
    /// Opens a free port, and these. A port that another program holds is left alone.
    ///
    /// # Errors
    /// The system's, if no port can be opened at all.
    pub(super) fn open(name: &str, known: &[u16]) -> std::io::Result<Self> {
        let mut tasks = JoinSet::new();
        let mut listen = |port| {
            let listener = bind(port)?;
            let port = listener.local_addr()?.port();
            tasks.spawn(answer_all(listener, name.to_owned()));
            std::io::Result::Ok(port)
        };
        let mut ports = Ports { free: listen(0)?, ..Ports::default() };
        for port in known {
            match listen(*port) {
                Ok(port) => ports.known.push(port),
                Err(error) if error.kind() == ErrorKind::AddrInUse => ports.taken.push(*port),
                Err(_) => {} // a port below 1024, which only root may open
            }
        }
        Ok(Listeners { ports, _tasks: tasks })
    }
}

/// On all addresses of both kinds, or of IPv4 where the kernel has no other.
fn bind(port: u16) -> std::io::Result<TcpListener> {
    let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    let bound = match StdListener::bind(SocketAddr::new(all[0], port)) {
        Err(error) if error.kind() != ErrorKind::AddrInUse => StdListener::bind(SocketAddr::new(all[1], port)),
        bound => bound,
    }?;
    bound.set_nonblocking(true)?;
    TcpListener::from_std(bound)
}

async fn answer_all(listener: TcpListener, name: String) {
    let mut answers = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        answers.spawn(answer(stream, name.clone()));
        while answers.try_join_next().is_some() {}
    }
}

/// Waits for the question, so that the time is that of the answer.
async fn answer(mut stream: TcpStream, name: String) {
    let mut question = [0];
    if stream.read_exact(&mut question).await.is_ok() {
        let text = format!("{DOCTOR} {} {name}\n", micros());
        let _ = stream.write_all(text.as_bytes()).await; // who asked is gone
    }
}

/// Microseconds since 1970.
fn micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Connects to a port, and asks who it is.
pub(super) async fn ask(address: SocketAddr, patience: Duration) -> Outcome {
    let stream = match timeout(patience, TcpStream::connect(address)).await {
        Err(_) => return Outcome::TimedOut(patience.as_secs()),
        Ok(Err(error)) => {
            return match error.kind() {
                ErrorKind::ConnectionRefused => Outcome::Refused,
                ErrorKind::TimedOut => Outcome::TimedOut(patience.as_secs()),
                _ => Outcome::Failed(error.to_string()),
            };
        }
        Ok(Ok(stream)) => stream,
    };
    timeout(patience, question(stream)).await.unwrap_or(Outcome::TimedOut(patience.as_secs()))
}

async fn question(mut stream: TcpStream) -> Outcome {
    let before = micros();
    let mut answer = String::new();
    if stream.write_all(b"?").await.is_err() || stream.take(LONGEST).read_to_string(&mut answer).await.is_err() {
        return Outcome::Stranger;
    }
    understand(&answer, before, micros()).unwrap_or(Outcome::Stranger)
}

/// The other clock was read at some time between these two.
fn understand(answer: &str, before: i64, after: i64) -> Option<Outcome> {
    let (time, by) = answer.strip_prefix(DOCTOR)?.trim().split_once(' ')?;
    let uncertain = (after - before).max(0) / 2;
    let ahead = time.parse::<i64>().ok()?.checked_sub(before.checked_add(uncertain)?)?;
    Some(Outcome::Answered { by: by.to_owned(), ahead, uncertain })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn local(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    }

    #[tokio::test]
    async fn doctors_say_who_they_are_and_strangers_and_closed_ports_are_distinguished() {
        let held = StdListener::bind(local(0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let open = Listeners::open("n 1", &[port]).unwrap();
        assert_eq!((open.ports.known.len(), &open.ports.taken), (0, &vec![port]));
        match ask(local(open.ports.free), PATIENCE).await {
            Outcome::Answered { by, ahead, uncertain } => {
                assert!(by == "n 1" && ahead.abs() <= uncertain + 1, "{by} {ahead} {uncertain}");
            }
            other => panic!("{other:?}"),
        }
        let free = open.ports.free;
        let stranger = std::thread::spawn(move || drop(held.accept()));
        assert_eq!(ask(local(port), PATIENCE).await, Outcome::Stranger);
        stranger.join().unwrap();
        drop(open);
        // The tasks end when the runtime comes to them.
        while ask(local(free), PATIENCE).await != Outcome::Refused {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn measures_another_clock_with_its_uncertainty() {
        let seen = understand("lockstep-doctor 5000 n1\n", 1000, 3000);
        assert_eq!(seen, Some(Outcome::Answered { by: "n1".into(), ahead: 3000, uncertain: 1000 }));
        for hostile in ["", "lockstep-doctor", "lockstep-doctor x n1", "HTTP/1.1 400 Bad Request", "lockstep-doctor 1"]
        {
            assert_eq!(understand(hostile, 0, 0), None, "{hostile}");
        }
        assert_eq!(understand(&format!("lockstep-doctor {} n1", i64::MIN), 9, 9), None);
    }
}
