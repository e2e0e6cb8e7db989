//! The protocol: the format of messages in both directions. Not here: sockets, clocks, and the effect of operations.
//!
//! A connection opens with VALIDATE and the magic number, which has no reply; clients then send PING and read their
//! nonce back. After that a request is one byte of operation and its fields, and a reply is fields only: the request
//! determines what the reply means ([`Expect`]). Integers are little-endian, strings have a length of 64 bits.
//!
//! Source: `TCPStoreBackend.hpp` (operations, magic), `TCPStore.cpp` (client) and `TCPStoreLibUvBackend.cpp` (server)
//! of PyTorch 2.11; `golden/tcpstore.json` records bytes that they sent.
//!
//! A [`Scan`] finds the end of a message whose bytes arrive in pieces. It remembers its position, so that it looks at every key and value once, however small the pieces are. If it
//! started again with each piece, the work would grow with the square of the message.

mod message;

use message::Field;

pub use message::{Expect, Operation, Reply, Request};

/// A key on the wire: any bytes. libtorch's clients put [`KEY_PREFIX`] in front of every key that a user names.
pub type Key = Vec<u8>;
/// A value: any bytes.
pub type Value = Vec<u8>;

/// The number that VALIDATE carries (`validationMagicNumber` in `TCPStoreBackend.hpp`).
pub const MAGIC: u32 = 0x3C85_F7CE;

/// Sent instead of an operation, with nothing after it: the connection leaves the protocol for another one, in which the server
/// speaks first. It is not part of PyTorch's protocol.
pub const SWITCH: u8 = 0xF0;

/// The prefix that libtorch's clients add to every key (`keyPrefix_` in `TCPStore.hpp`). Only `init/`, which counts the
/// clients of `wait_for_workers`, lacks it.
pub const KEY_PREFIX: &[u8] = b"/";

/// Converts a user's key to the key on the wire.
pub fn wire_key(key: &str) -> Key {
    [KEY_PREFIX, key.as_bytes()].concat()
}

/// Converts a key on the wire to the user's key, for messages: bytes that are not UTF-8 are replaced.
pub fn user_key(key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_prefix(KEY_PREFIX).unwrap_or(key)).into_owned()
}

/// The largest accepted sizes. The defaults of the first three are those of libtorch's server (`MAX_STRING_LEN`,
/// `MAX_PAYLOAD_LEN` and `MAX_KEY_COUNT` in `TCPStoreLibUvBackend.cpp`).
///
/// A length beyond its limit is refused as soon as it is read. A length within its limit reserves nothing: memory grows
/// with the bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key. 8 KiB.
    pub max_key: usize,
    /// Bytes of a value in a request. 8 MiB.
    pub max_value: usize,
    /// Keys in one request. 131,072.
    pub max_keys: usize,
    /// Bytes of a whole request, which also limits the sum of many long keys. 64 MiB (libtorch: no limit).
    pub max_request: usize,
    /// Bytes of a whole reply, and of a value after APPEND. 64 MiB (libtorch: no limit).
    pub max_reply: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_key: 8 << 10, max_value: 8 << 20, max_keys: 128 << 10, max_request: 64 << 20, max_reply: 64 << 20 }
    }
}

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message is incomplete: it has at least this many bytes.
    #[error("the message ends early: it has at least {need} bytes")]
    Truncated {
        /// Bytes from the start of the message.
        need: usize,
    },
    /// There are bytes after the message.
    #[error("{left} bytes are left over after the message")]
    Trailing {
        /// Their number.
        left: usize,
    },
    /// The first byte is not an operation.
    #[error("no operation has the number {0}: this is not PyTorch's TCPStore protocol, or a newer one")]
    UnknownOperation(u8),
    /// A one-byte reply has a value that its operation does not use.
    #[error("{0} is not an answer to this operation")]
    UnknownAnswer(u8),
    /// A length or count is beyond its limit.
    #[error("{what} of {got}, at most {max} is accepted")]
    TooLarge {
        /// What was measured, with its unit.
        what: &'static str,
        /// The size in the message.
        got: u64,
        /// The limit.
        max: usize,
    },
    /// A count is below zero.
    #[error("a count of {0}")]
    NegativeCount(i64),
}

/// Reads fields from the front of a slice. Numbers are little-endian.
///
/// # Errors
/// All its methods: [`WireError::Truncated`] if bytes are missing, [`WireError::TooLarge`] for a length or a number of keys beyond its
/// limit. After an error the position is undefined.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// A reader after the first `position` bytes, which count as read.
    pub(super) fn at(bytes: &'a [u8], position: usize) -> Self {
        Self { bytes, position }
    }

    /// Number of bytes read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Reads `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let end = self.position.saturating_add(count);
        let taken = self.bytes.get(self.position..end).ok_or(WireError::Truncated { need: end })?;
        self.position = end;
        Ok(taken)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a 32-bit number.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads an unsigned 64-bit number.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a signed 64-bit number.
    pub fn i64(&mut self) -> Result<i64, WireError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Reads a key with its length.
    pub fn key(&mut self, limits: &Limits) -> Result<&'a [u8], WireError> {
        self.string("a key with a length in bytes", limits.max_key)
    }

    /// Reads a value with its length.
    pub fn value(&mut self, limits: &Limits) -> Result<&'a [u8], WireError> {
        self.string("a value with a length in bytes", limits.max_value)
    }

    /// Reads a number of keys. Nothing is allocated for them.
    pub fn count(&mut self, limits: &Limits) -> Result<usize, WireError> {
        let count = self.u64()?;
        within("a number of keys", count, limits.max_keys)
    }

    /// Reads a value of a reply with its length. After APPEND a value may be larger than one in a request.
    pub fn reply_value(&mut self, limits: &Limits) -> Result<&'a [u8], WireError> {
        self.string("a value with a length in bytes", limits.max_reply)
    }

    /// Reads the number of keys in a reply.
    pub fn reply_count(&mut self, limits: &Limits) -> Result<usize, WireError> {
        let count = self.i64()?;
        let count = u64::try_from(count).map_err(|_| WireError::NegativeCount(count))?;
        within("a number of keys", count, limits.max_reply / 8)
    }

    /// Reads a length of at most `max` and that many bytes.
    pub fn string(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let length = self.u64()?;
        let length = within(what, length, max)?;
        self.take(length)
    }

    /// Checks that no bytes are left.
    pub fn finish(self) -> Result<(), WireError> {
        match self.bytes.len() - self.position {
            0 => Ok(()),
            left => Err(WireError::Trailing { left }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
}

/// Converts `got` to a length if it is at most `max`.
pub(super) fn within(what: &'static str, got: u64, max: usize) -> Result<usize, WireError> {
    match usize::try_from(got) {
        Ok(length) if length <= max => Ok(length),
        _ => Err(WireError::TooLarge { what, got, max }),
    }
}

/// Appends a length and the bytes.
pub(super) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(&(string.len() as u64).to_le_bytes());
    out.extend_from_slice(string);
}

/// Appends a number of keys and the keys.
pub(super) fn put_keys(out: &mut Vec<u8>, keys: &[Key]) {
    out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
    keys.iter().for_each(|key| put_string(out, key));
}

/// Appends the number of entries, and the key and value of each.
pub(super) fn put_entries(out: &mut Vec<u8>, entries: &[(Key, Value)]) {
    out.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        put_string(out, key);
        put_string(out, value);
    }
}

/// Whether bytes contain a complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// This many bytes at the front are a request.
    Complete(usize),
    /// The request is incomplete: at least this many bytes are needed.
    Incomplete(usize),
}

impl Frame {
    /// Finds the end of the request at the front of `bytes` without allocating. If bytes arrive in pieces, a [`Scan`]
    /// looks at each byte once.
    ///
    /// # Errors
    /// An unknown operation, or a length beyond its limit. Never [`WireError::Truncated`].
    pub fn find(bytes: &[u8], limits: &Limits) -> Result<Self, WireError> {
        Scan::default().request(bytes, limits)
    }
}

/// How far the message at the front of a buffer has been scanned.
///
/// All calls for one message must get the same bytes, and more at the end. Until [`Frame::Incomplete`] bytes are there, a
/// call does no work, so a peer that sends byte by byte causes little work.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Bytes of complete fields.
    position: usize,
    /// Complete fields of a request.
    fields: usize,
    /// Keys, entries or values of a list that are still missing; `None` until its count has been read.
    left: Option<usize>,
    /// Number of fields and list items that were looked at, for tests.
    #[cfg(test)]
    looks: usize,
}

/// The items of a list.
#[derive(Clone, Copy)]
enum Item {
    Key,
    Entry,
    /// A value in a reply.
    Value,
}

impl Scan {
    /// Finds the end of the request at the front of `bytes`, without allocating.
    ///
    /// # Errors
    /// An unknown operation, or a length beyond its limit. Never [`WireError::Truncated`].
    pub fn request(&mut self, bytes: &[u8], limits: &Limits) -> Result<Frame, WireError> {
        let found = frame(self.fields_of_request(bytes, limits))?;
        let (Frame::Complete(length) | Frame::Incomplete(length)) = found;
        if length > limits.max_request {
            return Err(WireError::TooLarge {
                what: "a request with a length in bytes",
                got: length as u64,
                max: limits.max_request,
            });
        }
        Ok(found)
    }

    /// Finds the end of the reply at the front of `bytes`.
    ///
    /// # Errors
    /// A length beyond its limit. Never [`WireError::Truncated`].
    pub fn reply(&mut self, expect: Expect, bytes: &[u8], limits: &Limits) -> Result<Frame, WireError> {
        frame(self.parts_of_reply(expect, bytes, limits))
    }

    fn fields_of_request(&mut self, bytes: &[u8], limits: &Limits) -> Result<usize, WireError> {
        let operation = Operation::from_number(Reader::new(bytes).u8()?)?;
        self.position = self.position.max(1);
        while let Some(field) = operation.fields().get(self.fields) {
            match field {
                Field::Keys => self.list(bytes, limits, Item::Key, |reader| reader.count(limits))?,
                Field::Entries => self.list(bytes, limits, Item::Entry, |reader| reader.count(limits))?,
                single => self.one(bytes, |reader| single.pass(reader, limits))?,
            }
            self.fields += 1;
        }
        Ok(self.position)
    }

    fn parts_of_reply(&mut self, expect: Expect, bytes: &[u8], limits: &Limits) -> Result<usize, WireError> {
        match expect {
            Expect::Values(count) => self.list(bytes, limits, Item::Value, |_| Ok(count))?,
            Expect::Keys => self.list(bytes, limits, Item::Key, |reader| reader.reply_count(limits))?,
            single => {
                let mut reader = Reader::new(bytes);
                single.pass(&mut reader, limits)?;
                return Ok(reader.position());
            }
        }
        Ok(self.position)
    }

    /// Skips one field if it is complete.
    fn one(
        &mut self,
        bytes: &[u8],
        pass: impl FnOnce(&mut Reader<'_>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let mut reader = Reader::at(bytes, self.position);
        pass(&mut reader)?;
        self.position = reader.position();
        Ok(())
    }

    /// Skips a list. The missing bytes include the lengths of all remaining items.
    fn list(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        item: Item,
        count: impl FnOnce(&mut Reader<'_>) -> Result<usize, WireError>,
    ) -> Result<(), WireError> {
        if self.left.is_none() {
            let mut counted = 0;
            self.one(bytes, |reader| {
                counted = count(reader)?;
                Ok(())
            })?;
            self.left = Some(counted);
        }
        while let Some(left @ 1..) = self.left {
            let follow = (left - 1) * item.lengths();
            self.one(bytes, |reader| item.pass(reader, limits)).map_err(|error| match error {
                WireError::Truncated { need } => WireError::Truncated { need: need.saturating_add(follow) },
                other => other,
            })?;
            self.left = Some(left - 1);
        }
        Ok(())
    }
}

impl Item {
    fn pass(self, reader: &mut Reader<'_>, limits: &Limits) -> Result<(), WireError> {
        match self {
            Item::Key => drop(reader.key(limits)?),
            Item::Value => drop(reader.reply_value(limits)?),
            Item::Entry => {
                reader.key(limits)?;
                reader.value(limits)?;
            }
        }
        Ok(())
    }

    /// Bytes of the item's lengths, which is its minimum size.
    fn lengths(self) -> usize {
        match self {
            Item::Key | Item::Value => 8,
            Item::Entry => 16,
        }
    }
}

/// Converts the result of a scan to a frame.
fn frame(walked: Result<usize, WireError>) -> Result<Frame, WireError> {
    match walked {
        Ok(length) => Ok(Frame::Complete(length)),
        Err(WireError::Truncated { need }) => Ok(Frame::Incomplete(need)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{Reply, Request, *};

    #[test]
    fn reads_only_bytes_that_exist() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.take(3), Err(WireError::Truncated { need: 4 }));
        assert_eq!(reader.take(2), Ok(&[2, 3][..]));
        assert_eq!(reader.take(usize::MAX), Err(WireError::Truncated { need: usize::MAX }));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn refuses_bytes_that_are_left_over() {
        assert_eq!(Reader::new(&[7]).finish(), Err(WireError::Trailing { left: 1 }));
    }

    #[test]
    fn refuses_an_absurd_length_before_its_bytes_arrive() {
        let bytes = u64::MAX.to_le_bytes();
        let refused = Reader::new(&bytes).key(&Limits::default());
        assert!(matches!(refused, Err(WireError::TooLarge { got: u64::MAX, max: 8192, .. })), "{refused:?}");
    }

    const ITEMS: usize = 5_000;
    const PIECE: usize = 100;

    /// Feeds a message in pieces, as a connection does. Returns the number of pieces and of fields that were looked at.
    fn fed(bytes: &[u8], find: impl Fn(&mut Scan, &[u8]) -> Frame) -> (usize, usize) {
        let (mut scan, mut needs, mut pieces) = (Scan::default(), 1, 0);
        for end in (PIECE..bytes.len()).step_by(PIECE).chain([bytes.len()]) {
            pieces += 1;
            if end < needs {
                continue;
            }
            match find(&mut scan, &bytes[..end]) {
                Frame::Incomplete(more) => needs = more,
                Frame::Complete(length) => {
                    assert_eq!(length, bytes.len());
                    return (pieces, scan.looks);
                }
            }
        }
        panic!("the message was never complete");
    }

    #[test]
    fn looks_at_each_value_of_a_long_reply_once() {
        let mut bytes = Vec::new();
        Reply::Values(vec![vec![7; 20]; ITEMS]).encode(&mut bytes);
        let limits = Limits::default();
        let (pieces, looks) = fed(&bytes, |scan, bytes| scan.reply(Expect::Values(ITEMS), bytes, &limits).unwrap());
        assert!(looks <= ITEMS + pieces + 1, "{looks} looks at {ITEMS} values in {pieces} pieces");
    }

    #[test]
    fn looks_at_each_key_of_a_long_list_once() {
        let mut bytes = Vec::new();
        Reply::Keys(vec![vec![b'k'; 20]; ITEMS]).encode(&mut bytes);
        let limits = Limits::default();
        let (pieces, looks) = fed(&bytes, |scan, bytes| scan.reply(Expect::Keys, bytes, &limits).unwrap());
        assert!(looks <= ITEMS + pieces + 1, "{looks} looks at {ITEMS} keys in {pieces} pieces");
    }

    #[test]
    fn looks_at_each_entry_of_a_long_request_once() {
        let mut bytes = Vec::new();
        Request::MultiSet { entries: vec![(vec![b'k'; 10], vec![7; 40]); ITEMS] }.encode(&mut bytes);
        let limits = Limits::default();
        let (pieces, looks) = fed(&bytes, |scan, bytes| scan.request(bytes, &limits).unwrap());
        assert!(looks <= ITEMS + pieces + 1, "{looks} looks at {ITEMS} entries in {pieces} pieces");
    }

    #[test]
    fn finds_the_same_end_for_all_sizes_of_pieces() {
        let entries = vec![(b"a".to_vec(), b"1".to_vec()), (b"bc".to_vec(), Vec::new())];
        let requests = [
            Request::MultiSet { entries },
            Request::Wait { keys: vec![] },
            Request::CompareSet { key: b"k".into(), expected: b"e".into(), desired: b"d".into() },
            Request::NumKeys,
        ];
        for request in requests {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            let mut scan = Scan::default();
            for end in 1..bytes.len() {
                let found = scan.request(&bytes[..end], &Limits::default()).unwrap();
                assert!(matches!(found, Frame::Incomplete(need) if need > end && need <= bytes.len()), "{found:?}");
            }
            assert_eq!(scan.request(&bytes, &Limits::default()), Ok(Frame::Complete(bytes.len())));
        }
    }
}
