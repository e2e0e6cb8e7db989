//! The messages: the requests of a client and the replies of a server. Not here: their effect and their order.

use super::{Key, Limits, Reader, Value, WireError, put_entries, put_keys, put_string};

/// A request with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants' texts explain the fields")]
pub enum Request {
    /// Opens a connection: the magic number. No reply.
    Validate { magic: u32 },
    /// Sets a key. No reply.
    Set { key: Key, value: Value },
    /// Sets a key if its value is `expected` (empty: if the key is missing).
    CompareSet { key: Key, expected: Value, desired: Value },
    /// Reads a key; the reply is empty if it is missing. Clients send WAIT first.
    Get { key: Key },
    /// Adds to the decimal number in the key (0 if it is missing).
    Add { key: Key, amount: i64 },
    /// Checks that all these keys exist.
    Check { keys: Vec<Key> },
    /// Replies once all these keys have been set.
    Wait { keys: Vec<Key> },
    /// The number of keys.
    NumKeys,
    /// Deletes a key.
    Delete { key: Key },
    /// Appends to the value of a key. No reply.
    Append { key: Key, value: Value },
    /// Reads several keys.
    MultiGet { keys: Vec<Key> },
    /// Sets several keys. No reply.
    MultiSet { entries: Vec<(Key, Value)> },
    /// Cancels the current wait.
    CancelWait,
    /// Replies with the same nonce.
    Ping { nonce: u32 },
    /// Appends a value to a queue. No reply.
    QueuePush { key: Key, value: Value },
    /// Removes the first value of a queue.
    QueuePop { key: Key },
    /// The number of values in a queue.
    QueueLen { key: Key },
    /// The names of all keys.
    ListKeys,
}

/// An operation's name and its number on the wire (`QueryType` in `TCPStoreBackend.hpp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "see the variants of Request")]
#[repr(u8)]
pub enum Operation {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    NumKeys = 7,
    Delete = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
}

/// A field of a request.
pub(super) enum Field {
    U32,
    I64,
    Key,
    Value,
    Keys,
    Entries,
}

impl Operation {
    /// All operations, by number.
    pub const ALL: [Self; 18] = [
        Self::Validate,
        Self::Set,
        Self::CompareSet,
        Self::Get,
        Self::Add,
        Self::Check,
        Self::Wait,
        Self::NumKeys,
        Self::Delete,
        Self::Append,
        Self::MultiGet,
        Self::MultiSet,
        Self::CancelWait,
        Self::Ping,
        Self::QueuePush,
        Self::QueuePop,
        Self::QueueLen,
        Self::ListKeys,
    ];

    /// The operation with this number.
    pub fn from_number(number: u8) -> Result<Self, WireError> {
        Self::ALL.get(usize::from(number)).copied().ok_or(WireError::UnknownOperation(number))
    }

    /// The operation's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Validate => "validate",
            Self::Set => "set",
            Self::CompareSet => "compare_set",
            Self::Get => "get",
            Self::Add => "add",
            Self::Check => "check",
            Self::Wait => "wait",
            Self::NumKeys => "num_keys",
            Self::Delete => "delete",
            Self::Append => "append",
            Self::MultiGet => "multi_get",
            Self::MultiSet => "multi_set",
            Self::CancelWait => "cancel_wait",
            Self::Ping => "ping",
            Self::QueuePush => "queue_push",
            Self::QueuePop => "queue_pop",
            Self::QueueLen => "queue_len",
            Self::ListKeys => "list_keys",
        }
    }

    pub(super) fn fields(self) -> &'static [Field] {
        match self {
            Self::Validate | Self::Ping => &[Field::U32],
            Self::Set | Self::Append | Self::QueuePush => &[Field::Key, Field::Value],
            Self::CompareSet => &[Field::Key, Field::Value, Field::Value],
            Self::Get | Self::Delete | Self::QueuePop | Self::QueueLen => &[Field::Key],
            Self::Add => &[Field::Key, Field::I64],
            Self::Check | Self::Wait | Self::MultiGet => &[Field::Keys],
            Self::MultiSet => &[Field::Entries],
            Self::NumKeys | Self::CancelWait | Self::ListKeys => &[],
        }
    }
}

impl Field {
    /// Skips a field that is not a list.
    pub(super) fn pass(&self, reader: &mut Reader<'_>, limits: &Limits) -> Result<(), WireError> {
        match self {
            Self::U32 => drop(reader.u32()?),
            Self::I64 => drop(reader.i64()?),
            Self::Key => drop(reader.key(limits)?),
            Self::Value => drop(reader.value(limits)?),
            Self::Keys | Self::Entries => {}
        }
        Ok(())
    }
}

impl Request {
    /// The request's operation.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Validate { .. } => Operation::Validate,
            Self::Set { .. } => Operation::Set,
            Self::CompareSet { .. } => Operation::CompareSet,
            Self::Get { .. } => Operation::Get,
            Self::Add { .. } => Operation::Add,
            Self::Check { .. } => Operation::Check,
            Self::Wait { .. } => Operation::Wait,
            Self::NumKeys => Operation::NumKeys,
            Self::Delete { .. } => Operation::Delete,
            Self::Append { .. } => Operation::Append,
            Self::MultiGet { .. } => Operation::MultiGet,
            Self::MultiSet { .. } => Operation::MultiSet,
            Self::CancelWait => Operation::CancelWait,
            Self::Ping { .. } => Operation::Ping,
            Self::QueuePush { .. } => Operation::QueuePush,
            Self::QueuePop { .. } => Operation::QueuePop,
            Self::QueueLen { .. } => Operation::QueueLen,
            Self::ListKeys => Operation::ListKeys,
        }
    }

    /// The request's key, or the first of several.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Set { key, .. }
            | Self::CompareSet { key, .. }
            | Self::Get { key }
            | Self::Add { key, .. }
            | Self::Delete { key }
            | Self::Append { key, .. }
            | Self::QueuePush { key, .. }
            | Self::QueuePop { key }
            | Self::QueueLen { key } => Some(key),
            Self::Check { keys } | Self::Wait { keys } | Self::MultiGet { keys } => keys.first(),
            Self::MultiSet { entries } => entries.first().map(|(key, _)| key),
            Self::Validate { .. } | Self::NumKeys | Self::CancelWait | Self::Ping { .. } | Self::ListKeys => None,
        }
    }

    /// Decodes a single request.
    ///
    /// # Errors
    /// Missing or left-over bytes, an unknown operation, a length beyond its limit.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let request = Self::read(&mut reader, limits)?;
        reader.finish()?;
        Ok(request)
    }

    fn read(r: &mut Reader<'_>, limits: &Limits) -> Result<Self, WireError> {
        let key = |r: &mut Reader<'_>| r.key(limits).map(<[u8]>::to_vec);
        let value = |r: &mut Reader<'_>| r.value(limits).map(<[u8]>::to_vec);
        Ok(match Operation::from_number(r.u8()?)? {
            Operation::Validate => Self::Validate { magic: r.u32()? },
            Operation::Set => Self::Set { key: key(r)?, value: value(r)? },
            Operation::CompareSet => Self::CompareSet { key: key(r)?, expected: value(r)?, desired: value(r)? },
            Operation::Get => Self::Get { key: key(r)? },
            Operation::Add => Self::Add { key: key(r)?, amount: r.i64()? },
            Operation::Check => Self::Check { keys: keys(r, limits)? },
            Operation::Wait => Self::Wait { keys: keys(r, limits)? },
            Operation::NumKeys => Self::NumKeys,
            Operation::Delete => Self::Delete { key: key(r)? },
            Operation::Append => Self::Append { key: key(r)?, value: value(r)? },
            Operation::MultiGet => Self::MultiGet { keys: keys(r, limits)? },
            Operation::MultiSet => Self::MultiSet { entries: entries(r, limits)? },
            Operation::CancelWait => Self::CancelWait,
            Operation::Ping => Self::Ping { nonce: r.u32()? },
            Operation::QueuePush => Self::QueuePush { key: key(r)?, value: value(r)? },
            Operation::QueuePop => Self::QueuePop { key: key(r)? },
            Operation::QueueLen => Self::QueueLen { key: key(r)? },
            Operation::ListKeys => Self::ListKeys,
        })
    }

    /// Appends the request's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.operation() as u8);
        match self {
            Self::Validate { magic: number } | Self::Ping { nonce: number } => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Set { key, value } | Self::Append { key, value } | Self::QueuePush { key, value } => {
                put_string(out, key);
                put_string(out, value);
            }
            Self::CompareSet { key, expected, desired } => {
                put_string(out, key);
                put_string(out, expected);
                put_string(out, desired);
            }
            Self::Get { key } | Self::Delete { key } | Self::QueuePop { key } | Self::QueueLen { key } => {
                put_string(out, key);
            }
            Self::Add { key, amount } => {
                put_string(out, key);
                out.extend_from_slice(&amount.to_le_bytes());
            }
            Self::Check { keys } | Self::Wait { keys } | Self::MultiGet { keys } => put_keys(out, keys),
            Self::MultiSet { entries } => put_entries(out, entries),
            Self::NumKeys | Self::CancelWait | Self::ListKeys => {}
        }
    }
}

fn keys(reader: &mut Reader<'_>, limits: &Limits) -> Result<Vec<Key>, WireError> {
    let count = reader.count(limits)?;
    (0..count).map(|_| reader.key(limits).map(<[u8]>::to_vec)).collect()
}

fn entries(reader: &mut Reader<'_>, limits: &Limits) -> Result<Vec<(Key, Value)>, WireError> {
    let count = reader.count(limits)?;
    (0..count).map(|_| Ok((reader.key(limits)?.to_vec(), reader.value(limits)?.to_vec()))).collect()
}

/// A reply with its fields. Its type is not on the wire; it follows from the request ([`Expect`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// PING's nonce.
    Nonce(u32),
    /// GET's and COMPARE_SET's value.
    Value(Value),
    /// MULTI_GET's values, one per key; their number is not on the wire.
    Values(Vec<Value>),
    /// The sum of ADD, or the result of an operation that counts.
    Number(i64),
    /// CHECK: all keys exist (0 on the wire) or not (1).
    Ready(bool),
    /// WAIT: all keys have been set.
    StopWaiting,
    /// CANCEL_WAIT: the wait has been cancelled.
    WaitCanceled,
    /// QUEUE_POP's value, and the length of the queue before it.
    Popped {
        /// The queue's length before the operation.
        before: i64,
        /// The value, if `before` is above zero.
        value: Option<Value>,
    },
    /// LIST_KEYS.
    Keys(Vec<Key>),
}

/// The type of the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A nonce.
    Nonce,
    /// One value.
    Value,
    /// This number of values.
    Values(usize),
    /// A number.
    Number,
    /// Whether keys exist.
    Ready,
    /// The end of a wait: [`Reply::StopWaiting`] or [`Reply::WaitCanceled`].
    Wait,
    /// The first value of a queue.
    Popped,
    /// The names of keys.
    Keys,
}

impl Expect {
    /// The type of the reply to `request`, if it has one.
    pub fn after(request: &Request) -> Option<Self> {
        match request {
            Request::Ping { .. } => Some(Self::Nonce),
            Request::Get { .. } | Request::CompareSet { .. } => Some(Self::Value),
            Request::MultiGet { keys } => Some(Self::Values(keys.len())),
            Request::Add { .. } | Request::NumKeys | Request::Delete { .. } | Request::QueueLen { .. } => {
                Some(Self::Number)
            }
            Request::Check { .. } => Some(Self::Ready),
            Request::Wait { .. } | Request::CancelWait => Some(Self::Wait),
            Request::QueuePop { .. } => Some(Self::Popped),
            Request::ListKeys => Some(Self::Keys),
            Request::Validate { .. }
            | Request::Set { .. }
            | Request::Append { .. }
            | Request::MultiSet { .. }
            | Request::QueuePush { .. } => None,
        }
    }

    /// Skips a reply that is not a list.
    pub(super) fn pass(self, reader: &mut Reader<'_>, limits: &Limits) -> Result<(), WireError> {
        match self {
            Self::Nonce => drop(reader.u32()?),
            Self::Value => drop(reader.reply_value(limits)?),
            Self::Number => drop(reader.i64()?),
            Self::Ready | Self::Wait => drop(reader.u8()?),
            Self::Popped if reader.i64()? > 0 => drop(reader.reply_value(limits)?),
            Self::Popped | Self::Values(_) | Self::Keys => {}
        }
        Ok(())
    }
}

impl Reply {
    /// Decodes a single reply.
    ///
    /// # Errors
    /// As for [`Reply::read`], and bytes that are left over.
    pub fn decode(expect: Expect, bytes: &[u8], limits: &Limits) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let reply = Self::read(expect, &mut reader, limits)?;
        reader.finish()?;
        Ok(reply)
    }

    /// Reads a reply from the front. Lengths may be up to [`Limits::max_reply`].
    ///
    /// # Errors
    /// Missing bytes, an answer of another type, a length beyond its limit.
    pub fn read(expect: Expect, reader: &mut Reader<'_>, limits: &Limits) -> Result<Self, WireError> {
        Ok(match expect {
            Expect::Nonce => Self::Nonce(reader.u32()?),
            Expect::Value => Self::Value(value(reader, limits)?),
            Expect::Values(count) => Self::Values((0..count).map(|_| value(reader, limits)).collect::<Result<_, _>>()?),
            Expect::Number => Self::Number(reader.i64()?),
            Expect::Ready => match reader.u8()? {
                0 => Self::Ready(true),
                1 => Self::Ready(false),
                other => return Err(WireError::UnknownAnswer(other)),
            },
            Expect::Wait => match reader.u8()? {
                0 => Self::StopWaiting,
                1 => Self::WaitCanceled,
                other => return Err(WireError::UnknownAnswer(other)),
            },
            Expect::Popped => {
                let before = reader.i64()?;
                Self::Popped { before, value: (before > 0).then(|| value(reader, limits)).transpose()? }
            }
            Expect::Keys => Self::Keys(reply_keys(reader, limits)?),
        })
    }

    /// Appends the reply's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nonce(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
            Self::Value(value) => put_string(out, value),
            Self::Values(values) => values.iter().for_each(|value| put_string(out, value)),
            Self::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Ready(ready) => out.push(u8::from(!ready)),
            Self::StopWaiting => out.push(0),
            Self::WaitCanceled => out.push(1),
            Self::Popped { before, value } => {
                out.extend_from_slice(&before.to_le_bytes());
                value.iter().for_each(|value| put_string(out, value));
            }
            Self::Keys(keys) => {
                out.extend_from_slice(&(keys.len() as i64).to_le_bytes());
                keys.iter().for_each(|key| put_string(out, key));
            }
        }
    }
}

fn value(reader: &mut Reader<'_>, limits: &Limits) -> Result<Value, WireError> {
    reader.reply_value(limits).map(<[u8]>::to_vec)
}

fn reply_keys(reader: &mut Reader<'_>, limits: &Limits) -> Result<Vec<Key>, WireError> {
    let count = reader.reply_count(limits)?;
    (0..count).map(|_| reader.key(limits).map(<[u8]>::to_vec)).collect()
}
