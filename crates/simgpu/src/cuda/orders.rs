//! Streams and events: what makes an order.

use std::ffi::{c_uint, c_void};

use super::copies::drain;
use super::{give, here, stream};
use crate::codes::Cuda;
use crate::events::Event;
use crate::streams::{self, Operation};
use crate::world;

/// `CU_STREAM_NON_BLOCKING`: a stream that the legacy default stream does not wait for.
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(to: *mut *mut c_void, flags: c_uint) -> Cuda {
    let create = || {
        let (mut world, device) = here()?;
        let stream = world.new_stream(device, flags & NON_BLOCKING == 0)?;
        // SAFETY: a result of the caller's.
        unsafe { give(to, stream as *mut c_void) }
    };
    create().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: *mut c_void) -> Cuda {
    world::call().destroy_stream(handle as u64).into()
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: *mut c_void) -> Cuda {
    let synchronize = || {
        let (world, stream) = stream(handle)?;
        let number = world.tail(stream);
        streams::wait_for(world, stream, number).map(|_| ())
    };
    synchronize().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: *mut c_void) -> Cuda {
    let query = || {
        let (world, stream) = stream(handle)?;
        let number = world.tail(stream);
        is_done(world, stream, number)
    };
    query().into()
}

/// A query asks for the work, too: who polls wants it to go on.
fn is_done(mut world: world::Guard, stream: u64, number: u64) -> Result<(), Cuda> {
    world.want(stream, number);
    if let Some(device) = world.streams.get(&stream).map(|stream| stream.device) {
        world.healthy(device)?;
    }
    if world.is_done(stream, number) { Ok(()) } else { Err(Cuda::NOT_READY) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Cuda {
    here().and_then(|(world, device)| drain(world, device)).map(|_| ()).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(to: *mut *mut c_void, _flags: c_uint) -> Cuda {
    let create = || {
        let (mut world, _) = here()?;
        let event = world.handle();
        world.events.insert(event, Event::default());
        // SAFETY: a result of the caller's.
        unsafe { give(to, event as *mut c_void) }
    };
    create().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> Cuda {
    world::call().events.remove(&(event as u64)).map(|_| ()).ok_or(Cuda::INVALID_HANDLE).into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: *mut c_void, handle: *mut c_void) -> Cuda {
    let record = || {
        let (mut world, stream) = stream(handle)?;
        world.event(event as u64)?;
        let number = world.issue(stream, Operation::Record(event as u64))?;
        *world.event(event as u64)? = Event { place: Some((stream, number)), reached: None };
        Ok(())
    };
    record().into()
}

/// Waits for the last record before this call; for none if there was none.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: *mut c_void, event: *mut c_void, _flags: c_uint) -> Cuda {
    let wait = || {
        let (mut world, stream) = stream(handle)?;
        if let Some((other, number)) = world.event(event as u64)?.place {
            world.issue(stream, Operation::WaitFor(other, number))?;
        }
        Ok(())
    };
    wait().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: *mut c_void) -> Cuda {
    let query = || {
        let mut world = world::call();
        let place = world.event(event as u64)?.place;
        place.map_or(Ok(()), |(stream, number)| is_done(world, stream, number))
    };
    query().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: *mut c_void) -> Cuda {
    let synchronize = || {
        let mut world = world::call();
        let place = world.event(event as u64)?.place;
        place.map_or(Ok(()), |(stream, number)| streams::wait_for(world, stream, number).map(|_| ()))
    };
    synchronize().into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(to: *mut f32, begin: *mut c_void, end: *mut c_void) -> Cuda {
    let elapsed = world::call().elapsed(begin as u64, end as u64);
    // SAFETY: a result of the caller's.
    elapsed.and_then(|elapsed| unsafe { give(to, elapsed) }).into()
}
