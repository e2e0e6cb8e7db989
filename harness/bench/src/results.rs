//! What a bench measured, as it is kept in a file: every sample of every side, with the machine and its state.

use lockstep_cost::Units;
pub(super) use lockstep_cost::digits;
use std::fs;
use std::path::Path;

use anyhow::Context;
use lockstep_contract::foreign;
use serde::{Deserialize, Serialize};

use crate::exit::Refused;
use crate::machine::MachineState;
use crate::nodes::ScalingPoint;
use crate::report::{HostInfo, grouped};
use crate::statistics::{Ratio, Shown};

/// The name of the format, and its version, which increases when a field changes its meaning or is removed.
const SCHEMA: &str = "lockstep-bench";
const VERSION: u32 = 1;

/// The results of one bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    schema: String,
    version: u32,
    /// The bench: `launch`.
    pub(super) bench: String,
    /// The command line, as one could type it.
    pub(super) command: String,
    /// RFC 3339, in UTC.
    pub(super) started: String,
    /// Rounds that were asked for. If it was stopped, samples are fewer.
    pub(super) rounds: usize,
    pub(super) machine: HostInfo,
    /// Its state before the first round.
    pub(super) before: MachineState,
    /// Its state after the last round so far.
    pub(super) after: MachineState,
    /// What could not be measured here, each with its reason.
    pub(super) not_measured: Vec<String>,
    /// In the order in which they are shown.
    pub(super) measures: Vec<Measure>,
}

/// One quantity of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measure {
    /// The case: `8 ranks, 1 agent`.
    pub(super) case: String,
    /// What was measured: `all ranks up`.
    pub(super) quantity: String,
    pub(super) unit: Unit,
    /// Bytes of a collective, and its bus factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved: Option<(u64, f64)>,
    /// In the tables of scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<ScalingPoint>,
    /// What the reader must know about this case: `not a scaling result`.
    pub(super) labels: Vec<String>,
    /// The subject first, then its peers.
    pub(super) sides: Vec<Side>,
}

/// The samples of one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Side {
    /// Its name: `lockstep`.
    pub(super) name: String,
    /// One for each round.
    pub(super) samples: Vec<f64>,
}

/// The unit of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Seconds,
    Bytes,
    PerSecond,
    BytesPerSecond,
    /// A part of something, shown in percent.
    Share,
}

impl Results {
    /// Results without samples.
    pub(super) fn new(bench: &str, command: String, started: String, rounds: usize) -> Self {
        let (machine, now) = (HostInfo::here(), MachineState::now());
        Results {
            schema: SCHEMA.into(),
            version: VERSION,
            bench: bench.into(),
            command,
            started,
            rounds,
            before: now.clone(),
            after: now,
            machine,
            not_measured: Vec::new(),
            measures: Vec::new(),
        }
    }

    /// Reads a file that `--report FILE.json` wrote.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let refused = |why: String| Refused(format!("cannot read the results in {}: {why}", foreign::path(path)));
        let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let hint = "it is not a file of `lockstep bench … --report FILE.json`";
        let results: Results = serde_json::from_str(&text).map_err(|error| refused(format!("{hint}: {error}")))?;
        if (results.schema.as_str(), results.version) != (SCHEMA, VERSION) {
            let (schema, version) = (results.schema, results.version);
            return Err(refused(format!("{hint} of this version ({schema} {version}, not {SCHEMA} {VERSION})")).into());
        }
        Ok(results)
    }

    /// The command that was typed, without its options: `lockstep measure launch`.
    pub(super) fn typed(&self) -> &str {
        let bench = format!(" {}", self.bench);
        let is_word = |at: &usize| !self.command[at + bench.len()..].starts_with(|next: char| next != ' ');
        let end = self.command.match_indices(&bench).map(|(at, _)| at).find(is_word);
        end.map_or(&self.bench, |at| &self.command[..at + bench.len()])
    }

    /// As JSON, with a newline at the end.
    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self).context("cannot write the results as JSON")? + "\n")
    }

    /// As comma-separated values: a row for each sample.
    pub(super) fn csv(&self) -> anyhow::Result<String> {
        let mut rows = csv::Writer::from_writer(Vec::new());
        rows.write_record(["bench", "case", "quantity", "unit", "side", "round", "value"])?;
        for measure in &self.measures {
            for side in &measure.sides {
                for (round, sample) in side.samples.iter().enumerate() {
                    let (round, value) = ((round + 1).to_string(), sample.to_string());
                    let unit = measure.unit.name();
                    let names = [&self.bench, &measure.case, &measure.quantity];
                    let rest = [unit, &side.name, &round, &value];
                    rows.write_record(names.map(String::as_str).into_iter().chain(rest))?;
                }
            }
        }
        Ok(String::from_utf8(rows.into_inner()?)?)
    }

    /// Rounds that are complete on all sides.
    pub(super) fn complete(&self) -> usize {
        let samples = self.measures.iter().flat_map(|measure| &measure.sides).map(|side| side.samples.len());
        samples.min().unwrap_or(0)
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::Bytes => "bytes",
            Unit::PerSecond => "1/s",
            Unit::BytesPerSecond => "bytes/s",
            Unit::Share => "share",
        }
    }

    /// Three digits and the unit that fits: `1.52 s`, `48.1 MiB`, `12,300/s`.
    pub(super) fn show(self, value: f64) -> String {
        if value == 0.0 {
            return "0".to_owned();
        }
        let (name, size) = self.scale(value);
        self.number(value / size) + name
    }

    /// The value, and two others in the same unit: `1.52 s (1.48–1.60)`.
    pub(super) fn show_with(self, value: f64, [low, high]: [f64; 2]) -> String {
        // Zero has no unit of its own.
        let (name, size) = self.scale(if value == 0.0 { high } else { value });
        match (value == 0.0, high == 0.0) {
            (true, true) => "0".to_owned(),
            (true, _) => format!("0 ({}–{}{name})", self.number(low / size), self.number(high / size)),
            _ => format!("{} ({}–{})", self.show(value), self.number(low / size), self.number(high / size)),
        }
    }

    fn number(self, value: f64) -> String {
        if value == 0.0 {
            return "0".to_owned();
        }
        let large = self == Unit::PerSecond && value >= 1000.0;
        if large { grouped(value.round_ties_even() as u64) } else { digits(value) }
    }

    /// The largest unit that is not larger than the value, and its size.
    pub(super) fn scale(self, value: f64) -> (&'static str, f64) {
        let units: &Units = match self {
            Unit::Seconds => lockstep_cost::SECONDS,
            Unit::Bytes => lockstep_cost::BYTES,
            Unit::PerSecond => &[("/s", 1.0)],
            Unit::BytesPerSecond => &[(" GB/s", 1e9), (" MB/s", 1e6), (" kB/s", 1e3), (" B/s", 1.0)],
            Unit::Share => &[(" %", 0.01)],
        };
        lockstep_cost::unit(value, units)
    }

    /// The word for a ratio of this unit.
    pub(super) fn word(self, shown: Shown) -> &'static str {
        match (shown, self) {
            (Shown::NoDifference, _) => "no difference shown",
            (Shown::TooFewRounds, _) => "too few rounds",
            (Shown::Less, Unit::Seconds) | (Shown::More, Unit::PerSecond | Unit::BytesPerSecond) => "faster",
            (Shown::More, Unit::Seconds) | (Shown::Less, Unit::PerSecond | Unit::BytesPerSecond) => "slower",
            (Shown::Less, Unit::Bytes | Unit::Share) => "less",
            (Shown::More, Unit::Bytes | Unit::Share) => "more",
        }
    }
}

/// `0.08 (0.07–0.09)`.
pub(super) fn ratio(ratio: &Ratio) -> String {
    let [median, low, high] = [ratio.median, ratio.low, ratio.high].map(digits);
    format!("{median} ({low}–{high})")
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Two cases: one with a peer and a clear result, one without.
    pub(crate) fn sample() -> Results {
        let mut results =
            Results::new("launch", "lockstep measure launch".into(), "2026-02-03T04:05:06.250Z".into(), 7);
        results.machine = HostInfo { cores: 2, kernel: "Linux 6.1".into(), ..HostInfo::default() };
        let state = MachineState { load: [0.1, 0.2, 0.3], clock: None };
        (results.before, results.after) = (state.clone(), state);
        let side = |name: &str, scale: f64| Side {
            name: name.into(),
            samples: [1.0, 1.02, 0.99, 1.01, 0.98, 1.03, 1.0].map(|time| scale * time).into(),
        };
        let measure = |case: &str, quantity: &str, unit, sides| Measure {
            case: case.into(),
            quantity: quantity.into(),
            unit,
            moved: None,
            place: None,
            labels: vec!["8 ranks on 2 cores: not a scaling result".into()],
            sides,
        };
        results.measures = vec![
            measure("8 ranks, 1 agent", "no-op job", Unit::Seconds, vec![side("lockstep", 0.1), side("torchrun", 1.5)]),
            measure(
                "8 ranks, 1 agent",
                "agent memory",
                Unit::Bytes,
                vec![side("lockstep", 1e7), side("torchrun", 5e8)],
            ),
            measure("16 ranks, 1 agent", "no-op job", Unit::Seconds, vec![side("lockstep", 0.2)]),
        ];
        results.not_measured = vec!["torchrun of 16 ranks: <no memory> & \"more\"".into()];
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::sample;

    #[test]
    fn knows_the_command_that_was_typed() {
        let typed = |command: &str| Results { command: command.into(), ..sample() }.typed().to_owned();
        assert_eq!(typed("lockstep measure launch --report launch.json"), "lockstep measure launch");
        assert_eq!(typed("lockstep-1.2 measure launch"), "lockstep-1.2 measure launch");
        assert_eq!(typed("'my launcher' measure launch"), "'my launcher' measure launch");
        assert_eq!(typed("something else"), "launch");
    }

    #[test]
    fn writes_three_digits_in_the_unit_that_fits() {
        let times = [1.52, 0.0481, 1.2e-5, 3e-9, 123.4, 0.0].map(|value| Unit::Seconds.show(value));
        assert_eq!(times, ["1.52 s", "48.1 ms", "12.0 µs", "3.00 ns", "123 s", "0"]);
        let sizes = [498.0 * f64::from(1 << 20), 2048.0, 3.0].map(|value| Unit::Bytes.show(value));
        assert_eq!(sizes, ["498 MiB", "2.00 KiB", "3.00 B"]);
        let rates = [12_345.6, 999.4, 1_234_567.0, 45.67].map(|value| Unit::PerSecond.show(value));
        assert_eq!(rates, ["12,346/s", "999/s", "1,234,567/s", "45.7/s"]);
        assert_eq!([0.935, 1.0, -0.05].map(|value| Unit::Share.show(value)), ["93.5 %", "100 %", "-5.00 %"]);
        assert_eq!(Unit::BytesPerSecond.show(123_456_789.0), "123 MB/s");
    }

    #[test]
    fn writes_a_spread_in_one_unit_and_small_ratios_with_two_digits() {
        assert_eq!(Unit::Seconds.show_with(0.0954, [0.000_918, 1.2]), "95.4 ms (0.92–1200)");
        assert_eq!(Unit::PerSecond.show_with(1234.0, [999.0, 12_345.0]), "1,234/s (999–12,345)");
        assert_eq!(
            [0.0068, 0.068, 0.68, 6.8, 0.0, 0.0996].map(digits),
            ["0.0068", "0.068", "0.68", "6.80", "0.00", "0.10"]
        );
    }

    #[test]
    fn names_what_is_better_for_each_unit() {
        assert_eq!(
            [Unit::Seconds, Unit::Bytes, Unit::PerSecond].map(|unit| unit.word(Shown::Less)),
            ["faster", "less", "slower"]
        );
        assert_eq!(
            [Unit::Seconds, Unit::Bytes, Unit::PerSecond].map(|unit| unit.word(Shown::More)),
            ["slower", "more", "faster"]
        );
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        fs::write(&path, sample().json().unwrap()).unwrap();
        assert_eq!(Results::read(&path).unwrap(), sample());
        assert_eq!(sample().complete(), 7);
    }

    #[test]
    fn refuses_other_files_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            Results::read(&path).unwrap_err().downcast::<Refused>().unwrap().to_string()
        };
        assert!(refused("").contains("a.json: it is not a file of `lockstep bench"));
        assert!(refused(r#"{"schema": "lockstep-report", "version": 1}"#).contains("missing field"));
        let newer = sample().json().unwrap().replace("\"version\": 1", "\"version\": 2");
        assert!(refused(&newer).contains("(lockstep-bench 2, not lockstep-bench 1)"));
        assert!(Results::read(&dir.path().join("none.json")).unwrap_err().is::<Refused>());
    }

    #[test]
    fn writes_a_row_for_each_sample() {
        let text = sample().csv().unwrap();
        let rows: Vec<csv::StringRecord> =
            csv::Reader::from_reader(text.as_bytes()).records().collect::<Result<_, _>>().unwrap();
        assert_eq!(rows.len(), 7 * 5);
        assert_eq!(
            rows[7].iter().collect::<Vec<_>>(),
            ["launch", "8 ranks, 1 agent", "no-op job", "s", "torchrun", "1", "1.5"]
        );
    }
}
