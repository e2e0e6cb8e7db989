//! One connection of a client: connect, handshake, send and receive. Not here: the requests.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::error::Kind;
use crate::wire::{Expect, Frame, Limits, MAGIC, Reader, Reply, Request, Scan};

/// Pauses between attempts to connect: the first and the longest. Each is shortened by a random amount of up to half.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Time limit of one attempt if a host does not answer at all, so that its other addresses are tried, too.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Where to connect, and with which limits.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    /// How long a server that accepted the connection may take to answer.
    pub(super) handshake_timeout: Duration,
    pub(super) limits: Limits,
}

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    limits: Limits,
}

impl Connection {
    /// Connects, and retries until `deadline` while the port refuses connections. A server that is not a TCPStore is
    /// reported immediately.
    pub(super) async fn open(target: &Target, deadline: Instant) -> Result<Self, Kind> {
        let mut pause = PAUSE.0;
        let mut hung_up_since = None;
        let mut refused = false;
        loop {
            let kind = match Self::attempt(target, deadline).await {
                Ok(connection) => return Ok(connection),
                Err(kind) => kind,
            };
            let now = Instant::now();
            refused |= matches!(kind, Kind::Refused);
            let until = match kind {
                Kind::Unresolved(_) | Kind::Refused | Kind::Unreachable(_) => deadline,
                // A server whose accept queue is full does this for an unknown time.
                Kind::HungUp => deadline.min(*hung_up_since.get_or_insert(now) + target.handshake_timeout),
                _ => return Err(kind),
            };
            let next = now + pause.mul_f64(1.0 - random_fraction() / 2.0);
            if next >= until {
                // An attempt that the deadline interrupted is less informative than the earlier ones.
                let cut_short = matches!(kind, Kind::Unreachable(_)) && now >= deadline;
                return Err(if refused && cut_short { Kind::Refused } else { kind });
            }
            sleep_until(next).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Tries every address of the host once.
    async fn attempt(target: &Target, deadline: Instant) -> Result<Self, Kind> {
        let lookup = tokio::net::lookup_host((target.host.as_str(), target.port));
        let addresses = timeout_at(deadline, lookup).await.unwrap_or_else(|late| Err(late.into()));
        let mut outcome = Kind::Unresolved(io::Error::other("no address"));
        for address in addresses.map_err(Kind::Unresolved)? {
            match Self::try_address(address, target, deadline).await {
                Err(kind @ (Kind::Refused | Kind::Unreachable(_))) => outcome = kind,
                done => return done,
            }
        }
        Err(outcome)
    }

    async fn try_address(address: SocketAddr, target: &Target, deadline: Instant) -> Result<Self, Kind> {
        let attempt = deadline.min(Instant::now() + ATTEMPT);
        let stream = match timeout_at(attempt, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(Kind::Refused),
            Ok(Err(error)) => return Err(Kind::Unreachable(error)),
            Err(late) => return Err(Kind::Unreachable(late.into())),
        };
        // On loopback a socket can connect to itself if the port is in the ephemeral range.
        if stream.local_addr().ok() == stream.peer_addr().ok() {
            return Err(Kind::Refused);
        }
        let _ = stream.set_nodelay(true);
        let mut connection = Self { stream, input: Vec::new(), limits: target.limits };
        // Not less if the deadline is near: a server that has just come up would pass for one that is not a store.
        let answer_by = Instant::now() + target.handshake_timeout;
        timeout_at(answer_by, connection.handshake()).await.unwrap_or(Err(Kind::Mute))?;
        Ok(connection)
    }

    /// Sends VALIDATE and PING, and reads the nonce back.
    async fn handshake(&mut self) -> Result<(), Kind> {
        let nonce = random() as u32;
        let mut opening = Vec::new();
        Request::Validate { magic: MAGIC }.encode(&mut opening);
        Request::Ping { nonce }.encode(&mut opening);
        match self.open_with(&opening).await {
            Err(Kind::Closed) if self.input.is_empty() => Err(Kind::HungUp),
            Ok(()) | Err(Kind::Closed) if self.input != nonce.to_le_bytes() => Err(self.not_a_store(&opening)),
            other => other.map(|()| self.input.clear()),
        }
    }

    /// Sends the opening bytes and reads until four bytes have arrived.
    async fn open_with(&mut self, opening: &[u8]) -> Result<(), Kind> {
        self.send(opening).await?;
        while self.input.len() < 4 {
            self.fill().await?;
        }
        Ok(())
    }

    /// Describes the answer of a server that is not a store.
    fn not_a_store(&self, opening: &[u8]) -> Kind {
        const SHOWN: usize = 60;
        let got = match opening.starts_with(&self.input) {
            true => "an echo of what was sent".into(),
            false => String::from_utf8_lossy(&self.input[..self.input.len().min(SHOWN)]),
        };
        Kind::NotAStore { got: got.into_owned() }
    }

    /// Sends all bytes.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Kind> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// The socket. Every reply has been received.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Receives the expected reply. If the future is dropped, the bytes that have arrived are kept; a reply is removed
    /// from the buffer only when it is complete.
    pub(super) async fn receive(&mut self, expect: Expect) -> Result<Reply, Kind> {
        let (mut scan, mut needs) = (Scan::default(), 0);
        loop {
            if self.input.len() >= needs {
                match scan.reply(expect, &self.input, &self.limits).map_err(Kind::Protocol)? {
                    Frame::Whole(length) => return self.take(expect, length),
                    Frame::Needs(more) => needs = more,
                }
            }
            self.fill().await?;
        }
    }

    /// Removes the complete reply from the buffer.
    fn take(&mut self, expect: Expect, length: usize) -> Result<Reply, Kind> {
        let mut reader = Reader::new(&self.input[..length]);
        let reply = Reply::read(expect, &mut reader, &self.limits).map_err(Kind::Protocol)?;
        self.input.drain(..length);
        Ok(reply)
    }

    /// Reads the next bytes into the buffer.
    async fn fill(&mut self) -> Result<(), Kind> {
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(Kind::Closed),
            _ => Ok(()),
        }
    }
}

/// A random number, good enough for a nonce and for random pauses.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random number from 0 to 1.
fn random_fraction() -> f64 {
    random() as f64 / u64::MAX as f64
}
