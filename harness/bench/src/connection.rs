//! A socket between the bench and each rank. The bench's end: a Unix socket for ranks of this machine, TCP for those of other nodes. The
//! rank's end: the hidden subcommand that benches of the launcher start as ranks. It connects to its job's store, as
//! each rank of a training job does, reports to the bench, and ends when the bench says so or has ended.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_rank_messages::bench::Hello;
use tcpstore::Client;

use crate::exit::Code;

/// The most bytes of a first line, in case another program connects.
const FIRST_LINE: usize = 256;

/// A moment of a job: see [`crate::job::Job::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(pub(crate) u64);

impl Mark {
    /// Before the first rank.
    pub(crate) const START: Mark = Mark(0);
}

/// Where ranks connect.
pub(crate) enum Listener {
    /// In this folder. Its path may be too long for a socket (unix(7)); that of the descriptor is not.
    Here(UnixListener, File),
    /// A rank that connects must know the word.
    Anywhere(TcpListener, String),
}

/// The socket in a folder that this process has open, for all processes of this user.
fn within(folder: &File) -> String {
    format!("/proc/{}/fd/{}/ranks", std::process::id(), folder.as_raw_fd())
}

/// A rank's socket.
pub(crate) trait Stream: Read + Write + AsFd {}

impl<T: Read + Write + AsFd> Stream for T {}

impl Listener {
    /// For ranks of this machine, in the folder of their job.
    pub(crate) fn here(folder: &Path) -> io::Result<Self> {
        let folder = File::open(folder)?;
        let listener = UnixListener::bind(within(&folder))?;
        listener.set_nonblocking(true)?;
        Ok(Listener::Here(listener, folder))
    }

    /// For ranks on other nodes.
    pub(crate) fn anywhere() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        listener.set_nonblocking(true)?;
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Listener::Anywhere(listener, format!("{:032x}", u128::from_ne_bytes(bytes))))
    }

    /// The argument from which a rank knows it: see `crates/bench-ranks`.
    pub(crate) fn argument(&self) -> io::Result<OsString> {
        Ok(match self {
            Listener::Here(_, folder) => within(folder).into(),
            Listener::Anywhere(listener, word) => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                format!("tcp:{host}:{}:{word}", listener.local_addr()?.port()).into()
            }
        })
    }

    /// The next rank that connects; `place` ranks came before it.
    pub(crate) fn accepted(&self, place: u64) -> io::Result<Option<Connection>> {
        let stream = match self {
            Listener::Here(listener, _) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
            Listener::Anywhere(listener, _) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
        };
        let word = match self {
            Listener::Here(..) => None,
            Listener::Anywhere(_, word) => Some(word.clone()),
        };
        match stream {
            Ok(stream) => {
                Ok(Some(Connection { stream, word, place, text: Vec::new(), hello: None, answers: VecDeque::new() }))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Here(listener, _) => listener.as_fd(),
            Listener::Anywhere(listener, _) => listener.as_fd(),
        }
    }
}

/// The connection of one rank.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    /// The word that must come first.
    word: Option<String>,
    /// How many ranks came before it.
    place: u64,
    text: Vec<u8>,
    pub(crate) hello: Option<Hello>,
    /// What it said after that.
    pub(crate) answers: VecDeque<String>,
}

impl Connection {
    pub(crate) fn is_after(&self, mark: Mark) -> bool {
        self.place >= mark.0
    }

    /// Reads what the rank sends. False when it has ended, or is not one of our ranks.
    pub(crate) fn is_open(&mut self) -> bool {
        let mut bytes = [0; 256];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.text.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            match (self.word.take(), self.hello) {
                (Some(word), _) if word != line => return false,
                (Some(_), _) => {}
                (None, None) => self.hello = Hello::parse(&line),
                (None, Some(_)) => self.answers.push_back(line),
            }
        }
        self.hello.is_some() || self.text.len() <= FIRST_LINE
    }
}

/// The subcommand's name.
pub const RANK: &str = "bench-rank";
/// A thousand processes on two cores take a while to start.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the subcommand was called with
#[derive(Args)]
pub struct Rank {
    /// The bench's socket
    socket: PathBuf,
}

impl Rank {
    pub fn exec(self) -> anyhow::Result<Code> {
        let hello = Hello {
            rank: variable("RANK")?,
            restart: variable("TORCHELASTIC_RESTART_COUNT")?,
            pid: std::process::id() as i32,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (host, port) = (std::env::var("MASTER_ADDR").context("MASTER_ADDR")?, variable("MASTER_PORT")?);
        let _client = runtime.block_on(Client::connect(&host, port, PATIENCE))?;
        let socket = &self.socket;
        let mut bench = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to the bench at {}", foreign::path(socket)))?;
        writeln!(bench, "{hello}")?;
        // A byte from the bench, or its end, ends this rank.
        let _ = bench.read(&mut [0]);
        Ok(Code::Success)
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> anyhow::Result<T> {
    let value = std::env::var(name).with_context(|| format!("{name} is not set: a launcher starts this program"))?;
    value.parse().ok().with_context(|| format!("{name} is {value:?}, not a number"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// Connects, sends this, and returns the bench's end when something has come.
    fn sent(listener: &Listener, text: &str) -> (Connection, TcpStream) {
        let Listener::Anywhere(tcp, _) = listener else { panic!("no TCP") };
        let mut rank = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        rank.write_all(text.as_bytes()).unwrap();
        let connection = loop {
            if let Some(connection) = listener.accepted(0).unwrap() {
                break connection;
            }
        };
        let mut readable =
            [rustix::event::PollFd::from_borrowed_fd(connection.stream.as_fd(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut readable, None).unwrap();
        (connection, rank)
    }

    #[test]
    fn a_rank_connects_however_long_the_path_of_the_folder_is() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a long name".repeat(20));
        std::fs::create_dir(&folder).unwrap();
        let listener = Listener::here(&folder).unwrap();
        UnixStream::connect(listener.argument().unwrap()).unwrap();
        assert!(listener.accepted(0).unwrap().is_some());
    }

    #[test]
    fn a_rank_of_another_node_needs_the_word_of_its_argument() {
        let listener = Listener::anywhere().unwrap();
        let argument = listener.argument().unwrap().into_string().unwrap();
        let (start, word) = argument.rsplit_once(':').unwrap();
        assert!(start.starts_with("tcp:") && word.len() == 32, "{argument}");
        let (mut rank, _end) = sent(&listener, &format!("{word}\n3 0 17\n"));
        while rank.hello.is_none() {
            assert!(rank.is_open());
        }
        assert_eq!(rank.hello.map(|hello| hello.rank), Some(3));
        for foreign in ["3 0 17\n", "GET / HTTP/1.1\r\n", &"x".repeat(2 * FIRST_LINE)] {
            let (mut rank, _end) = sent(&listener, foreign);
            while rank.is_open() {
                assert!(rank.hello.is_none(), "{foreign}");
            }
        }
    }
}
