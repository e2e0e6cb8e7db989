//! The replies of a server. Not here: when it sends which.

use super::reader::put_string;
use super::{Key, Limits, Reader, Request, Value, WireError};

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
            Expect::Keys => Self::Keys(keys(reader, limits)?),
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

fn keys(reader: &mut Reader<'_>, limits: &Limits) -> Result<Vec<Key>, WireError> {
    let count = reader.reply_count(limits)?;
    (0..count).map(|_| reader.key(limits).map(<[u8]>::to_vec)).collect()
}
