//! A timeline in characters: one line per rank, for terminals and text files.

use super::formatting::{plain_line, seconds};
use super::timeline::{MarkKind, Row, State, Timeline};

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
pub(crate) fn draw(timeline: &Timeline, width: u16, unicode: bool) -> String {
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
        lines.push(format!("and {left_out} more ranks"));
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
    use crate::history::testing::{FakeRun, two_nodes};

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
