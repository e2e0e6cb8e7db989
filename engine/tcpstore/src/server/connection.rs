//! One connection's socket and deadlines. Not here: the protocol ([`Session`]).
//!
//! The loop is: process the complete requests, send the replies, wait for bytes, a wake-up or a deadline. While replies
//! are unsent, the loop neither processes nor reads anything else, so that a peer that does not read fills only its own
//! socket's buffers.
//!
//! A client that sends [`SWITCH`] between two requests leaves the protocol: its connection goes to the process that hosts
//! the server.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep_until, timeout};

use super::memory::{ConnectionId, FREE as KEEP, NoRoom, counted};
use super::session::{Session, Violation};
use super::shared::{ServerOptions, Shared};
use crate::wire::SWITCH;

/// Number of requests that are processed in a row before other connections get their turn.
const BATCH: usize = 64;
/// If more bytes than this are unsent, they are sent before the next request is processed.
const OUT_HIGH: usize = 64 << 10;
/// Sizes of a read: small for a small request, larger in the middle of a large one.
const READ: (usize, usize) = (2 << 10, 64 << 10);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Ending {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("it did not open with validate within {0:?}: port scanner, or half-open connection")]
    NotValidated(Duration),
    #[error("its request was not complete after {0:?}")]
    SlowRequest(Duration),
    #[error("it took none of its replies for {0:?}")]
    NotReading(Duration),
    #[error("the store had no room for its reply for {0:?}")]
    NoRoomForReply(Duration),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Builds the ending for an expired time limit.
type TooLate = fn(Duration) -> Ending;

/// Serves a connection until it ends, and records the reason if the peer is to blame.
pub(super) async fn serve(
    stream: std::net::TcpStream,
    address: SocketAddr,
    id: ConnectionId,
    wake: Arc<Notify>,
    all: Arc<Shared>,
) {
    let _leave = Leave { id, all: Arc::clone(&all) };
    let accepted = Instant::now();
    // Only a system without memory or descriptors refuses to watch it.
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let mut connection = Connection {
        stream,
        wake,
        id,
        session: Session::new(id, all.options.limits),
        input: Vec::new(),
        needs: 1,
        out: Vec::new(),
        begun: accepted,
        room: None,
        switched: false,
    };
    let ending = match connection.run(&all).await {
        Ok(()) => return all.lock().hand_over(connection.stream),
        Err(ending) => ending,
    };
    // The connection that needed the room has recorded this ending.
    if !matches!(ending, Ending::Closed | Ending::Io(_) | Ending::NoRoom(NoRoom::Closed)) {
        all.lock().refuse(address, Instant::now(), ending.to_string());
    }
}

/// Removes the connection when its task ends, for whatever reason.
struct Leave {
    id: ConnectionId,
    all: Arc<Shared>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.all.lock().dismiss(self.id);
    }
}

struct Connection {
    stream: TcpStream,
    wake: Arc<Notify>,
    id: ConnectionId,
    session: Session,
    input: Vec<u8>,
    /// Number of input bytes that the next request needs at least.
    needs: usize,
    out: Vec<u8>,
    /// When the current request began, or the connection.
    begun: Instant,
    /// Set while there is no room for the next reply; changes when there may be room.
    room: Option<watch::Receiver<()>>,
    /// True once the client has left the protocol.
    switched: bool,
}

impl Connection {
    /// Runs until the connection ends, or leaves the protocol.
    async fn run(&mut self, all: &Shared) -> Result<(), Ending> {
        loop {
            if let Err(ending) = self.work(all) {
                let _ = self.stream.try_write(&self.out); // replies to requests before the bad one
                return Err(ending);
            }
            if !self.out.is_empty() {
                self.flush(all).await?;
            } else if let Some(room) = self.room.take() {
                self.wait_for_room(room, all).await?;
            } else if self.switched {
                return Ok(());
            } else if self.input.len() >= self.needs {
                tokio::task::yield_now().await;
            } else {
                self.wait(all).await?;
            }
        }
    }

    /// Processes complete requests, at most one batch.
    fn work(&mut self, all: &Shared) -> Result<(), Ending> {
        let now = Instant::now();
        let mut state = all.lock();
        self.session.reply_if_woken(&state.data, &mut self.out);
        let mut done = 0;
        let mut start = 0;
        while done < BATCH && self.out.len() < OUT_HIGH && self.input.len() - start >= self.needs {
            if self.session.validated() && self.input[start..] == [SWITCH] && state.hands_over() {
                self.switched = true;
                break;
            }
            self.room = state.lacks_room(|data| self.session.reply_bytes(data, &self.input[start..]));
            if self.room.is_some() {
                break;
            }
            let turn = self.session.turn(&mut state.data, &self.input[start..], &mut self.out)?;
            state.wake(&turn.woken);
            start += turn.consumed;
            self.needs = turn.needs;
            done += usize::from(turn.progress);
        }
        if done > 0 {
            state.note(self.id, &self.session, now);
            self.begun = now;
            self.discard(start);
        }
        Ok(state.settle(self.id, counted(self.input.capacity()) + counted(self.out.capacity()), now)?)
    }

    /// Removes processed input, and replaces a buffer that is too large for an idle connection.
    fn discard(&mut self, count: usize) {
        self.input.drain(..count);
        if self.input.is_empty() && self.input.capacity() > KEEP {
            self.input = Vec::new();
        }
    }

    /// Sends the replies. The time limit starts again with every byte that the peer accepts.
    async fn flush(&mut self, all: &Shared) -> Result<(), Ending> {
        let limit = all.options.write_timeout;
        let mut sent = 0;
        while sent < self.out.len() {
            let write = self.stream.write(&self.out[sent..]);
            sent += timeout(limit, write).await.map_err(|_| Ending::NotReading(limit))??;
            if self.out.len() > KEEP {
                all.lock().moved(self.id, Instant::now());
            }
        }
        self.out.clear();
        self.out.shrink_to(KEEP);
        Ok(())
    }

    /// Waits until other connections hold less memory. After a while, stalled connections are closed.
    async fn wait_for_room(&mut self, mut room: watch::Receiver<()>, all: &Shared) -> Result<(), Ending> {
        let (limit, last) = (all.options.stall_timeout, all.options.write_timeout);
        if self.begun.elapsed() > last {
            return Err(Ending::NoRoomForReply(last));
        }
        // Checking several times within the limit keeps this connection from looking stalled itself.
        let looked = timeout(limit / 4, room.changed()).await;
        let now = Instant::now();
        if let (Err(_), Some(then)) = (looked, now.checked_sub(limit)) {
            all.lock().close_stalled(self.id, then, now);
        }
        Ok(())
    }

    /// Waits for bytes, a wake-up, or the deadline.
    async fn wait(&mut self, all: &Shared) -> Result<(), Ending> {
        let deadline = self.deadline(&all.options);
        let expires = async {
            match deadline {
                Some((limit, _)) => sleep_until((self.begun + limit).into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            readable = self.stream.readable() => {
                readable?;
                self.read()
            }
            () = self.wake.notified() => Ok(()),
            () = expires => Err(deadline.map_or(Ending::Closed, |(limit, ending)| ending(limit))),
        }
    }

    /// The peer's current time limit and the ending for missing it, if it has one.
    fn deadline(&self, options: &ServerOptions) -> Option<(Duration, TooLate)> {
        if !self.session.validated() {
            Some((options.handshake_timeout, Ending::NotValidated))
        } else if !self.input.is_empty() {
            Some((options.request_timeout, Ending::SlowRequest))
        } else {
            None
        }
    }

    /// Reads the bytes that have arrived, at most one chunk. The buffer grows for expected bytes, but never by more
    /// than a chunk.
    fn read(&mut self) -> Result<(), Ending> {
        if self.input.is_empty() && self.session.validated() {
            self.begun = Instant::now();
        }
        let missing = self.needs.saturating_sub(self.input.len());
        // At most double the bytes that have arrived: an announced length takes no memory.
        let most = READ.1.max(self.input.len());
        if self.input.capacity() - self.input.len() < missing.clamp(1, READ.0) {
            self.input.reserve_exact(missing.clamp(READ.0, most));
        }
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => Err(Ending::Closed),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
