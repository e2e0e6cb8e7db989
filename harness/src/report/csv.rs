//! A report for spreadsheets: a row for each claim.

use super::Report;
use super::formatting::plain;

const HEADINGS: [&str; 7] = ["case", "verdict", "claim", "evidence", "seconds of the case", "seed", "replay"];

/// The report as comma-separated values (RFC 4180).
pub(super) fn render(report: &Report) -> anyhow::Result<String> {
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(HEADINGS)?;
    for case in &report.cases {
        let (seconds, seed) = (format!("{:.1}", case.took.as_secs_f64()), case.seed.map(|seed| seed.to_string()));
        for finding in &case.findings {
            let (claim, evidence) = (cell(&finding.claim), cell(&finding.evidence));
            let replay = case.replay.as_deref().unwrap_or_default();
            let verdict = finding.verdict.to_string();
            rows.write_record([
                &cell(&case.name),
                &verdict,
                &claim,
                &evidence,
                &seconds,
                seed.as_deref().unwrap_or_default(),
                replay,
            ])?;
        }
    }
    Ok(String::from_utf8(rows.into_inner()?)?)
}

/// Escapes a text so that no spreadsheet takes it for a formula: learners choose names and output.
fn cell(text: &str) -> String {
    let text = plain(text);
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::testing::sample;
    use super::*;

    #[test]
    fn has_a_row_for_each_claim() {
        let report = sample();
        let claims: usize = report.cases.iter().map(|case| case.findings.len()).sum();
        let text = render(&report).unwrap();
        let rows: Vec<csv::StringRecord> =
            csv::Reader::from_reader(text.as_bytes()).records().collect::<Result<_, _>>().unwrap();
        assert_eq!(rows.len(), claims);
        assert_eq!(&rows[0][0], report.cases[0].name);
    }

    #[test]
    fn disarms_what_a_spreadsheet_would_compute() {
        assert_eq!(cell("=cmd()"), "'=cmd()");
        assert_eq!(cell("1 + 1"), "1 + 1");
    }
}
