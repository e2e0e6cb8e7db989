//! What a server answers. Left out: why it answers so.

use super::reader::put_string;
use super::{Key, Limits, Reader, Request, Value, WireError};

/// A reply with its fields. It does not say what it is: the request does ([`Expect`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// PING's nonce.
    Nonce(u32),
    /// GET's and COMPARE_SET's value.
    Value(Value),
    /// MULTI_GET's values, as many as keys were asked for; their number does not travel.
    Values(Vec<Value>),
    /// The number that ADD made, and that the counting operations counted.
    Number(i64),
    /// CHECK: all are there (0 on the wire) or not (1).
    Ready(bool),
    /// WAIT: all keys were there.
    StopWaiting,
    /// CANCEL_WAIT: nobody waits any more.
    WaitCanceled,
    /// QUEUE_POP's value, and how many values the queue held before.
    Popped {
        /// The queue's length before.
        before: i64,
        /// The value, there if `before` is above zero.
        value: Option<Value>,
    },
    /// LIST_KEYS.
    Keys(Vec<Key>),
}

/// What a request's reply will look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A nonce.
    Nonce,
    /// One value.
    Value,
    /// So many values.
    Values(usize),
    /// A number.
    Number,
    /// Whether keys are there.
    Ready,
    /// The end of a wait: [`Reply::StopWaiting`] or [`Reply::WaitCanceled`].
    Wait,
    /// A queue's front.
    Popped,
    /// Names of keys.
    Keys,
}

impl Expect {
    /// What follows on `request`, if anything does.
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

    /// Passes over a reply that is no list.
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
    /// Reads the one reply that `bytes` are.
    ///
    /// # Errors
    /// As of [`Reply::read`], and bytes that are left over.
    pub fn decode(expect: Expect, bytes: &[u8], limits: &Limits) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let reply = Self::read(expect, &mut reader, limits)?;
        reader.finish()?;
        Ok(reply)
    }

    /// Takes a reply from the front. Lengths may go up to [`Limits::max_reply`].
    ///
    /// # Errors
    /// Bytes that are missing, an answer of another kind, a length beyond the limit.
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

    /// Appends its bytes.
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
