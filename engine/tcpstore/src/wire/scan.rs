//! Finds the end of a message whose bytes arrive in pieces. Not here: the meaning of the fields.
//!
//! A [`Scan`] remembers its position, so that it looks at every key and value once, however small the pieces are. If it
//! started again with each piece, the work would grow with the square of the message.

use super::message::{Field, Operation};
use super::{Expect, Limits, Reader, WireError};

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
    use super::super::{Reply, Request};
    use super::*;

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
