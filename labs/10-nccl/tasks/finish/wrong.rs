//! Answers to `finish`: wrong ones, and unusual right ones.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use lockstep_answers::edit;
use lockstep_gpu::{Comm, Event};

use crate::tasks::Ended;

/// Waits without end.
pub fn waits(_: &Comm, done: &Event, _: Duration) -> Result<Ended> {
    done.synchronize()?;
    Ok(Ended::Done)
}

/// Gives up without aborting.
#[edit(comm.check().is_err() || => )]
#[edit(comm.abort()?; => )]
pub fn gives_up() {}

/// Aborts an operation that is not done at the first check.
pub fn at_once(comm: &Comm, done: &Event, _: Duration) -> Result<Ended> {
    if done.is_done()? {
        return Ok(Ended::Done);
    }
    comm.abort()?;
    Ok(Ended::Aborted)
}

/// Gives up at once, without aborting.
pub fn gives_up_at_once(_: &Comm, _: &Event, _: Duration) -> Result<Ended> {
    Ok(Ended::Aborted)
}

/// Mistakes the end of an aborted operation for success.
#[edit(comm.check().is_err() || => )]
#[edit(; return Ok(Ended::Aborted) => )]
pub fn aborted_is_done() {}

/// Does not ask for errors of the communicator.
#[edit(comm.check().is_err() || => )]
pub fn no_check() {}

/// Returns an error of the communicator, and does not abort.
#[edit(if comm.check().is_err() || => comm.check()?; if)]
pub fn error_returned() {}

/// Aborts what is done, too.
#[edit(Ok(Ended::Done) => comm.abort()?; Ok(Ended::Done))]
pub fn always_aborts() {}

/// Sleeps for the whole of the patience before it checks.
pub fn sleeps(comm: &Comm, done: &Event, patience: Duration) -> Result<Ended> {
    std::thread::sleep(patience);
    at_once(comm, done, patience)
}

/// Counts whole seconds.
#[edit(begun.elapsed() >= patience => begun.elapsed().as_secs() >= patience.as_secs())]
pub fn whole_seconds() {}

/// Right: one thread waits, another one looks for errors and aborts.
pub fn watchdog_thread(comm: &Comm, done: &Event, patience: Duration) -> Result<Ended> {
    std::thread::scope(|scope| {
        let (ended, end) = channel();
        let begun = Instant::now();
        let watchdog = scope.spawn(move || {
            while end.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                if comm.check().is_err() || begun.elapsed() >= patience {
                    return comm.abort().map(|()| Ended::Aborted);
                }
            }
            Ok(Ended::Done)
        });
        done.synchronize()?;
        let _ = ended.send(());
        watchdog.join().map_or_else(|_| anyhow::bail!("the watchdog panicked"), |ended| Ok(ended?))
    })
}

/// Waits a second more.
pub fn grace(comm: &Comm, done: &Event, patience: Duration) -> Result<Ended> {
    crate::finish::finish(comm, done, patience + Duration::from_secs(1))
}

/// Waits twice as long.
pub fn twice(comm: &Comm, done: &Event, patience: Duration) -> Result<Ended> {
    crate::finish::finish(comm, done, 2 * patience)
}
