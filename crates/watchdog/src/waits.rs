//! The waits of a test, each under a watchdog.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use lockstep_process::KillOnDrop;

use crate::{InVain, Watchdog};

/// Interval between two looks at the processes, and between two checks of the condition.
const PAUSE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(5);

/// Receives from a channel; `None` if all senders are gone.
///
/// # Errors
/// [`InVain`] if the processes are stalled.
pub fn receive<T>(receiver: &Receiver<T>) -> Result<Option<T>, InVain> {
    let mut watchdog = Watchdog::new();
    loop {
        match receiver.recv_timeout(PAUSE) {
            Ok(received) => return Ok(Some(received)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => watchdog.look()?,
        }
    }
}

/// Waits until `holds` returns true.
///
/// # Errors
/// [`InVain`] if the processes are stalled.
pub fn until(mut holds: impl FnMut() -> bool) -> Result<(), InVain> {
    let mut watchdog = Watchdog::new();
    loop {
        let begun = Instant::now();
        if holds() {
            return Ok(());
        }
        // A condition that starts a process, or reads all of `/proc`, takes the core from those that it waits for.
        let pause = POLL.max(4 * begun.elapsed()).min(PAUSE);
        watchdog.look()?;
        std::thread::sleep(pause);
    }
}

/// Reads `pipe` until every process that holds its other end is gone, and sends the bytes.
pub fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if pipe.read_to_end(&mut bytes).is_ok() {
            // The receiver is gone if the wait was given up.
            let _ = sender.send(bytes);
        }
    });
    receiver
}

/// Runs `command` until it *and all processes that inherited its output* have ended. A process that is left behind ends
/// the wait with a panic.
///
/// # Panics
/// If the command cannot be started, or the wait is given up. The command is killed first.
pub fn output(mut command: Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = KillOnDrop(child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")));
    let [stdout, stderr] = [child.0.stdout.take().map(drain), child.0.stderr.take().map(drain)];
    let all = |pipe: Option<Receiver<Vec<u8>>>| {
        let received = receive(&pipe.expect("it was piped"));
        received.unwrap_or_else(|why| panic!("{command:?} or one of its children did not end: {why}"))
    };
    let (stdout, stderr) = (all(stdout).unwrap_or_default(), all(stderr).unwrap_or_default());
    Output { status: child.0.wait().expect("a child can be waited for"), stdout, stderr }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_output_of_a_command_and_its_exit_code() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo out; echo err >&2; exit 3"]);
        let output = output(shell);
        assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(3), &b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn reports_that_all_senders_are_gone() {
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        drop(sender);
        assert_eq!(receive(&receiver).unwrap(), Some(1));
        assert_eq!(receive(&receiver).unwrap(), None);
    }
}
