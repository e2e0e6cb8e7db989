//! One connection as a state machine over bytes: bytes in, replies out. Pure: no socket, no deadlines.

use super::data::Data;
use super::memory::{ConnectionId, Refused};
use crate::wire::{Frame, Key, Limits, MAGIC, Operation, Reply, Request, Scan, WireError};

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
