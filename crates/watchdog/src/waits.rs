//! Waits of a test under a watchdog.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use lockstep_process::KillOnDrop;

use crate::{InVain, Watchdog};

/// How long to wait between two looks at the processes, and between two at what is waited for.
const PAUSE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(5);

/// What comes from a channel; `None` when nobody is left to send.
///
/// # Errors
/// [`InVain`] when nothing will come.
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

/// Waits until it holds.
///
/// # Errors
/// [`InVain`] when it never will.
pub fn until(mut holds: impl FnMut() -> bool) -> Result<(), InVain> {
    let mut watchdog = Watchdog::new();
    while !holds() {
        watchdog.look()?;
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// All that comes from `pipe` once every process that holds its other end is gone.
pub fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if pipe.read_to_end(&mut bytes).is_ok() {
            // The receiver is gone if it waited in vain.
            let _ = sender.send(bytes);
        }
    });
    receiver
}

/// Runs `command` until it *and all that inherited its output* have ended: a process left behind is waited for in vain.
///
/// # Panics
/// When it cannot be started, or waits in vain; then it is killed first.
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
    fn gives_what_a_command_printed_and_how_it_ended() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo out; echo err >&2; exit 3"]);
        let output = output(shell);
        assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(3), &b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn tells_that_nobody_is_left_to_send() {
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        drop(sender);
        assert_eq!(receive(&receiver).unwrap(), Some(1));
        assert_eq!(receive(&receiver).unwrap(), None);
    }
}
