//! Answers to `finish`: wrong ones, and unusual right ones.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use lockstep_gpu::{Comm, Event};

use crate::tasks::Ended;

/// Waits without end.
pub fn waits(_: &Comm, done: &Event, _: Duration) -> Result<Ended> {
    done.synchronize()?;
    Ok(Ended::Done)
}

/// Gives up without aborting.
pub fn gives_up(_: &Comm, done: &Event, patience: Duration) -> Result<Ended> {
    let begun = Instant::now();
    while !done.is_done()? {
        if begun.elapsed() >= patience {
            return Ok(Ended::Aborted);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Ended::Done)
}

/// Aborts what is not done at the first look.
pub fn at_once(comm: &Comm, done: &Event, _: Duration) -> Result<Ended> {
    if done.is_done()? {
        return Ok(Ended::Done);
    }
    comm.abort()?;
    Ok(Ended::Aborted)
}

/// Takes the end of an aborted operation for its success.
pub fn aborted_is_done(comm: &Comm, done: &Event, patience: Duration) -> Result<Ended> {
    let begun = Instant::now();
    while !done.is_done()? {
        if begun.elapsed() >= patience {
            comm.abort()?;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Ended::Done)
}

/// Right: one thread waits, another one aborts.
pub fn watchdog_thread(comm: &Comm, done: &Event, patience: Duration) -> Result<Ended> {
    std::thread::scope(|scope| {
        let (ended, end) = channel();
        let watchdog = scope.spawn(move || match end.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => comm.abort().map(|()| Ended::Aborted),
            _ => Ok(Ended::Done),
        });
        done.synchronize()?;
        let _ = ended.send(());
        watchdog.join().map_or_else(|_| anyhow::bail!("the watchdog panicked"), |ended| Ok(ended?))
    })
}
