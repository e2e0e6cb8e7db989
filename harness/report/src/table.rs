//! A report as text for people: tables, and timelines in characters, a line for each rank.

use comfy_table::{Cell, ColumnConstraint, Width};

use crate::fit::{numbers, whole_words};
use crate::formatting::{count, instant, plain, plain_line, seconds};
use crate::model::{Finding, Report, ReportCase, Verdict};
use crate::screen::{TextStyle, costs, failures, summary};
use crate::timeline::{MarkKind, Row, State, Timeline};

/// The whole report.
pub(crate) fn render(report: &Report, style: TextStyle) -> String {
    text(report, style, |_| true)
}

/// The part of several cases that needs attention; everything for a single one.
pub(crate) fn brief(report: &Report, style: TextStyle) -> String {
    text(report, style, |case| report.cases.len() == 1 || case.verdict() != Verdict::Passed)
}

fn text(report: &Report, style: TextStyle, shown: impl Fn(&&ReportCase) -> bool) -> String {
    let mut parts = vec![head(report)];
    // Wider ones are in the other forms.
    let narrow = report.tables.iter().filter(|table| table.headings.len() <= MOST_COLUMNS);
    parts.extend(narrow.map(|table| format!("{}\n{}", plain_line(&table.title), numbers(table, style))));
    parts.extend(report.cases.iter().filter(shown).map(|case| details(case, style)));
    if report.cases.len() > 1 {
        parts.push(overview(report, style));
    }
    parts.extend(report.not_verified.iter().map(|what| format!("{}: {}", Verdict::NotVerified, plain_line(what))));
    parts.push(summary(report));
    parts.join("\n\n") + "\n"
}

/// Findings as a table: verdict, claim, evidence.
pub fn findings(findings: &[Finding], style: TextStyle) -> String {
    let mut table = style.table(&["verdict", "claim", "evidence"]);
    // Evidence is the widest column.
    table.set_constraints([ColumnConstraint::ContentWidth, ColumnConstraint::UpperBoundary(Width::Fixed(27))]);
    for finding in findings {
        let cells = [&finding.claim, &finding.evidence].map(|text| Cell::new(plain(text)));
        table.add_row(std::iter::once(style.verdict(finding.verdict)).chain(cells));
    }
    whole_words(table, style)
}

fn head(report: &Report) -> String {
    let (title, command) = (plain_line(&report.title), plain_line(&report.command));
    format!("{title}\n$ {command}\n{}, on {}", instant(report.started), plain_line(&report.machine.summary()))
}

fn details(case: &ReportCase, style: TextStyle) -> String {
    let mut parts =
        vec![format!("{}: {}\n{}", plain_line(&case.name), plain_line(&case.shows), findings(&case.findings, style))];
    parts.extend(case.tables.iter().map(|table| format!("{}\n{}", plain_line(&table.title), numbers(table, style))));
    if let Some(timeline) = &case.timeline {
        parts.push(draw(timeline, style.width, style.unicode));
        if !timeline.recoveries.is_empty() {
            let (headings, rows) = costs(&timeline.recoveries);
            let mut table = style.table(&headings);
            table.add_rows(rows);
            parts.push(whole_words(table, style));
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

fn overview(report: &Report, style: TextStyle) -> String {
    let ran = report.cases.iter().any(|case| case.timeline.is_some());
    let mut headings = vec!["verdict", "case", "what it shows", "failures", "time"];
    headings.retain(|heading| ran || *heading != "failures");
    let mut table = style.table(&headings);
    for case in &report.cases {
        let mut cells =
            vec![style.verdict(case.verdict()), Cell::new(plain(&case.name)), Cell::new(plain(&case.shows))];
        cells.extend(ran.then(|| Cell::new(failures(case))));
        cells.push(Cell::new(seconds(case.took.as_secs_f64())));
        table.add_row(cells);
    }
    whole_words(table, style)
}

/// Tables of all cases with more columns are left out of the text.
pub(crate) const MOST_COLUMNS: usize = 10;
/// Maximum number of drawn ranks.
const MOST_ROWS: usize = 64;

/// The characters for each thing, and plain ones for ASCII. Earlier ones hide later ones.
const MARKS: [(MarkKind, char, char, &str); 5] = [
    (MarkKind::Died, '×', 'x', "died"),
    (MarkKind::Fault, '!', '!', "fault"),
    (MarkKind::Resumed, '▷', '>', "resumed"),
    (MarkKind::Finished, '✓', '$', "finished"),
    (MarkKind::Snapshot, '◆', 'o', "snapshot"),
];
const STATES: [(State, char, char, &str); 6] = [
    (State::Starting, '·', '.', "starting"),
    (State::Running, '█', '#', "training"),
    (State::Stalled, '~', '~', "no progress"),
    (State::Dead, '_', '_', "dead"),
    (State::Stopped, '-', '-', "stopped by its agent"),
    (State::Restarting, '░', ':', "waiting to be restarted"),
];
/// Drawn over [`State::Running`].
const AGAIN: (char, char, &str) = ('▓', '%', "training lost steps again");

/// The picture with its axis and legend, in `width` columns.
pub fn draw(timeline: &Timeline, width: u16, unicode: bool) -> String {
    let labels = labels(timeline);
    let margin = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).min(usize::from(width / 3));
    let cells = usize::from(width).saturating_sub(margin + 3).max(10);
    let mut lines = vec![format!("{:margin$}  {}", "", axis(timeline.seconds, cells))];
    let mut used = String::new();
    for ((_, row), label) in timeline.rows().zip(&labels) {
        let strip = strip(row, timeline.seconds, cells, unicode);
        let label: String = label.chars().take(margin).collect();
        lines.push(format!("{label:margin$}  {strip}").trim_end().to_owned());
        used.push_str(&strip);
    }
    let left_out = timeline.rows().count().saturating_sub(MOST_ROWS);
    if left_out > 0 {
        lines.push(format!("and {}", count(left_out, "more rank")));
    }
    lines.extend(legend(&used, width, unicode));
    lines.join("\n")
}

fn labels(timeline: &Timeline) -> Vec<String> {
    let label = |(node, row): (Option<&str>, &Row)| match node {
        Some(node) => format!("{} rank {}", plain_line(node), row.rank),
        None => format!("rank {}", row.rank),
    };
    timeline.rows().take(MOST_ROWS).map(label).collect()
}

/// The times at both ends.
fn axis(length: f64, cells: usize) -> String {
    let end = seconds(length);
    format!("0{end:>rest$}", rest = cells.saturating_sub(1))
}

fn strip(row: &Row, length: f64, cells: usize, unicode: bool) -> String {
    let cell = |t: f64| if length > 0.0 { ((t / length * cells as f64) as usize).min(cells - 1) } else { 0 };
    let mut strip: Vec<char> = (0..cells).map(|index| state_at(row, length, index, cells, unicode)).collect();
    for (kind, pretty, simple, _) in MARKS.iter().rev() {
        for mark in row.marks.iter().filter(|mark| mark.kind == *kind) {
            strip[cell(mark.at)] = pick(unicode, *pretty, *simple);
        }
    }
    strip.into_iter().collect()
}

/// The state that lasted longest in one cell.
fn state_at(row: &Row, length: f64, index: usize, cells: usize, unicode: bool) -> char {
    let (from, to) = (length * index as f64 / cells as f64, length * (index + 1) as f64 / cells as f64);
    let shared = |a: f64, b: f64| b.min(to) - a.max(from);
    let spans = row.spans.iter().map(|span| (shared(span.from, span.to), span.state));
    let Some((_, state)) = spans.filter(|(shared, _)| *shared > 0.0).max_by(|one, other| one.0.total_cmp(&other.0))
    else {
        return ' ';
    };
    let again: f64 = row.redone.iter().map(|redone| shared(redone.from, redone.to).max(0.0)).sum();
    if state == State::Running && again > (to - from) / 2.0 {
        return pick(unicode, AGAIN.0, AGAIN.1);
    }
    let found = STATES.iter().find(|(of, ..)| *of == state);
    found.map_or(' ', |(_, pretty, simple, _)| pick(unicode, *pretty, *simple))
}

/// The legend of the characters in `used`, in lines of at most `width` columns.
fn legend(used: &str, width: u16, unicode: bool) -> Vec<String> {
    let states = STATES.iter().map(|(_, pretty, simple, what)| (pick(unicode, *pretty, *simple), *what));
    let marks = MARKS.iter().map(|(_, pretty, simple, what)| (pick(unicode, *pretty, *simple), *what));
    let all = states.chain([(pick(unicode, AGAIN.0, AGAIN.1), AGAIN.2)]).chain(marks);
    let mut lines: Vec<String> = vec![];
    for (sign, what) in all.filter(|(sign, _)| used.contains(*sign)) {
        let entry = format!("{sign} {what}");
        match lines.last_mut() {
            Some(line) if line.chars().count() + entry.chars().count() + 3 <= usize::from(width) => {
                line.push_str("   ");
                line.push_str(&entry);
            }
            _ => lines.push(entry),
        }
    }
    lines
}

fn pick(unicode: bool, pretty: char, simple: char) -> char {
    if unicode { pretty } else { simple }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeRun, HOSTILE, sample, two_nodes};

    #[test]
    fn keeps_every_line_within_the_width() {
        for width in [60, 80, 100] {
            let text = render(&sample(), TextStyle { width, ..TextStyle::FILE });
            let tables = text.lines().filter(|line| line.starts_with(' ') && !line.contains('|'));
            assert!(tables.clone().count() > 10);
            assert!(tables.clone().all(|line| line.chars().count() <= usize::from(width)), "{text}");
        }
    }

    #[test]
    fn shows_verdicts_pictures_costs_and_how_to_reproduce_a_failure() {
        insta::assert_snapshot!(render(&sample(), TextStyle::FILE));
    }

    #[test]
    fn leaves_good_cases_out_of_the_short_form() {
        let mut report = sample();
        let text = brief(&report, TextStyle::FILE);
        assert!(!text.contains("node1 rank 3") && text.contains("Last lines:") && text.contains("kill-one"), "{text}");
        report.cases.truncate(1);
        assert!(brief(&report, TextStyle::FILE).contains("node1 rank 3"));
    }

    #[test]
    fn lets_no_text_act_on_the_terminal() {
        let mut report = sample();
        report.title = HOSTILE.into();
        let case = &mut report.cases[1];
        (case.name, case.log) = (HOSTILE.into(), vec![HOSTILE.into()]);
        case.findings[0].evidence = HOSTILE.into();
        let text = render(&report, TextStyle::FILE);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }

    #[test]
    fn draws_one_line_a_rank_with_a_legend() {
        let expected = "
              0                                                         9.3 s
node0 rank 0  ····███████◆███-···▷▓▓▓▓███◆██~~~~~~~~~~~~~~░··▷▓▓▓███████████✓
node0 rank 1  ····██████████×_···▷▓▓▓▓██████~~~~~~~~~~~~~~░··▷▓▓▓███████████✓
node1 rank 2  ····████████████···▷▓▓▓▓█████×_________________________________
node1 rank 3  ····████████████░··▷▓▓▓▓█████×_________________________________
· starting   █ training   ~ no progress   _ dead   - stopped by its agent
░ waiting to be restarted   ▓ training lost steps again   × died   ▷ resumed
✓ finished   ◆ snapshot";
        assert_eq!(format!("\n{}", draw(&two_nodes().timeline(), 78, true)), expected);
    }

    #[test]
    fn stays_within_the_width_and_within_ascii() {
        for width in [0, 20, 60, 100, 1000] {
            let drawn = draw(&two_nodes().timeline(), width, false);
            assert!(drawn.is_ascii(), "{drawn}");
            let least = width.max(40);
            assert!(drawn.lines().all(|line| line.len() <= usize::from(least)), "{width}\n{drawn}");
        }
    }

    #[test]
    fn draws_a_run_of_nothing() {
        assert_eq!(draw(&FakeRun::default().timeline(), 40, true).lines().count(), 1);
    }
}
