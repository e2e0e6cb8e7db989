//! The bench's end of a rank's socket.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};

use super::Mark;
use crate::bench::rank::Hello;

/// The connection of one rank.
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    /// How many ranks came before it.
    place: u64,
    text: Vec<u8>,
    pub(super) hello: Option<Hello>,
    /// What it said after that.
    pub(super) answers: VecDeque<String>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, place: u64) -> Self {
        Connection { stream, place, text: Vec::new(), hello: None, answers: VecDeque::new() }
    }

    pub(super) fn is_after(&self, mark: Mark) -> bool {
        self.place >= mark.0
    }

    /// Reads what the rank sends. False when it has ended.
    pub(super) fn is_open(&mut self) -> bool {
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
            match self.hello {
                None => self.hello = Hello::parse(&line),
                Some(_) => self.answers.push_back(line),
            }
        }
        true
    }
}

pub(super) fn accepted(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    match listener.accept() {
        Ok((stream, _)) => stream.set_nonblocking(true).map(|()| Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
