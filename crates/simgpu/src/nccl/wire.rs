//! What ranks and the hub send each other, in frames of a length (`u32`) and that many bytes. All numbers are little-endian.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};

/// The most bytes of a frame: a message of 256 MiB, the memory of a device.
const MOST: u32 = 1 << 29;
/// The last byte occurs in no text.
const MAGIC: [u8; 12] = *b"lockstepsim\xff";
/// `NCCL_UNIQUE_ID_BYTES`.
const ID_BYTES: usize = 128;

/// `ncclUniqueId`: where the hub listens, a number that it gives once, and its secret. As in NCCL's, there are zeros among the
/// bytes, and some that are not text.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId([u8; ID_BYTES]);

/// What a unique id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HubAddress {
    pub(super) hub: SocketAddrV4,
    pub(super) token: u64,
    /// Random: on a network others may connect, too.
    pub(super) secret: u64,
}

impl UniqueId {
    pub(super) fn new(place: HubAddress) -> Self {
        let mut bytes = [0; ID_BYTES];
        let parts = [
            &MAGIC[..],
            &place.hub.port().to_le_bytes(),
            &place.token.to_be_bytes(),
            &place.hub.ip().octets(),
            &place.secret.to_le_bytes(),
        ];
        let said = joined(&parts);
        bytes[..said.len()].copy_from_slice(&said);
        UniqueId(bytes)
    }

    /// The hub's address; `None` if something else created these bytes, or they are truncated.
    pub(super) fn place(&self) -> Option<HubAddress> {
        let mut reader = Reader(&self.0[12..]);
        (self.0[..12] == MAGIC).then_some(())?;
        let port = u16::from_le_bytes(reader.take()?);
        let token = u64::from_be_bytes(reader.take()?);
        let hub = SocketAddrV4::new(Ipv4Addr::from(reader.take::<4>()?), port);
        let whole = hub.port() != 0 && !hub.ip().is_unspecified();
        whole.then_some(HubAddress { hub, token, secret: reader.u64()? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    ReduceScatter,
    AllGather,
    Send,
    Recv,
    Split,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::Send,
        Kind::Recv,
        Kind::Split,
    ];
}

/// What a rank sends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// A rank joins a communicator, with its machine, and its process and device there.
    Join {
        token: u64,
        secret: u64,
        rank: u32,
        size: u32,
        host: u64,
        process: u32,
        device: u32,
    },
    Call(Call),
    /// The rank leaves. If a connection ends without this message, the rank's process has ended.
    Leave,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// The number by which the rank recognizes the answer.
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) dtype: u32,
    pub(super) op: u32,
    /// Root or peer; the color of a split.
    pub(super) other: u32,
    /// Elements; the key of a split.
    pub(super) count: u64,
    pub(super) data: Vec<u8>,
}

/// What the hub sends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    /// All ranks are there.
    Joined,
    /// The rank cannot join.
    Refused(String),
    Answer {
        number: u64,
        data: Vec<u8>,
    },
    /// Another rank's process has ended.
    Lost {
        rank: u32,
    },
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn rest(self) -> Vec<u8> {
        self.0.to_vec()
    }
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Request::Join { token, secret, rank, size, host, process, device } => {
                let long: Vec<u8> = [token, secret, host].iter().flat_map(|number| number.to_le_bytes()).collect();
                let numbers: Vec<u8> =
                    [rank, size, process, device].iter().flat_map(|number| number.to_le_bytes()).collect();
                joined(&[&[0], &long, &numbers])
            }
            Request::Call(call) => {
                let numbers: Vec<u8> =
                    [call.dtype, call.op, call.other].iter().flat_map(|number| number.to_le_bytes()).collect();
                joined(&[
                    &[1, call.kind as u8],
                    &call.number.to_le_bytes(),
                    &numbers,
                    &call.count.to_le_bytes(),
                    &call.data,
                ])
            }
            Request::Leave => vec![2],
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [tag] = reader.take()?;
        Some(match tag {
            0 => Request::Join {
                token: reader.u64()?,
                secret: reader.u64()?,
                host: reader.u64()?,
                rank: reader.u32()?,
                size: reader.u32()?,
                process: reader.u32()?,
                device: reader.u32()?,
            },
            1 => {
                let [kind] = reader.take()?;
                let kind = *Kind::ALL.get(usize::from(kind))?;
                let number = reader.u64()?;
                let (dtype, op, other) = (reader.u32()?, reader.u32()?, reader.u32()?);
                let count = reader.u64()?;
                Request::Call(Call { number, kind, dtype, op, other, count, data: reader.rest() })
            }
            2 => Request::Leave,
            _ => return None,
        })
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Joined => vec![0],
            Reply::Refused(why) => joined(&[&[1], why.as_bytes()]),
            Reply::Answer { number, data } => joined(&[&[2], &number.to_le_bytes(), data]),
            Reply::Lost { rank } => joined(&[&[3], &rank.to_le_bytes()]),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [tag] = reader.take()?;
        Some(match tag {
            0 => Reply::Joined,
            1 => Reply::Refused(String::from_utf8(reader.rest()).ok()?),
            2 => Reply::Answer { number: reader.u64()?, data: reader.rest() },
            3 => Reply::Lost { rank: reader.u32()? },
            _ => return None,
        })
    }
}

pub(super) fn send(mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= MOST);
    let len = len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"))?;
    to.write_all(&joined(&[&len.to_le_bytes(), bytes]))
}

pub(super) fn receive(mut from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    let mut bytes = Vec::new();
    from.take(len.into()).read_to_end(&mut bytes)?;
    if bytes.len() == len as usize { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Numbers of a split's answer: the new communicator's token, and the rank and size in it.
pub(super) fn split_answer(data: &[u8]) -> Option<(u64, u32, u32)> {
    let mut reader = Reader(data);
    Some((reader.u64()?, reader.u32()?, reader.u32()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_arrive_as_they_were_sent_and_never_in_part() {
        let call = Call { number: 7, kind: Kind::AllGather, dtype: 7, op: 1, other: 2, count: 3, data: vec![1, 2, 3] };
        let requests = [
            Request::Join { token: u64::MAX, secret: 5, rank: 1, size: 2, host: 6, process: 3, device: 4 },
            Request::Call(call),
            Request::Leave,
        ];
        for request in requests {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request.clone()));
            let head = if matches!(request, Request::Call(_)) { bytes.len() - 3 } else { bytes.len() };
            assert!((0..head).all(|len| Request::decode(&bytes[..len]).is_none()), "{request:?}");
        }
        let refused = Reply::Refused("twice".into());
        for reply in [Reply::Joined, refused, Reply::Answer { number: 1, data: vec![0; 2] }, Reply::Lost { rank: 1 }] {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        assert_eq!((Request::decode(&[9]), Reply::decode(&[9]), Request::decode(&[1, 99])), (None, None, None));
    }

    #[test]
    fn knows_its_own_unique_ids() {
        let hub = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 4711);
        let place = HubAddress { hub, token: u64::MAX, secret: 1 << 40 };
        assert_eq!(UniqueId::new(place).place(), Some(place));
        assert_eq!(UniqueId([0; ID_BYTES]).place(), None);
    }
}
