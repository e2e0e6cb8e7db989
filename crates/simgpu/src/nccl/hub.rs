//! The hub: joins the ranks of a communicator and answers their operations.
//!
//! Ranks and the hub send each other frames of a length (`u32`) and that many bytes. All numbers are little-endian.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use super::reduce;

/// The communicators of this process's unique ids, by their tokens.
#[derive(Default)]
struct Hub {
    last_token: u64,
    groups: HashMap<u64, Group>,
}

struct Group {
    members: Vec<Option<Member>>,
    /// All ranks have joined. A unique id is good for one communicator.
    complete: bool,
    /// Two ranks have sent operations that do not match: later ones are not answered.
    stuck: bool,
    /// Messages without their counterpart yet, by sender and receiver.
    sends: HashMap<(u32, u32), VecDeque<Call>>,
    recvs: HashMap<(u32, u32), VecDeque<Call>>,
}

struct Member {
    connection: Arc<TcpStream>,
    host: u64,
    process: u32,
    device: u32,
    collectives: VecDeque<Call>,
}

type Shared = Arc<Mutex<Hub>>;

/// A process's hub, once it listens.
struct Served {
    at: SocketAddrV4,
    secret: u64,
    hub: Shared,
}

/// A new unique id of this process's hub, which starts with the first.
pub(super) fn new_id() -> io::Result<UniqueId> {
    static HUB: OnceLock<io::Result<Served>> = OnceLock::new();
    let served = HUB.get_or_init(start).as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
    let token = lock(&served.hub).token();
    Ok(UniqueId::new(HubAddress { hub: served.at, token, secret: served.secret }))
}

fn lock(hub: &Mutex<Hub>) -> std::sync::MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> io::Result<Served> {
    let address = super::address()?;
    let listener = TcpListener::bind((address, 0))?;
    let at = SocketAddrV4::new(address, listener.local_addr()?.port());
    let (hub, secret) = (Shared::default(), super::secret()?);
    let served = Arc::clone(&hub);
    thread::Builder::new().name("nccl hub".into()).spawn(move || {
        for connection in listener.incoming().flatten() {
            let hub = Arc::clone(&served);
            // Without a thread the connection is closed, which its rank reports.
            let _ = thread::Builder::new().name("nccl rank".into()).spawn(move || serve(&hub, secret, connection));
        }
    })?;
    Ok(Served { at, secret, hub })
}

/// One rank of one communicator, from its first word to its last.
fn serve(hub: &Mutex<Hub>, secret: u64, connection: TcpStream) {
    let _ = connection.set_nodelay(true);
    let connection = Arc::new(connection);
    let next = || receive(&connection).ok().and_then(|bytes| Request::decode(&bytes));
    let Some(Request::Join { token, secret: said, rank, size, host, process, device }) = next() else { return };
    if said != secret {
        return;
    }
    let member = Member { connection: Arc::clone(&connection), host, process, device, collectives: VecDeque::new() };
    if let Err(why) = lock(hub).join(token, rank, size, member) {
        let _ = send_frame(&connection, &Reply::Refused(why).encode());
        return;
    }
    let left = loop {
        match next() {
            Some(Request::Call(call)) => lock(hub).call(token, rank, call),
            Some(Request::Leave) => break true,
            _ => break false,
        }
    };
    lock(hub).leave(token, rank, left);
}

impl Hub {
    fn token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn join(&mut self, token: u64, rank: u32, size: u32, member: Member) -> Result<(), String> {
        if token == 0 || token > self.last_token || rank >= size {
            return Err(format!("this unique id is not of this process, or rank {rank} not below {size}"));
        }
        let group = self.groups.entry(token).or_insert_with(|| Group::new(size));
        if group.complete {
            return Err("this unique id has been used: each communicator needs one of its own".into());
        }
        if group.members.len() != size as usize {
            return Err(format!("rank {rank} says {size} ranks, others say {}", group.members.len()));
        }
        let place = &mut group.members[rank as usize];
        if place.is_some() {
            return Err(format!("there are two ranks {rank}"));
        }
        *place = Some(member);
        if group.members.iter().all(Option::is_some) {
            group.complete = true;
            let reply = group.twice().map_or(Reply::Joined, Reply::Refused);
            group.tell_all(|_| Some(reply.clone()));
        }
        Ok(())
    }

    fn leave(&mut self, token: u64, rank: u32, orderly: bool) {
        let Some(group) = self.groups.get_mut(&token) else { return };
        group.members[rank as usize] = None;
        if !orderly {
            group.tell_all(|_| Some(Reply::Lost { rank }));
        }
    }

    fn call(&mut self, token: u64, rank: u32, call: Call) {
        let Some(group) = self.groups.get_mut(&token) else { return };
        match call.kind {
            Kind::Send => group.sends.entry((rank, call.other)).or_default().push_back(call),
            Kind::Recv => group.recvs.entry((call.other, rank)).or_default().push_back(call),
            _ => {
                if let Some(member) = &mut group.members[rank as usize] {
                    member.collectives.push_back(call);
                }
            }
        }
        group.messages();
        while let Some(calls) = group.next_collective() {
            let answers = match calls[0].kind {
                Kind::Split => split(&calls, |_| {
                    self.last_token += 1;
                    self.last_token
                }),
                _ => answers(&calls),
            };
            group.tell_all(|rank| Some(Reply::Answer { number: calls[rank].number, data: answers[rank].clone() }));
        }
    }
}

impl Group {
    fn new(size: u32) -> Self {
        let members = (0..size).map(|_| None).collect();
        Group { members, complete: false, stuck: false, sends: HashMap::new(), recvs: HashMap::new() }
    }

    /// Two ranks on one device, which NCCL refuses.
    fn twice(&self) -> Option<String> {
        let device = |rank: usize| self.members[rank].as_ref().map(|member| (member.host, member.device));
        let pairs = (0..self.members.len()).flat_map(|one| (0..one).map(move |other| (other, one)));
        let (one, other) = pairs.into_iter().find(|(one, other)| device(*one) == device(*other))?;
        Some(format!("duplicate GPU detected: rank {one} and rank {other} are both on device {}", device(one)?.1))
    }

    /// Ranks of other processes get their replies first: this process may end once its own rank has its reply.
    fn tell_all(&self, reply: impl Fn(usize) -> Option<Reply>) {
        let mut present: Vec<(usize, &Member)> =
            self.members.iter().enumerate().filter_map(|(rank, member)| Some((rank, member.as_ref()?))).collect();
        present.sort_by_key(|(_, member)| member.process == std::process::id());
        for (rank, member) in present {
            if let Some(reply) = reply(rank) {
                // Its own thread notices a connection that has ended.
                let _ = send_frame(&member.connection, &reply.encode());
            }
        }
    }

    /// The next operation of all ranks, if all have sent it.
    fn next_collective(&mut self) -> Option<Vec<Call>> {
        let fronts: Option<Vec<&Call>> =
            self.members.iter().map(|member| member.as_ref()?.collectives.front()).collect();
        let fronts = fronts.filter(|_| !self.stuck)?;
        let what = |call: &Call| match call.kind {
            Kind::Split => (Kind::Split, 0, 0, 0, 0),
            kind => (kind, call.dtype, call.op, call.other, call.count),
        };
        if fronts.iter().any(|call| what(call) != what(fronts[0])) {
            self.stuck = true;
            return None;
        }
        self.members.iter_mut().map(|member| member.as_mut()?.collectives.pop_front()).collect()
    }

    /// Answers pairs of a send and a receive. Pairs of unequal lengths wait, and so do those behind them.
    fn messages(&mut self) {
        for ((from, to), sends) in &mut self.sends {
            let Some(recvs) = self.recvs.get_mut(&(*from, *to)) else { continue };
            while let (Some(send), Some(recv)) = (sends.front(), recvs.front())
                && (send.count, send.dtype) == (recv.count, recv.dtype)
            {
                let (Some(send), Some(recv)) = (sends.pop_front(), recvs.pop_front()) else { break };
                let replies = [(*to, recv.number, send.data), (*from, send.number, Vec::new())];
                let mut replies =
                    replies.map(|(rank, number, data)| (self.members[rank as usize].as_ref(), number, data));
                // As in `tell_all`.
                replies.sort_by_key(|(member, ..)| member.is_some_and(|member| member.process == std::process::id()));
                for (member, number, data) in replies {
                    if let Some(member) = member {
                        let _ = send_frame(&member.connection, &Reply::Answer { number, data }.encode());
                    }
                }
            }
        }
    }
}

/// Each rank's result of a collective.
fn answers(calls: &[Call]) -> Vec<Vec<u8>> {
    let Call { kind, dtype, op, other, .. } = calls[0];
    let data: Vec<Vec<u8>> = calls.iter().map(|call| call.data.clone()).collect();
    let to_all = |result: Vec<u8>| vec![result; calls.len()];
    let to_root = |result: Vec<u8>| {
        (0..calls.len()).map(|rank| if rank == other as usize { result.clone() } else { Vec::new() }).collect()
    };
    match kind {
        Kind::AllReduce => to_all(reduce::all(&data, dtype, op)),
        Kind::Reduce => to_root(reduce::all(&data, dtype, op)),
        Kind::Broadcast => to_all(data[other as usize].clone()),
        Kind::AllGather => to_all(data.concat()),
        _ => {
            let result = reduce::all(&data, dtype, op);
            let each = (result.len() / calls.len()).max(1);
            let mut parts: Vec<Vec<u8>> = result.chunks(each).map(<[u8]>::to_vec).collect();
            parts.resize(calls.len(), Vec::new());
            parts
        }
    }
}

/// Each rank's new token, rank and size. Ranks of one color are together, by key and then by rank.
fn split(calls: &[Call], mut token: impl FnMut(u32) -> u64) -> Vec<Vec<u8>> {
    let mut ranks: Vec<usize> = (0..calls.len()).collect();
    ranks.sort_by_key(|rank| (calls[*rank].other as i32, calls[*rank].count as i64, *rank));
    let mut found = vec![Vec::new(); calls.len()];
    for together in ranks.chunk_by(|one, other| calls[*one].other == calls[*other].other) {
        let color = calls[together[0]].other;
        if color as i32 == super::NO_COLOR {
            continue;
        }
        let token = token(color);
        for (new, rank) in together.iter().enumerate() {
            let size = together.len() as u32;
            found[*rank] = [&token.to_le_bytes()[..], &(new as u32).to_le_bytes(), &size.to_le_bytes()].concat();
        }
    }
    found
}

/// The most bytes of a frame: a message of 256 MiB, the memory of a device.
const MOST: u32 = 1 << 29;
/// The last byte occurs in no text.
const MAGIC: [u8; 12] = *b"lockstepsim\xff";
/// `NCCL_UNIQUE_ID_BYTES`.
const ID_BYTES: usize = 128;

/// `ncclUniqueId`: where the hub listens, its secret, and a number that it gives once. They are repeated, so that all bytes count. As in NCCL's,
/// there are zeros among the bytes, and some that are not text.
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
        let parts = [
            &MAGIC[..],
            &place.hub.port().to_le_bytes(),
            &place.hub.ip().octets(),
            &place.secret.to_le_bytes(),
            &place.token.to_be_bytes(),
        ];
        let said = joined(&parts);
        UniqueId(std::array::from_fn(|at| said[at % said.len()]))
    }

    /// The hub's address; `None` if something else created these bytes, or one of them is another.
    pub(super) fn place(&self) -> Option<HubAddress> {
        let mut reader = Reader(&self.0[12..]);
        (self.0[..12] == MAGIC).then_some(())?;
        let port = u16::from_le_bytes(reader.take()?);
        let hub = SocketAddrV4::new(Ipv4Addr::from(reader.take::<4>()?), port);
        let secret = reader.u64()?;
        let place = HubAddress { hub, secret, token: u64::from_be_bytes(reader.take()?) };
        (UniqueId::new(place).0 == self.0).then_some(place)
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

pub(super) fn send_frame(mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
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

    fn call(kind: Kind, other: u32, count: u64, data: &[i32]) -> Call {
        let data = data.iter().flat_map(|number| number.to_le_bytes()).collect();
        Call { number: 0, kind, dtype: 2, op: 0, other, count, data }
    }

    fn numbers(data: &[Vec<u8>]) -> Vec<Vec<i32>> {
        let each = |bytes: &Vec<u8>| bytes.chunks(4).map(|four| i32::from_le_bytes(four.try_into().unwrap())).collect();
        data.iter().map(each).collect()
    }

    #[test]
    fn collectives_give_each_rank_its_part() {
        let of = |kind| numbers(&answers(&[call(kind, 1, 2, &[1, 2]), call(kind, 1, 2, &[10, 20])]));
        assert_eq!(of(Kind::AllReduce), [[11, 22], [11, 22]]);
        assert_eq!(of(Kind::Reduce), [vec![], vec![11, 22]]);
        assert_eq!(of(Kind::Broadcast), [[10, 20], [10, 20]]);
        assert_eq!(of(Kind::AllGather), [[1, 2, 10, 20], [1, 2, 10, 20]]);
        assert_eq!(of(Kind::ReduceScatter), [[11], [22]]);
    }

    #[test]
    fn a_split_orders_by_key_and_leaves_out_who_has_no_color() {
        let keys = [(0_i32, 5), (-1, 0), (0, 3), (7, 0)];
        let calls = keys.map(|(color, key)| call(Kind::Split, color as u32, key, &[]));
        let mut last = 0;
        let found = split(&calls, |_| {
            last += 1;
            last
        });
        let found: Vec<_> = found.iter().map(|data| split_answer(data)).collect();
        assert_eq!(found, [Some((1, 1, 2)), None, Some((1, 0, 2)), Some((2, 0, 1))]);
    }

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
        for at in 0..ID_BYTES {
            let mut other = UniqueId::new(place);
            other.0[at] ^= 1;
            assert_eq!(other.place(), None, "byte {at}");
        }
    }
}
