//! How much time processes have spent waiting for a core.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_process::proc::Schedule;

/// The time that processes were ready to run but waited for a core. A deadline in seconds should not count it.
#[derive(Debug, Default)]
pub struct Queue {
    threads: BTreeMap<(u32, i32), Duration>,
}

impl Queue {
    /// The longest time that a thread of these processes has waited so far, never more than the elapsed time. For a
    /// thread that has ended, the last call that saw it counts. Zero if the kernel does not keep these numbers.
    pub fn lost(&mut self, pids: &[u32]) -> Duration {
        pids.iter().for_each(|pid| self.look(*pid));
        let of = |pid: &u32| {
            self.threads.iter().filter(|((of, _), _)| of == pid).map(|(_, lost)| *lost).max().unwrap_or_default()
        };
        pids.iter().map(of).max().unwrap_or_default()
    }

    fn look(&mut self, pid: u32) {
        let threads = Schedule::of_threads(pid as i32);
        self.threads.extend(threads.into_iter().map(|(thread, of)| ((pid, thread), of.waiting)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_process::KillOnDrop;
    use lockstep_process::proc::Status;
    use std::process::Command;

    /// Two loops share one core: each gets half of it and waits for the other half.
    #[test]
    fn counts_the_time_while_another_process_has_the_core() {
        let one_core = "while :; do :; done";
        let looping = || {
            let mut shell = Command::new("taskset");
            shell.args(["-c", &first_core(), "sh", "-c", one_core]);
            KillOnDrop(shell.spawn().unwrap())
        };
        let pair = [looping(), looping()];
        let pids = [pair[0].0.id(), pair[1].0.id()];
        let (mut queue, enough) = (Queue::default(), Duration::from_millis(100));
        crate::until(|| queue.lost(&pids) >= enough).unwrap();
        assert!(crate::threads(pids[0]).unwrap().awake);
    }

    /// The first core that this process may use.
    fn first_core() -> String {
        let status = Status::of_this_process().unwrap();
        status.field("Cpus_allowed_list").unwrap().split([',', '-']).next().unwrap().to_owned()
    }
}
