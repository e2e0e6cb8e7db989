//! Running processes.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::mpsc::Receiver;

use lockstep_process::KillOnDrop;
use lockstep_watchdog::{drain, receive};

/// A running process with captured output. It is killed and reaped if the test fails.
pub struct Running {
    child: KillOnDrop,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

impl Running {
    /// Starts the command.
    pub fn start(mut command: Command) -> Self {
        let mut child = KillOnDrop(command.spawn().unwrap());
        let (stdout, stderr) = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
        Running { child, stdout: drain(stdout), stderr: drain(stderr) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Waits until the process, and every other process that inherited its output, have ended.
    pub fn end(mut self) -> Output {
        let wait = |pipe: &Receiver<Vec<u8>>| receive(pipe).expect("a process did not end").unwrap_or_default();
        let (stdout, stderr) = (wait(&self.stdout), wait(&self.stderr));
        Output { status: self.child.0.wait().unwrap(), stdout, stderr }
    }
}

/// Runs all commands until they end; once one is killed, the others are killed, too.
pub(crate) fn run_all(commands: Vec<Command>) -> Vec<Output> {
    let mut running: Vec<Running> = commands.into_iter().map(Running::start).collect();
    let mut ended = vec![false; running.len()];
    let all_have_ended = || {
        for rank in 0..ended.len() {
            let status = if ended[rank] { None } else { running[rank].child.0.try_wait().unwrap() };
            ended[rank] |= status.is_some();
            if status.is_some_and(|status| status.signal().is_some()) {
                running.iter_mut().for_each(|other| drop(other.child.0.kill()));
            }
        }
        ended.iter().all(|ended| *ended)
    };
    lockstep_watchdog::until(all_have_ended).expect("a rank did not end");
    running.into_iter().map(Running::end).collect()
}
