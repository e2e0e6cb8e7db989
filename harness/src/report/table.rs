//! A report as text for people: tables, and the timelines in characters.

use comfy_table::{Cell, ColumnConstraint, Width};

use super::fit::{numbers, whole_words};
use super::formatting::{costs, failures, instant, plain, plain_line, seconds, summary};
use super::screen::Look;
use super::{Case, Finding, Report, Verdict, ascii_timeline};

/// The whole report.
pub(super) fn render(report: &Report, look: Look) -> String {
    text(report, look, |_| true)
}

/// The part of several cases that needs attention; everything for a single one.
pub(super) fn brief(report: &Report, look: Look) -> String {
    text(report, look, |case| report.cases.len() == 1 || case.verdict() != Verdict::Passed)
}

fn text(report: &Report, look: Look, shown: impl Fn(&&Case) -> bool) -> String {
    let mut parts = vec![head(report)];
    parts.extend(report.cases.iter().filter(shown).map(|case| details(case, look)));
    if report.cases.len() > 1 {
        parts.push(overview(report, look));
    }
    parts.extend(report.not_verified.iter().map(|what| format!("{}: {}", Verdict::NotVerified, plain_line(what))));
    parts.push(summary(report));
    parts.join("\n\n") + "\n"
}

/// Findings as a table: verdict, claim, evidence.
pub(crate) fn findings(findings: &[Finding], look: Look) -> String {
    let mut table = look.table(&["verdict", "claim", "evidence"]);
    // Evidence is the widest column.
    table.set_constraints([ColumnConstraint::ContentWidth, ColumnConstraint::UpperBoundary(Width::Fixed(27))]);
    for finding in findings {
        let cells = [&finding.claim, &finding.evidence].map(|text| Cell::new(plain(text)));
        table.add_row(std::iter::once(look.verdict(finding.verdict)).chain(cells));
    }
    whole_words(table, look)
}

fn head(report: &Report) -> String {
    let (title, command) = (plain_line(&report.title), plain_line(&report.command));
    format!("{title}\n$ {command}\n{}, on {}", instant(report.started), plain_line(&report.machine.summary()))
}

fn details(case: &Case, look: Look) -> String {
    let mut parts =
        vec![format!("{}: {}\n{}", plain_line(&case.name), plain_line(&case.shows), findings(&case.findings, look))];
    parts.extend(case.tables.iter().map(|table| format!("{}\n{}", plain_line(&table.title), numbers(table, look))));
    if let Some(timeline) = &case.timeline {
        parts.push(ascii_timeline::draw(timeline, look.width, look.unicode));
        if !timeline.recoveries.is_empty() {
            let (headings, rows) = costs(&timeline.recoveries);
            let mut table = look.table(&headings);
            table.add_rows(rows);
            parts.push(whole_words(table, look));
        }
        parts.extend(timeline.verdicts.iter().map(|judged| plain_line(&judged.verdict.to_string())));
        parts.extend(timeline.notes.iter().map(|note| format!("note: {}", plain_line(note))));
    }
    // On a terminal, the reader has just seen the output of a good run.
    if case.verdict() != Verdict::Passed {
        parts.extend((!case.log.is_empty()).then(|| format!("Last lines:\n{}", quoted(&case.log))));
        parts.extend(case.replay.as_ref().map(|replay| format!("Run it again: {}", plain_line(replay))));
    }
    parts.join("\n")
}

fn quoted(log: &[String]) -> String {
    let lines: Vec<_> =
        log.iter().flat_map(|line| plain(line).lines().map(|line| format!("  | {line}")).collect::<Vec<_>>()).collect();
    lines.join("\n")
}

fn overview(report: &Report, look: Look) -> String {
    let mut table = look.table(&["verdict", "case", "what it shows", "failures met", "time"]);
    for case in &report.cases {
        let cells = [plain(&case.name), plain(&case.shows), failures(case), seconds(case.took.as_secs_f64())];
        table.add_row(std::iter::once(look.verdict(case.verdict())).chain(cells.map(Cell::new)));
    }
    whole_words(table, look)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{HOSTILE, sample};
    use super::*;

    #[test]
    fn keeps_every_line_within_the_width() {
        for width in [60, 80, 100] {
            let text = render(&sample(), Look { width, ..Look::FILE });
            let tables = text.lines().filter(|line| line.starts_with(' ') && !line.contains('|'));
            assert!(tables.clone().count() > 10);
            assert!(tables.clone().all(|line| line.chars().count() <= usize::from(width)), "{text}");
        }
    }

    #[test]
    fn shows_verdicts_pictures_costs_and_how_to_reproduce_a_failure() {
        let text = render(&sample(), Look::FILE);
        for expected in [
            "Lockstep inject: 3 scenarios\n$ lockstep inject --seed 7",
            "2 cores, 8.0 GiB, no GPU",
            "node1 rank 3",
            "rank 1 on node0: ended by",
            "2.1 s",
            "Last lines:\n  | resume skips a torn snapshot",
            "Run it again: lockstep inject tear-newest-snapshot --seed 7",
            "not verified here: training on GPUs",
            "1 passed, 1 FAILED, 1 not verified here in 14.9 s",
        ] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
        assert!(!text.contains("Run it again: lockstep inject kill-one"), "{text}");
    }

    #[test]
    fn leaves_good_cases_out_of_the_short_form() {
        let mut report = sample();
        let text = brief(&report, Look::FILE);
        assert!(!text.contains("node1 rank 3") && text.contains("Last lines:") && text.contains("kill-one"), "{text}");
        report.cases.truncate(1);
        assert!(brief(&report, Look::FILE).contains("node1 rank 3"));
    }

    #[test]
    fn lets_no_text_act_on_the_terminal() {
        let mut report = sample();
        report.title = HOSTILE.into();
        let case = &mut report.cases[1];
        (case.name, case.log) = (HOSTILE.into(), vec![HOSTILE.into()]);
        case.findings[0].evidence = HOSTILE.into();
        let text = render(&report, Look::FILE);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }
}
