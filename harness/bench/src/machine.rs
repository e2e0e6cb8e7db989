//! The state of the machine while a bench runs, and what makes its numbers doubtful.

use std::fs;
use std::path::Path;

use lockstep_process::watchdog::load_averages;
use serde::{Deserialize, Serialize};

use crate::report::count;

/// A machine whose load is above this part of its cores is busy with something else.
const BUSY: f64 = 0.5;
/// A clock below this part of its greatest frequency is cold.
const COLD: f64 = 0.7;

/// The state at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct MachineState {
    /// Load averages of 1, 5 and 15 minutes.
    pub(super) load: [f64; 3],
    /// The clock of the first processor, if the system shows it.
    pub(super) clock: Option<Clock>,
}

/// A processor's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Clock {
    /// In kHz: now, and the greatest.
    pub(super) now: f64,
    pub(super) most: f64,
    /// The kernel's policy: `powersave`.
    pub(super) governor: String,
}

impl MachineState {
    pub(super) fn now() -> Self {
        MachineState { load: load_averages(), clock: Clock::seen_in(Path::new("/sys/devices/system/cpu/cpu0/cpufreq")) }
    }

    /// In one line, for the head of a result.
    pub(super) fn summary(&self) -> String {
        let load = self.load.map(|load| format!("{load:.2}")).join(" ");
        let clock = self.clock.as_ref().map_or_else(|| "not shown by this system".into(), Clock::summary);
        format!("load average of 1, 5 and 15 minutes: {load}; clock: {clock}")
    }

    /// Returns true if the load shows other work.
    pub(super) fn is_busy(&self, cores: usize) -> bool {
        self.load[0] > BUSY * cores as f64
    }

    /// What makes numbers doubtful that were measured from now on, on a machine with this number of cores.
    pub(super) fn labels(&self, cores: usize) -> Vec<String> {
        let [load, ..] = self.load;
        let busy = format!("busy machine: load {load:.1} on {}; trust ratios, not times", count(cores, "core"));
        let cold = |clock: &Clock| (clock.now < COLD * clock.most).then(|| format!("cold clock: {}", clock.summary()));
        let busy = self.is_busy(cores).then_some(busy);
        busy.into_iter().chain(self.clock.as_ref().and_then(cold)).collect()
    }
}

impl Clock {
    fn seen_in(folder: &Path) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned());
        let number = |name: &str| read(name)?.parse().ok();
        Some(Clock {
            now: number("scaling_cur_freq")?,
            most: number("cpuinfo_max_freq")?,
            governor: read("scaling_governor")?,
        })
    }

    fn summary(&self) -> String {
        format!("{:.0} of {:.0} MHz ({})", self.now / 1e3, self.most / 1e3, self.governor)
    }
}

/// Labels of a case with this number of ranks.
pub(super) fn rank_labels(ranks: usize, cores: usize) -> Vec<String> {
    labels(ranks, "rank", cores)
}

/// Labels of a case with this number of something that needs a core each.
pub(super) fn labels(number: usize, noun: &str, cores: usize) -> Vec<String> {
    let more = format!("{} on {}: not a scaling result", count(number, noun), count(cores, "core"));
    if number > cores { vec![more] } else { vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_a_busy_machine_and_a_cold_clock() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Clock::seen_in(dir.path()), None);
        for (name, text) in
            [("scaling_cur_freq", "800000\n"), ("cpuinfo_max_freq", "3500000\n"), ("scaling_governor", "powersave\n")]
        {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let state = MachineState { load: [3.1, 2.0, 1.5], clock: Clock::seen_in(dir.path()) };
        let expected =
            ["busy machine: load 3.1 on 2 cores; trust ratios, not times", "cold clock: 800 of 3500 MHz (powersave)"];
        assert_eq!(state.labels(2), expected);
        assert_eq!(state.labels(8), expected[1..]);
        let quiet = MachineState { load: [0.2, 2.0, 3.0], clock: None };
        assert!(quiet.labels(1).is_empty());
        assert!(quiet.summary().ends_with("0.20 2.00 3.00; clock: not shown by this system"));
    }

    #[test]
    fn more_ranks_than_cores_are_no_scaling_result() {
        assert_eq!(rank_labels(4, 2), ["4 ranks on 2 cores: not a scaling result"]);
        assert!(rank_labels(2, 2).is_empty());
    }
}
