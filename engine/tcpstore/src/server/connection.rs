//! One connection: its socket and deadlines, and [`Session`], its protocol as a pure state machine: bytes in, replies out.
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

use super::data::{ConnectionId, Data, Refused};
use super::shared::{FREE as KEEP, NoRoom, ServerOptions, Shared, counted};
use crate::wire::{Frame, Key, Limits, MAGIC, Operation, Reply, Request, SWITCH, Scan, WireError};

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
            state.note(self.id, self.session.validated(), self.session.last(), now);
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

/// The server's state of a connection, without the data.
#[derive(Debug)]
pub struct Session {
    id: ConnectionId,
    limits: Limits,
    validated: bool,
    waiting: bool,
    /// How far the request at the front of the input has been scanned.
    scan: Scan,
    last: Option<(Operation, Key)>,
}

/// The result of one turn.
#[derive(Debug, PartialEq, Eq)]
pub struct Turn {
    /// Number of input bytes that have been processed.
    pub consumed: usize,
    /// True if a request was processed. If not, the next turn needs at least [`Turn::needs`] bytes.
    pub progress: bool,
    /// Size in bytes of the request at the front of the input, as far as it is known.
    pub needs: usize,
    /// Other connections whose wait has ended.
    pub woken: Vec<ConnectionId>,
}

/// Why a connection must be closed: a fault of its peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The bytes are not a request.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The request is refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The first request is not VALIDATE.
    #[error("it opened with {0:#04x}, not with validate: this is not PyTorch's TCPStore protocol")]
    NotValidated(u8),
    /// VALIDATE carries a wrong number.
    #[error("validate came with {0:#010x}, not with {MAGIC:#010x}")]
    WrongMagic(u32),
    /// VALIDATE was sent again.
    #[error("it validated twice")]
    ValidatedTwice,
}

impl Session {
    /// A connection that has just been accepted.
    pub fn new(id: ConnectionId, limits: Limits) -> Self {
        Self { id, limits, validated: false, waiting: false, scan: Scan::default(), last: None }
    }

    /// Returns true if the peer has sent the magic number.
    pub fn validated(&self) -> bool {
        self.validated
    }

    /// The last operation, with the start of its (first) key.
    pub fn last(&self) -> Option<&(Operation, Key)> {
        self.last.as_ref()
    }

    /// Processes the request at the front of `input` if it is complete, and appends the reply to `out`. Until a request
    /// is processed, each call must get the same input again, with more bytes at the end.
    ///
    /// # Errors
    /// The peer's fault; the connection must be closed.
    pub fn turn(&mut self, data: &mut Data, input: &[u8], out: &mut Vec<u8>) -> Result<Turn, Violation> {
        self.reply_if_woken(data, out);
        self.check_opening(input)?;
        match self.scan.request(input, &self.limits)? {
            Frame::Incomplete(needs) => Ok(Turn { consumed: 0, progress: false, needs, woken: Vec::new() }),
            Frame::Complete(length) => {
                self.scan = Scan::default();
                let request = Request::decode(&input[..length], &self.limits)?;
                let woken = self.handle(data, request, out)?;
                Ok(Turn { consumed: length, progress: true, needs: 1, woken })
            }
        }
    }

    /// Size in bytes of the reply to the request at the front of `input`; 0 if that is incomplete or invalid.
    pub fn reply_bytes(&self, data: &Data, input: &[u8]) -> usize {
        let Ok(Frame::Complete(length)) = Frame::find(input, &self.limits) else { return 0 };
        Request::decode(&input[..length], &self.limits).map_or(0, |request| data.reply_bytes(&request))
    }

    /// Appends STOP_WAITING if the wait has ended.
    pub fn reply_if_woken(&mut self, data: &Data, out: &mut Vec<u8>) {
        if self.waiting && !data.waits(self.id) {
            self.waiting = false;
            Reply::StopWaiting.encode(out);
        }
    }

    /// Refuses other protocols at the first byte, before more bytes are kept.
    fn check_opening(&self, input: &[u8]) -> Result<(), Violation> {
        match input.first() {
            Some(&first) if !self.validated && first != Operation::Validate as u8 => {
                Err(Violation::NotValidated(first))
            }
            _ => Ok(()),
        }
    }

    fn handle(&mut self, data: &mut Data, request: Request, out: &mut Vec<u8>) -> Result<Vec<ConnectionId>, Violation> {
        self.remember(&request);
        if let Request::Validate { magic } = request {
            return self.validate(magic).map(|()| Vec::new());
        }
        let is_wait = matches!(request, Request::Wait { .. });
        let outcome = data.apply(self.id, request)?;
        if let Some(reply) = &outcome.reply {
            reply.encode(out);
        }
        if is_wait || matches!(outcome.reply, Some(Reply::WaitCanceled)) {
            self.waiting = outcome.reply.is_none();
        }
        // A connection can end its own wait. The reply goes out here, not only at the next turn, to keep the order.
        self.reply_if_woken(data, out);
        Ok(outcome.woken)
    }

    fn validate(&mut self, magic: u32) -> Result<(), Violation> {
        if self.validated {
            return Err(Violation::ValidatedTwice);
        }
        if magic != MAGIC {
            return Err(Violation::WrongMagic(magic));
        }
        self.validated = true;
        Ok(())
    }

    fn remember(&mut self, request: &Request) {
        /// Bytes of a key that are kept for messages.
        const HEAD: usize = 200;
        let key = request.key().map_or(&[][..], |key| &key[..key.len().min(HEAD)]);
        let (operation, kept) = self.last.get_or_insert_with(|| (Operation::Validate, Key::new()));
        *operation = request.operation();
        kept.clear();
        kept.extend_from_slice(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(requests: &[Request]) -> Vec<u8> {
        let mut out = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut out));
        out
    }

    /// Processes all of `input`.
    fn run(session: &mut Session, data: &mut Data, mut input: &[u8]) -> Result<Vec<u8>, Violation> {
        let mut out = Vec::new();
        loop {
            let turn = session.turn(data, input, &mut out)?;
            input = &input[turn.consumed..];
            if !turn.progress {
                return Ok(out);
            }
        }
    }

    fn opened(data: &mut Data, id: u64) -> Session {
        let mut session = Session::new(ConnectionId(id), Limits::default());
        run(&mut session, data, &bytes(&[Request::Validate { magic: MAGIC }])).unwrap();
        session
    }

    fn store() -> Data {
        Data::new(Limits::default(), 1 << 20)
    }

    #[test]
    fn rejects_a_peer_that_does_not_open_with_the_magic_number() {
        let mut data = store();
        let session = || Session::new(ConnectionId(1), Limits::default());
        let http = run(&mut session(), &mut data, b"GET / HTTP/1.1\r\n");
        assert_eq!(http, Err(Violation::NotValidated(b'G')));
        let wrong = run(&mut session(), &mut data, &bytes(&[Request::Validate { magic: 7 }]));
        assert_eq!(wrong, Err(Violation::WrongMagic(7)));
        let twice = Request::Validate { magic: MAGIC };
        assert_eq!(run(&mut session(), &mut data, &bytes(&[twice.clone(), twice])), Err(Violation::ValidatedTwice));
    }

    #[test]
    fn answers_a_late_cancel_after_the_end_of_the_wait() {
        let mut data = store();
        let (mut waiter, mut setter) = (opened(&mut data, 1), opened(&mut data, 2));
        let wait = bytes(&[Request::Wait { keys: vec![b"k".into()] }]);
        assert_eq!(run(&mut waiter, &mut data, &wait), Ok(vec![]));
        let set = bytes(&[Request::Set { key: b"k".into(), value: b"v".into() }]);
        let mut out = Vec::new();
        assert_eq!(setter.turn(&mut data, &set, &mut out).unwrap().woken, [ConnectionId(1)]);
        assert_eq!(run(&mut waiter, &mut data, &bytes(&[Request::CancelWait])), Ok(vec![0, 1]));
        assert_eq!(run(&mut waiter, &mut data, &bytes(&[Request::NumKeys])), Ok(1i64.to_le_bytes().to_vec()));
    }

    #[test]
    fn ends_the_wait_of_a_connection_that_sets_the_key_on_its_own() {
        let mut data = store();
        let mut session = opened(&mut data, 1);
        let wait = Request::Wait { keys: vec![b"k".into()] };
        let set = Request::Set { key: b"k".into(), value: b"v".into() };
        assert_eq!(run(&mut session, &mut data, &bytes(&[wait, set])), Ok(vec![0]));
    }

    #[test]
    fn remembers_the_last_operation_and_the_start_of_its_key() {
        let mut data = store();
        let mut session = opened(&mut data, 1);
        run(&mut session, &mut data, &bytes(&[Request::Get { key: vec![b'k'; 1000] }])).unwrap();
        assert_eq!(session.last(), Some(&(Operation::Get, vec![b'k'; 200])));
    }
}
