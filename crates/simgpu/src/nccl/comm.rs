//! A communicator, as one rank has it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use std::{io, thread};

use super::hub::{self, Call, HubAddress, Kind, Reply, Request, UniqueId};
use super::refuse;
use crate::streams::{self, Operation};
use crate::{Cuda, Nccl, cuda, world};

pub(super) struct Comm {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) device: usize,
    place: HubAddress,
    connection: TcpStream,
    /// Frames are sent one after another.
    sending: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    joined: bool,
    refused: Option<String>,
    answers: HashMap<u64, Vec<u8>>,
    last_call: u64,
    /// What `ncclCommGetAsyncError` returns.
    error: Option<Nccl>,
    aborted: bool,
    /// The stream and the number of the last operation that was issued.
    last: Option<(u64, u64)>,
}

/// Why calls have no answers.
enum Unanswered {
    /// The communicator was aborted.
    Aborted,
    /// The device's deadline has passed.
    Late,
}

type Comms = Mutex<HashMap<usize, Arc<Comm>>>;

fn comms() -> MutexGuard<'static, HashMap<usize, Arc<Comm>>> {
    static COMMS: OnceLock<Comms> = OnceLock::new();
    COMMS.get_or_init(Comms::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device's deadline, for a message.
fn deadline() -> String {
    format!("{} s", world::options().deadline.as_secs())
}

fn unknown() -> Nccl {
    refuse(Nccl::INVALID_ARGUMENT, "there is no such communicator: it was destroyed or aborted")
}

pub(super) fn get(handle: *mut c_void) -> Result<Arc<Comm>, Nccl> {
    comms().get(&(handle as usize)).cloned().ok_or_else(unknown)
}

pub(super) fn take(handle: *mut c_void) -> Result<Arc<Comm>, Nccl> {
    comms().remove(&(handle as usize)).ok_or_else(unknown)
}

pub(super) fn add(comm: Arc<Comm>) -> *mut c_void {
    let handle = world::lock().handle() as usize;
    comms().insert(handle, comm);
    handle as *mut c_void
}

impl Comm {
    /// Joins the communicator of a unique id, and waits for all its ranks.
    pub(super) fn join(id: &UniqueId, rank: u32, size: u32, device: usize) -> Result<Arc<Self>, Nccl> {
        let place = id
            .place()
            .ok_or_else(|| refuse(Nccl::INVALID_ARGUMENT, "these bytes are not a unique id of ncclGetUniqueId"))?;
        Comm::connect(place, (rank, size), device)
    }

    fn connect(place: HubAddress, (rank, size): (u32, u32), device: usize) -> Result<Arc<Self>, Nccl> {
        let failed =
            |error: io::Error| refuse(Nccl::SYSTEM_ERROR, format!("who made the unique id is not there: {error}"));
        let connection = TcpStream::connect_timeout(&place.hub.into(), world::options().deadline).map_err(failed)?;
        let _ = connection.set_nodelay(true);
        let (sending, state, changed) = (Mutex::default(), Mutex::default(), Condvar::new());
        let comm = Arc::new(Comm { rank, size, device, place, connection, sending, state, changed });
        let physical = world::lock().devices.get(device).map_or(0, |device| device.physical as u32);
        let reader = Arc::clone(&comm);
        thread::Builder::new().name("nccl answers".into()).spawn(move || reader.read()).map_err(failed)?;
        let (host, process, HubAddress { token, secret, .. }) = (super::host(), std::process::id(), place);
        let join = Request::Join { token, secret, rank, size, host, process, device: physical };
        let sent = comm.send(&join).map_err(failed);
        let joined = sent.and_then(|()| comm.wait_for_all());
        // Its thread and its connection end, whatever the reason.
        joined.inspect_err(|_| comm.abort())?;
        Ok(comm)
    }

    fn wait_for_all(&self) -> Result<(), Nccl> {
        let state = self.wait_until(|state| state.joined || state.refused.is_some() || state.error.is_some());
        let why = match state {
            Some(state) if state.joined => return Ok(()),
            Some(State { refused: Some(why), .. }) => return Err(refuse(Nccl::INVALID_USAGE, why)),
            Some(_) => "who made the unique id has ended".to_owned(),
            None => format!("not all of {} ranks came within {}", self.size, deadline()),
        };
        Err(refuse(Nccl::REMOTE_ERROR, why))
    }

    /// Receives what the hub sends until the connection ends.
    fn read(&self) {
        while let Some(reply) = hub::receive(&self.connection).ok().and_then(|bytes| Reply::decode(&bytes)) {
            let mut state = self.state();
            match reply {
                Reply::Joined => state.joined = true,
                Reply::Refused(why) => state.refused = Some(why),
                Reply::Answer { number, data } => drop(state.answers.insert(number, data)),
                Reply::Lost { .. } => drop(state.error.get_or_insert(Nccl::REMOTE_ERROR)),
            }
            self.changed.notify_all();
        }
        let mut state = self.state();
        if !state.aborted {
            state.error.get_or_insert(Nccl::REMOTE_ERROR);
        }
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is` holds. None if the device's deadline passes before.
    fn wait_until(&self, is: impl Fn(&State) -> bool) -> Option<State> {
        let begun = Instant::now();
        let mut state = self.state();
        while !is(&state) {
            let left = world::options().deadline.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(state.copy())
    }

    fn send(&self, request: &Request) -> io::Result<()> {
        let _one = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        hub::send_frame(&self.connection, &request.encode())
    }

    /// Asks for the work that this process has issued for other ranks of the communicator, because this rank waits for them.
    fn want_others(&self) {
        let is_other = |other: &&Arc<Comm>| other.place == self.place;
        let places: Vec<(u64, u64)> = comms().values().filter(is_other).filter_map(|other| other.last()).collect();
        let mut world = world::lock();
        places.into_iter().for_each(|(stream, number)| world.want(stream, number));
    }

    /// Sends calls and waits for their answers, in their order.
    fn ask(&self, mut calls: Vec<Call>) -> Result<Vec<Vec<u8>>, Unanswered> {
        self.want_others();
        let numbers: Vec<u64> = {
            let mut state = self.state();
            calls
                .iter_mut()
                .map(|call| {
                    state.last_call += 1;
                    call.number = state.last_call;
                    call.number
                })
                .collect()
        };
        for call in calls {
            if self.send(&Request::Call(call)).is_err() {
                self.state().error.get_or_insert(Nccl::REMOTE_ERROR);
            }
        }
        let all = |state: &State| state.aborted || numbers.iter().all(|number| state.answers.contains_key(number));
        self.wait_until(all).ok_or(Unanswered::Late)?;
        let mut state = self.state();
        let answers: Option<_> = numbers.iter().map(|number| state.answers.remove(number)).collect();
        answers.ok_or(Unanswered::Aborted)
    }

    /// A new communicator of the ranks with this color. None without a color.
    pub(super) fn split(&self, color: i32, key: i32) -> Result<Option<Arc<Self>>, Nccl> {
        let (kind, dtype, op, data) = (Kind::Split, 0, 0, Vec::new());
        let call = Call { number: 0, kind, dtype, op, other: color as u32, count: i64::from(key) as u64, data };
        let answers = self.ask(vec![call]).map_err(|why| match why {
            Unanswered::Aborted => refuse(Nccl::REMOTE_ERROR, "the communicator was aborted"),
            Unanswered::Late => refuse(Nccl::REMOTE_ERROR, format!("not all ranks split it within {}", deadline())),
        })?;
        let place = hub::split_answer(&answers[0]);
        place
            .map(|(token, rank, size)| Comm::connect(HubAddress { token, ..self.place }, (rank, size), self.device))
            .transpose()
    }

    pub(super) fn abort(&self) {
        self.state().aborted = true;
        self.changed.notify_all();
        let _ = self.send(&Request::Leave);
        let _ = self.connection.shutdown(Shutdown::Both);
    }

    pub(super) fn error(&self) -> Nccl {
        let (last, error) = {
            let state = self.state();
            (state.last, state.error)
        };
        // A caller that asks for the error waits for the communicator's work.
        if let Some((stream, number)) = last {
            world::call().want(stream, number);
        }
        error.unwrap_or(Nccl::SUCCESS)
    }

    pub(super) fn fail(&self, error: Nccl) {
        self.state().error.get_or_insert(error);
    }

    /// The last operation that was issued, and then this one.
    fn follow(&self, place: (u64, u64)) {
        self.state().last = Some(place);
    }

    pub(super) fn last(&self) -> Option<(u64, u64)> {
        self.state().last
    }

    /// Waits for all operations that were issued.
    pub(super) fn finish(&self) -> Result<(), Nccl> {
        let Some((stream, number)) = self.last() else { return Ok(()) };
        let waited = streams::wait_for(world::call(), stream, number).map(|_| ());
        waited.map_err(|error| refuse(Nccl::UNHANDLED_CUDA_ERROR, format!("CUDA's error {}", error.0)))
    }
}

impl State {
    /// The state that a waiting thread checks, without the answers.
    fn copy(&self) -> State {
        let State { joined, last_call, error, aborted, last, .. } = *self;
        State { joined, refused: self.refused.clone(), answers: HashMap::new(), last_call, error, aborted, last }
    }
}

// Grouped calls: what a thread issues between `ncclGroupStart` and `ncclGroupEnd` is issued at the end, together.

/// A rank that joins, and where its communicator goes.
pub(super) struct Join {
    pub(super) id: UniqueId,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) device: usize,
    /// The address of an `ncclComm_t`.
    pub(super) to: usize,
}

/// Calls with their streams.
type Parts = Vec<(Part, u64)>;

#[derive(Default)]
struct Group {
    depth: u32,
    joins: Vec<Join>,
    parts: Vec<(Arc<Comm>, Part, u64)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(super) fn start_group() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

pub(super) fn join(join: Join) -> Result<(), Nccl> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.joins.push(join));
        return Ok(());
    }
    join_all(vec![join])
}

/// Ranks of one thread have to join at once: each waits for the others.
pub(super) fn join_all(joins: Vec<Join>) -> Result<(), Nccl> {
    let threads = joins.into_iter().map(|join| {
        thread::spawn(move || {
            let Join { id, rank, size, device, to } = join;
            // The error's reason is stored per thread, so it is returned with the error.
            let joined = cuda::on_device(device, || Comm::join(&id, rank, size, device));
            (to, joined.map_err(|error| (error, super::LAST_ERROR.with_borrow(Clone::clone))))
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut failed = Ok(());
    for thread in threads {
        match thread.join() {
            // SAFETY: NCCL's contract: where a communicator goes may be written until the group ends, and this is its end.
            Ok((to, Ok(joined))) => unsafe { (to as *mut *mut c_void).write(add(joined)) },
            Ok((_, Err((error, why)))) => {
                super::LAST_ERROR.set(why);
                failed = Err(error);
            }
            Err(_) => failed = Err(refuse(Nccl::SYSTEM_ERROR, "a thread ended")),
        }
    }
    failed
}

pub(super) fn issue(comm: Arc<Comm>, part: Part, stream: u64) -> Result<(), Nccl> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.parts.push((comm, part, stream)));
        return Ok(());
    }
    enqueue(comm, vec![(part, stream)])
}

pub(super) fn end_group() -> Result<(), Nccl> {
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some(if group.depth == 0 { std::mem::take(group) } else { Group::default() })
    });
    let group = ended.ok_or_else(|| refuse(Nccl::INVALID_USAGE, "ncclGroupEnd without ncclGroupStart"))?;
    if !group.joins.is_empty() {
        join_all(group.joins)?;
    }
    let mut together: Vec<(Arc<Comm>, Parts)> = Vec::new();
    for (comm, part, stream) in group.parts {
        match together.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &comm)) {
            Some((_, parts)) => parts.push((part, stream)),
            None => together.push((comm, vec![(part, stream)])),
        }
    }
    together.into_iter().try_for_each(|(comm, parts)| enqueue(comm, parts))
}

/// Issues parts of one communicator on the first of their streams. The other streams wait for it, and it waits for them. All of them
/// wait for the communicator's earlier operations, on any stream.
fn enqueue(comm: Arc<Comm>, parts: Parts) -> Result<(), Nccl> {
    let first = parts[0].1;
    let others: Vec<u64> = parts.iter().map(|(_, stream)| *stream).filter(|stream| *stream != first).collect();
    let parts = parts.into_iter().map(|(part, _)| part).collect();
    let mut world = world::call();
    let issue = || {
        let before = comm.last().into_iter().chain(others.iter().map(|stream| (*stream, world.tail(*stream))));
        for (stream, number) in before.collect::<Vec<_>>() {
            if stream != first && !world.is_done(stream, number) {
                world.issue(first, Operation::WaitFor(stream, number))?;
            }
        }
        let number = world.issue(first, Operation::Exchange(Exchange { comm: Arc::clone(&comm), parts }))?;
        comm.follow((first, number));
        others.iter().try_for_each(|stream| world.issue(*stream, Operation::WaitFor(first, number)).map(|_| ()))
    };
    issue().map_err(|error: Cuda| refuse(Nccl::UNHANDLED_CUDA_ERROR, format!("CUDA's error {}", error.0)))
}

// Operations of one communicator that a stream runs together.

/// One call: a collective, a send or a receive.
pub(super) struct Part {
    pub(super) kind: Kind,
    pub(super) send: u64,
    pub(super) recv: u64,
    /// Elements, as the function counts them.
    pub(super) count: u64,
    /// Bytes of an element.
    pub(super) size: u64,
    pub(super) dtype: u32,
    pub(super) op: u32,
    pub(super) other: u32,
}

/// What was issued between the begin and the end of a group; mostly one part.
pub(crate) struct Exchange {
    pub(super) comm: Arc<Comm>,
    pub(super) parts: Vec<Part>,
}

impl Part {
    /// The bytes that the rank sends.
    fn sends(&self, comm: &Comm) -> u64 {
        let bytes = self.count * self.size;
        match self.kind {
            Kind::Recv => 0,
            Kind::Broadcast if comm.rank != self.other => 0,
            Kind::ReduceScatter => bytes * u64::from(comm.size),
            _ => bytes,
        }
    }
}

impl Exchange {
    /// Reads the data to send when the stream reaches this operation, and writes the answer. An aborted operation leaves memory as it
    /// was, and ends without an error; one that is not answered before the device's deadline fails.
    pub(crate) fn run(self, device: usize) -> Result<(), Cuda> {
        let Exchange { comm, parts } = self;
        let read = |part: &Part| {
            let bytes = part.sends(&comm);
            let data = if bytes == 0 { Vec::new() } else { world::lock().read(device, part.send, bytes)? };
            let Part { kind, dtype, op, other, count, .. } = *part;
            Ok(Call { number: 0, kind, dtype, op, other, count, data })
        };
        let failed = |error: Cuda| {
            comm.fail(Nccl::UNHANDLED_CUDA_ERROR);
            error
        };
        let calls = parts.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let answers = match comm.ask(calls) {
            Ok(answers) => answers,
            Err(Unanswered::Aborted) => return Ok(()),
            Err(Unanswered::Late) => return Err(failed(world::too_late("an operation of a communicator"))),
        };
        let mut world = world::lock();
        let write = |(part, data): (&Part, Vec<u8>)| {
            if data.is_empty() { Ok(()) } else { world.write(device, part.recv, &data) }
        };
        parts.iter().zip(answers).try_for_each(write).map_err(failed)
    }
}
