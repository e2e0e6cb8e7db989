//! Events: places in a stream that others can wait for.

use std::time::Instant;

use crate::codes::Cuda;
use crate::world::World;

#[derive(Default)]
pub(crate) struct Event {
    /// The stream and the operation of the last record. None before the first: such an event counts as complete.
    pub(crate) place: Option<(u64, u64)>,
    /// When the stream came to the last record.
    pub(crate) reached: Option<Instant>,
}

impl World {
    pub(crate) fn event(&mut self, event: u64) -> Result<&mut Event, Cuda> {
        self.events.get_mut(&event).ok_or(Cuda::INVALID_HANDLE)
    }

    /// The stream has come to this record of the event, which may have been recorded again or destroyed since.
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
