//! The format of times, counts and foreign text, the same in all forms of a report.

use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use lockstep_contract::foreign;
use lockstep_launch::command::quoted;
use quick_junit::XmlString;

use super::{Case, Report, Verdict};
use crate::history::Recovery;

/// `0.8 ms`, `350 ms`, `9.3 s`, `4 min 10 s`, `2 h 05 min`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.0095 => format!("{:.1} ms", s.max(0.0) * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 59.95 => format!("{s:.1} s"),
        s if s < 3599.5 => format!("{:.0} min {:02.0} s", (s.round() / 60.0).floor(), s.round() % 60.0),
        s => format!("{:.0} h {:02.0} min", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
    }
}

/// `seconds`, or a dash for something that never happened.
pub(super) fn maybe(time: Option<f64>) -> String {
    time.map_or_else(|| "–".into(), seconds)
}

/// `1 rank`, `8 ranks`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `2026-02-03 04:05:06 UTC`.
pub(super) fn instant(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// RFC 3339, in UTC, with milliseconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Removes colours and control characters except newlines: a program's output must not affect the reader's terminal.
pub(crate) fn plain(text: &str) -> String {
    // The library removes tabs as control characters.
    let text = XmlString::new(text.replace('\t', "    ")).into_string();
    text.chars().filter(|c| *c == '\n' || !(c.is_control() || acts(*c))).collect()
}

/// The same as one line, whatever the text has in it.
pub(crate) fn plain_line(text: &str) -> String {
    foreign::escaped(&plain(text))
}

/// Characters that XML does not allow, or that change the text's direction.
fn acts(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// This process's command line, quoted for a shell where necessary.
pub(crate) fn command_line() -> String {
    let words = std::env::args_os().enumerate().map(|(index, word)| {
        let word = if index == 0 { Path::new(&word).file_name().unwrap_or(&word) } else { &word };
        quoted(&word.to_string_lossy())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The number of each verdict: `4 passed, 1 FAILED`; verdicts that do not occur are left out.
pub(crate) fn counts(verdicts: &[Verdict]) -> String {
    let count = |verdict: &Verdict| verdicts.iter().filter(|other| *other == verdict).count();
    let occurring = Verdict::ALL.iter().map(|verdict| (count(verdict), verdict)).filter(|(count, _)| *count > 0);
    occurring.map(|(count, verdict)| format!("{count} {verdict}")).collect::<Vec<_>>().join(", ")
}

/// `2 passed, 1 FAILED in 14.9 s`: of the cases, or of the claims of the only case.
pub(super) fn summary(report: &Report) -> String {
    let verdicts: Vec<_> = match report.cases.as_slice() {
        [one] => one.findings.iter().map(|finding| finding.verdict).collect(),
        cases => cases.iter().map(Case::verdict).collect(),
    };
    let text = if verdicts.is_empty() { "nothing was tried".into() } else { counts(&verdicts) };
    format!("{text} in {}", seconds(report.took.as_secs_f64()))
}

/// The number of failures of ranks and nodes in a case; a dash if they were not counted.
pub(super) fn failures(case: &Case) -> String {
    case.timeline.as_ref().map_or_else(|| "–".into(), |timeline| timeline.recoveries.len().to_string())
}

/// The headings and rows of a table of [`Recovery`] values.
pub(super) fn costs(recoveries: &[Recovery]) -> ([&'static str; 6], Vec<[String; 6]>) {
    let headings = ["at", "what failed", "steps lost", "known after", "restarted after", "training after"];
    let row = |recovery: &Recovery| {
        [
            seconds(recovery.at),
            plain_line(&recovery.cause),
            recovery.steps_lost.map_or_else(|| "–".into(), |steps| steps.to_string()),
            maybe(recovery.time_to_detect),
            maybe(recovery.time_to_restart),
            maybe(recovery.time_to_next_step),
        ]
    };
    (headings, recoveries.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn writes_durations_in_the_unit_that_fits() {
        let written = [-1.0, 0.0008, 0.0099, 0.35, 0.9999, 9.31, 59.99, 119.7, 250.0, 7500.0].map(seconds);
        let expected = [
            "0.0 ms",
            "0.8 ms",
            "10 ms",
            "350 ms",
            "1.0 s",
            "9.3 s",
            "1 min 00 s",
            "2 min 00 s",
            "4 min 10 s",
            "2 h 05 min",
        ];
        assert_eq!(written, expected);
        assert_eq!(maybe(None), "–");
    }

    #[test]
    fn writes_instants_in_utc() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_091_506_250);
        assert_eq!(instant(time), "2026-02-03 04:05:06 UTC");
        assert_eq!(rfc3339(time), "2026-02-03T04:05:06.250Z");
    }

    #[test]
    fn takes_colours_and_control_characters_away() {
        assert_eq!(plain("\x1b[31mred\x1b[0m\0 and\tblue\r\n\x07end\u{9b}\u{202e}\u{fffe}é"), "red and    blue\nendé");
    }

    #[test]
    fn counts_only_the_verdicts_that_occur() {
        use Verdict::{Failed, NotVerified, Passed};
        assert_eq!(counts(&[Passed, Failed, Passed]), "2 passed, 1 FAILED");
        assert_eq!(counts(&[NotVerified]), "1 not verified here");
        assert_eq!(counts(&[]), "");
    }
}
