//! Streams: queues of operations, each with a thread that runs them in order.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::thread;
use std::time::{Duration, Instant};

use crate::Cuda;
use crate::nccl::Exchange;
use crate::world::{self, Guard, World};

/// The longest delay that is drawn from a seed.
const MOST_DELAY: Duration = Duration::from_millis(2);

pub(crate) struct Stream {
    pub(crate) device: usize,
    /// Whether it and the legacy default stream wait for each other.
    blocking: bool,
    queue: VecDeque<Operation>,
    /// The numbers of the last operation that was issued, that has ended, and that somebody has asked for.
    issued: u64,
    done: u64,
    wanted: u64,
    destroyed: bool,
}

pub(crate) enum Operation {
    Kernel(Launch),
    Set {
        address: u64,
        value: u8,
        bytes: u64,
    },
    /// Bytes that were taken from the host when the copy was issued.
    Upload {
        to: u64,
        data: Vec<u8>,
    },
    /// Bytes of pinned memory, which are read when the stream comes to it.
    UploadPinned {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Download {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Record(u64),
    /// Waits until a stream has come this far.
    WaitFor(u64, u64),
    Exchange(Exchange),
}

impl World {
    pub(crate) fn new_stream(&mut self, device: usize, blocking: bool) -> Result<u64, Cuda> {
        self.healthy(device)?;
        let stream = self.handle();
        let (queue, destroyed) = (VecDeque::new(), false);
        self.streams.insert(stream, Stream { device, blocking, queue, issued: 0, done: 0, wanted: 0, destroyed });
        let name = format!("stream {stream:x}");
        let started = thread::Builder::new().name(name).spawn(move || run(stream));
        started.map(|_| stream).map_err(|_| Cuda::OUT_OF_MEMORY)
    }

    /// The stream of a handle: the legacy default stream of the current device for the handles that CUDA reserves.
    pub(crate) fn stream_of(&mut self, handle: u64, current: Option<usize>) -> Result<u64, Cuda> {
        if handle > 2 {
            let device = self.streams.get(&handle).filter(|it| !it.destroyed).ok_or(Cuda::INVALID_HANDLE)?.device;
            return self.healthy(device).map(|_| handle);
        }
        let current = current.ok_or(Cuda::INVALID_CONTEXT)?;
        if let Some(stream) = self.healthy(current)?.null_stream {
            return Ok(stream);
        }
        let stream = self.new_stream(current, true)?;
        self.device(current)?.null_stream = Some(stream);
        Ok(stream)
    }

    /// Issues an operation, and returns its number.
    pub(crate) fn issue(&mut self, stream: u64, operation: Operation) -> Result<u64, Cuda> {
        for (other, number) in self.before(stream) {
            self.push(stream, Operation::WaitFor(other, number))?;
        }
        let number = self.push(stream, operation)?;
        world::changed();
        Ok(number)
    }

    fn push(&mut self, stream: u64, operation: Operation) -> Result<u64, Cuda> {
        let stream = self.streams.get_mut(&stream).ok_or(Cuda::INVALID_HANDLE)?;
        stream.queue.push_back(operation);
        stream.issued += 1;
        Ok(stream.issued)
    }

    /// What an operation waits for by the rules of the legacy default stream.
    fn before(&self, stream: u64) -> Vec<(u64, u64)> {
        let Some(own) = self.streams.get(&stream).filter(|own| own.blocking) else { return Vec::new() };
        let null = self.devices.get(own.device).and_then(|device| device.null_stream);
        let is_null = null == Some(stream);
        let waits_for = |other: u64| if is_null { other != stream } else { null == Some(other) };
        let others = self.streams.iter().filter(|(id, it)| it.blocking && it.device == own.device && waits_for(**id));
        others.filter(|(_, it)| it.done < it.issued).map(|(id, it)| (*id, it.issued)).collect()
    }

    /// Asks for the operations of a stream up to this one.
    pub(crate) fn want(&mut self, stream: u64, number: u64) {
        if let Some(stream) = self.streams.get_mut(&stream).filter(|stream| stream.wanted < number) {
            stream.wanted = number;
            world::changed();
        }
    }

    pub(crate) fn is_done(&self, stream: u64, number: u64) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.done >= number)
    }

    /// The last operation that was issued.
    pub(crate) fn tail(&self, stream: u64) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.issued)
    }

    /// The streams of a device, and the last operation of each.
    pub(crate) fn tails(&self, device: usize) -> Vec<(u64, u64)> {
        let own = self.streams.iter().filter(|(_, stream)| stream.device == device);
        own.map(|(id, stream)| (*id, stream.issued)).collect()
    }

    /// The handle is invalid immediately. Issued operations still run.
    pub(crate) fn destroy_stream(&mut self, stream: u64) -> Result<(), Cuda> {
        let own = self.streams.get_mut(&stream).filter(|own| !own.destroyed).ok_or(Cuda::INVALID_HANDLE)?;
        own.destroyed = true;
        own.wanted = own.issued;
        world::changed();
        Ok(())
    }

    fn fail(&mut self, device: usize, error: Cuda) {
        if let Ok(device) = self.device(device) {
            device.error.get_or_insert(error);
        }
    }
}

/// Waits until a stream has come this far, and returns the error of its device. If that takes too long, the device has failed: nothing that
/// is still queued may write to the memory of a caller that no longer waits.
pub(crate) fn wait_for(mut world: Guard, stream: u64, number: u64) -> Result<Guard, Cuda> {
    let Some(device) = world.streams.get(&stream).map(|stream| stream.device) else { return Ok(world) };
    world.want(stream, number);
    let waited = world::wait_until(world, "a wait for a stream", |world| world.is_done(stream, number));
    let mut world = waited.map_err(|(mut world, error)| {
        world.fail(device, error);
        error
    })?;
    world.healthy(device)?;
    Ok(world)
}

/// The thread of a stream.
fn run(id: u64) {
    let mut world = world::lock();
    loop {
        let quiet = world.until_quiet();
        let Some(stream) = world.streams.get_mut(&id) else { return };
        let next = stream.done + 1;
        let starts = stream.wanted >= next || world::options().seed.is_some() || quiet.is_zero();
        let device = stream.device;
        if stream.queue.is_empty() {
            if stream.destroyed {
                world.streams.remove(&id);
                world::changed();
                return;
            }
            world = world::wait(world, world::options().deadline);
        } else if !starts {
            world = world::wait(world, quiet);
        } else if let Some(operation) = stream.queue.pop_front() {
            world = perform(world, device, (id, next), operation);
            if let Some(stream) = world.streams.get_mut(&id) {
                stream.done = next;
            }
            world::changed();
        }
    }
}

fn perform(world: Guard, device: usize, place: (u64, u64), operation: Operation) -> Guard {
    let mut world = match world::options().seed {
        Some(seed) => {
            drop(world);
            thread::sleep(delay(seed, place));
            world::lock()
        }
        None => world,
    };
    // After an error, a context runs nothing more. What others wait for still ends.
    if world.healthy(device).is_err() && !matches!(operation, Operation::WaitFor(..) | Operation::Record(_)) {
        return world;
    }
    let result = match operation {
        Operation::WaitFor(stream, number) => {
            world.want(stream, number);
            let waited = world::wait_until(world, "an event", |world| world.is_done(stream, number));
            return waited.unwrap_or_else(|(mut world, error)| {
                world.fail(device, error);
                world
            });
        }
        Operation::Exchange(exchange) => {
            drop(world);
            let result = exchange.run(device);
            world = world::lock();
            result
        }
        Operation::Kernel(launch) => launch.run(&mut world, device),
        Operation::Set { address, value, bytes } => world.write(device, address, &vec![value; bytes as usize]),
        Operation::Upload { to, data } => {
            world.write_any(to, &data);
            Ok(())
        }
        Operation::UploadPinned { to, from, bytes } => {
            let data = pinned(&world, from, bytes);
            world.write_any(to, &data);
            Ok(())
        }
        Operation::Download { to, from, bytes } => {
            let data = world.read_any(from, bytes);
            // SAFETY: the caller of cuMemcpyDtoH(Async) vouches for these bytes until the copy has ended; for memory that is not
            // pinned, that call waits for this.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to as *mut u8, data.len()) };
            Ok(())
        }
        Operation::Copy { to, from, bytes } => {
            let data = world.read_any(from, bytes);
            world.write_any(to, &data);
            Ok(())
        }
        Operation::Record(event) => {
            world.reach(event, place);
            Ok(())
        }
    };
    if let Err(error) = result {
        world.fail(device, error);
    }
    world
}

fn pinned(world: &World, from: u64, bytes: u64) -> Vec<u8> {
    let mut data = vec![0; bytes as usize];
    if world.is_pinned(from, bytes) {
        // SAFETY: pinned memory that the world still keeps.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, data.as_mut_ptr(), data.len()) };
    }
    data
}

/// SplitMix64 of the seed and the operation's place.
fn delay(seed: u64, (stream, number): (u64, u64)) -> Duration {
    let mut state = seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03);
    for shift in [30, 27, 31] {
        state = (state ^ (state >> shift)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    Duration::from_micros(state % MOST_DELAY.as_micros() as u64)
}

// Events: places in a stream that others can wait for.

#[derive(Default)]
pub(crate) struct Event {
    /// The stream and the operation of the last record. None before the first: such an event counts as complete.
    pub(crate) place: Option<(u64, u64)>,
    /// When the stream reached the last record.
    pub(crate) reached: Option<Instant>,
}

impl World {
    pub(crate) fn event(&mut self, event: u64) -> Result<&mut Event, Cuda> {
        self.events.get_mut(&event).ok_or(Cuda::INVALID_HANDLE)
    }

    /// Notes that the stream has reached this record of the event, which may have been recorded again or destroyed since.
    pub(crate) fn reach(&mut self, event: u64, place: (u64, u64)) {
        if let Some(event) = self.events.get_mut(&event).filter(|event| event.place == Some(place)) {
            event.reached = Some(Instant::now());
        }
    }

    /// Milliseconds from one event to another.
    pub(crate) fn elapsed(&self, begin: u64, end: u64) -> Result<f32, Cuda> {
        let reached = |event: u64| {
            let event = self.events.get(&event).ok_or(Cuda::INVALID_HANDLE)?;
            event.place.ok_or(Cuda::INVALID_HANDLE)?;
            event.reached.ok_or(Cuda::NOT_READY)
        };
        let (begin, end) = (reached(begin)?, reached(end)?);
        let forward = end.saturating_duration_since(begin).as_secs_f32();
        Ok(1000.0 * (forward - begin.saturating_duration_since(end).as_secs_f32()))
    }
}

// The kernels that the device knows by name. It does not read instructions: it takes only the names of the entries from a
// module's PTX.

/// As on all of NVIDIA's devices since compute capability 2.0.
pub(crate) const MOST_THREADS: u32 = 1024;

pub(crate) struct Module {
    pub(crate) device: usize,
    pub(crate) entries: Vec<String>,
}

/// A kernel with its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    /// `fill(float *x, float value, uint64_t n)`
    Fill { x: u64, value: f32, n: u64 },
    /// `scale(float *x, float factor, uint64_t n)`
    Scale { x: u64, factor: f32, n: u64 },
    /// `add(float *x, const float *y, uint64_t n)`: y is added to x.
    Add { x: u64, y: u64, n: u64 },
}

/// A kernel on a number of threads.
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) threads: u64,
}

/// The names of the entries in a module's PTX.
pub(crate) fn entries(ptx: &str) -> Vec<String> {
    let after = ptx.split(".entry").skip(1);
    let name = |text: &str| text.trim_start().split(|c: char| c == '(' || c.is_whitespace()).next().map(str::to_owned);
    after.filter_map(name).filter(|name| !name.is_empty()).collect()
}

impl Kernel {
    /// Reads the arguments, as `cuLaunchKernel` does before it returns.
    ///
    /// # Safety
    /// `arguments` points to as many pointers as the kernel has parameters, each to a value of the parameter's type.
    pub(crate) unsafe fn read(name: &str, arguments: *const *const c_void) -> Result<Kernel, Cuda> {
        if !matches!(name, "fill" | "scale" | "add") {
            eprintln!("simulated device: it has no kernel {name}, only fill, scale and add");
            return Err(Cuda::NOT_SUPPORTED);
        }
        if arguments.is_null() {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: three parameters, by the caller's promise.
        let [first, second, third] = unsafe { [*arguments, *arguments.add(1), *arguments.add(2)] };
        if first.is_null() || second.is_null() || third.is_null() {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: the first and the last parameter of each of the three kernels have 64 bits.
        let (x, n) = unsafe { (first.cast::<u64>().read_unaligned(), third.cast::<u64>().read_unaligned()) };
        // SAFETY: of `add` it is a pointer, of the others a float.
        let (y, value) = unsafe {
            if name == "add" {
                (second.cast::<u64>().read_unaligned(), 0.0)
            } else {
                (0, second.cast::<f32>().read_unaligned())
            }
        };
        Ok(match name {
            "fill" => Kernel::Fill { x, value, n },
            "scale" => Kernel::Scale { x, factor: value, n },
            _ => Kernel::Add { x, y, n },
        })
    }
}

impl Launch {
    /// Threads beyond `n` do nothing, and elements beyond the threads stay as they were.
    pub(crate) fn run(&self, world: &mut World, device: usize) -> Result<(), Cuda> {
        let (Kernel::Fill { x, n, .. } | Kernel::Scale { x, n, .. } | Kernel::Add { x, n, .. }) = self.kernel;
        let bytes = 4 * n.min(self.threads);
        let mut own = floats(&world.read(device, x, bytes)?);
        match self.kernel {
            Kernel::Fill { value, .. } => own.fill(value),
            Kernel::Scale { factor, .. } => own.iter_mut().for_each(|element| *element *= factor),
            Kernel::Add { y, .. } => {
                let other = floats(&world.read(device, y, bytes)?);
                own.iter_mut().zip(other).for_each(|(element, other)| *element += other);
            }
        }
        let bytes: Vec<u8> = own.iter().flat_map(|element| element.to_le_bytes()).collect();
        world.write(device, x, &bytes)
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_entries_of_a_module() {
        let ptx = ".version 7.0\n.visible .entry fill(\n.param .u64 x)\n{ ret; }\n.entry  other ( )\n{ ret; }";
        assert_eq!(entries(ptx), ["fill", "other"]);
        assert!(entries("\u{7f}ELF").is_empty());
    }
}
