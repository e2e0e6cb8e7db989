//! The timeline as a picture: one line per rank, drawn in SVG, with the same information as text below.
//!
//! Horizontal positions are percentages of the run, so that text and signs keep their shape at any width. Every state has a
//! pattern and every event has its own sign: colour is never the only distinction.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_plot::{Axis, stacked};
use maud::{Markup, html};

use crate::formatting::{plain, seconds};
use crate::timeline::{Mark, MarkKind, Node, Redone, Row, Span, State, Timeline};

/// Heights in pixels: of the time axis, of a node's line, of a rank's line, and of the bar in it.
const AXIS: usize = 26;
const NODE: usize = 30;
const RANK: usize = 34;
const BAR: usize = 16;
/// Maximum numbers of drawn ranks, and of spans and marks of one rank: a page must open on a phone.
const MOST_RANKS: usize = 128;
const MOST_OF_A_RANK: usize = 400;

/// States in the order of the legend.
const STATES: [(State, &str, &str); 6] = [
    (State::Starting, "starting", "starting"),
    (State::Running, "running", "training"),
    (State::Stalled, "stalled", "no progress"),
    (State::Dead, "dead", "dead: ended by itself"),
    (State::Stopped, "stopped", "stopped by its agent"),
    (State::Restarting, "restarting", "waiting to be restarted"),
];

/// Marks in the order of the legend; [`sign`] draws them.
const MARKS: [(MarkKind, &str); 10] = [
    (MarkKind::Fault, "fault"),
    (MarkKind::Died, "died"),
    (MarkKind::Resumed, "resumed from a snapshot"),
    (MarkKind::Snapshot, "snapshot saved"),
    (MarkKind::Epoch, "an epoch begins"),
    (MarkKind::Finished, "finished"),
    (MarkKind::Formed, "nodes agree on a group"),
    (MarkKind::Restarting, "agent restarts its workers"),
    (MarkKind::Signalled, "agent is sent a signal"),
    (MarkKind::Lost, "agent lost, or failed"),
];

/// The patterns of all pictures on a page.
pub fn patterns() -> Markup {
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" {
            defs {
                pattern id="dead" class="dead" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect width="6" height="6" {} line y2="6" {}
                }
                pattern id="stalled" class="stalled" width="5" height="5" patternUnits="userSpaceOnUse" {
                    rect width="5" height="5" {} line y2="5" {}
                }
                pattern id="restarting" class="restarting" width="6" height="6" patternUnits="userSpaceOnUse" {
                    rect width="6" height="6" {} circle cx="3" cy="3" r="1.1" {}
                }
                pattern id="again" class="again" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)" {
                    line y2="7" {}
                }
            }
        }
    }
}

/// The picture of case `index` on the page.
pub fn draw(index: usize, timeline: &Timeline) -> Markup {
    let (title, text) = (format!("timeline-{index}"), format!("timeline-{index}-text"));
    let named = format!("{title} {text}");
    let height = AXIS + lines(timeline).map(|line| line.height()).sum::<usize>();
    let left_out = timeline.rows().count().saturating_sub(MOST_RANKS);
    html! {
        figure.timeline {
            figcaption { h3 id=(title) { "What became of every rank" } p.small id=(text) { (summary(timeline)) } }
            div.frame {
                (labels(timeline))
                div.strip tabindex="0" role="region" aria-labelledby=(title) {
                    svg.picture role="img" aria-labelledby=(named) width="100%" height=(height) {
                        (axis(timeline.seconds, height))
                        @for (top, line) in stacked(AXIS, lines(timeline).map(|line| (line.height(), line))) { (line.draw(top, timeline.seconds)) }
                    }
                }
            }
            @if left_out > 0 { p.small { (left_out) " more ranks are not drawn; the report as JSON has them." } }
            (legend(timeline))
            @if !timeline.notes.is_empty() { ul.notes { @for note in &timeline.notes { li { (plain(note)) } } } }
            (in_words(index, timeline))
        }
    }
}

/// One line of the picture.
enum Line<'a> {
    Node(&'a Node),
    Rank(&'a Row),
}

/// A line for each node and each of its ranks.
fn lines(timeline: &Timeline) -> impl Iterator<Item = Line<'_>> {
    let lines = timeline.nodes.iter().flat_map(|node| {
        let head = (node.name.is_some() || timeline.nodes.len() > 1).then_some(Line::Node(node));
        head.into_iter().chain(node.rows.iter().map(Line::Rank))
    });
    let mut ranks = 0;
    lines.take_while(move |line| {
        ranks += usize::from(matches!(line, Line::Rank(_)));
        ranks <= MOST_RANKS
    })
}

impl Line<'_> {
    fn height(&self) -> usize {
        match self {
            Line::Node(_) => NODE,
            Line::Rank(_) => RANK,
        }
    }

    fn label(&self) -> Markup {
        match self {
            Line::Node(node) => {
                let name = node.name.as_deref().map_or_else(|| "of no known node".into(), plain);
                html! { div.node title=(name) { (name) } }
            }
            Line::Rank(row) => html! { div.rank { "rank " (row.rank) } },
        }
    }

    fn draw(&self, top: usize, length: f64) -> Markup {
        match self {
            Line::Node(node) => html! {
                line.edge x1="0" x2="100%" y1=(top) y2=(top) {}
                @for mark in apart(&node.marks, length) { (draw_mark(mark, top + NODE / 2, length)) }
            },
            Line::Rank(row) => draw_rank(row, top + (RANK - BAR) / 2, length),
        }
    }
}

fn labels(timeline: &Timeline) -> Markup {
    html! {
        div.labels aria-hidden="true" {
            div.axis {}
            @for line in lines(timeline) { (line.label()) }
        }
    }
}

/// A time as a horizontal position in the picture.
fn across(t: f64, length: f64) -> String {
    let share = if length > 0.0 { t / length } else { 0.0 };
    format!("{:.3}%", 100.0 * share.clamp(0.0, 1.0))
}

fn axis(length: f64, height: usize) -> Markup {
    html! {
        @for tick in ticks(length) {
            @let x = across(tick, length);
            @let anchor = if tick == 0.0 { "start" } else if tick > 0.94 * length { "end" } else { "middle" };
            line.tick x1=(x) x2=(x) y1=(AXIS - 6) y2=(height) {}
            text.time x=(x) y=(AXIS - 11) text-anchor=(anchor) { @if tick == 0.0 { "0" } @else { (seconds(tick)) } }
        }
    }
}

/// At most eight round times, starting with 0.
fn ticks(length: f64) -> Vec<f64> {
    if length <= 0.0 {
        return vec![0.0];
    }
    Axis::linear(length, (0.0, 1.0)).ticks(7)
}

fn draw_rank(row: &Row, top: usize, length: f64) -> Markup {
    let height = BAR;
    html! {
        line.track x1="0" x2="100%" y1=(top + height / 2) y2=(top + height / 2) {}
        @for span in row.spans.iter().take(MOST_OF_A_RANK) { (draw_span(span, top, length)) }
        @for redone in row.redone.iter().take(MOST_OF_A_RANK) { (draw_redone(redone, top, length)) }
        @for mark in apart(&row.marks, length) { (draw_mark(mark, top + height / 2, length)) }
    }
}

/// The marks that do not lie on one of the same kind: a long run has thousands of snapshots.
fn apart(marks: &[Mark], length: f64) -> impl Iterator<Item = &Mark> {
    let mut last: BTreeMap<MarkKind, f64> = BTreeMap::new();
    marks.iter().filter(move |mark| {
        let free = last.get(&mark.kind).is_none_or(|at| mark.at - at >= length / MOST_OF_A_RANK as f64);
        if free {
            last.insert(mark.kind, mark.at);
        }
        free
    })
}

fn draw_span(span: &Span, top: usize, length: f64) -> Markup {
    let (x, width) = (across(span.from, length), across(span.to - span.from, length));
    html! {
        rect.(class(span.state)) x=(x) y=(top) width=(width) height=(BAR) {
            title { (name(span.state)) ": " (plain(&span.detail)) "; " (when(span.from, span.to)) }
        }
    }
}

fn draw_redone(redone: &Redone, top: usize, length: f64) -> Markup {
    let (x, width) = (across(redone.from, length), across(redone.to - redone.from, length));
    html! {
        rect.again x=(x) y=(top) width=(width) height=(BAR) {
            title { (again(redone)) "; " (when(redone.from, redone.to)) }
        }
    }
}

/// The sign of each kind; its origin (0, 0) is the time and the middle of the line.
fn draw_mark(mark: &Mark, middle: usize, length: f64) -> Markup {
    html! {
        svg.mark x=(across(mark.at, length)) y=(middle) {
            title { (mark_name(mark.kind)) ": " (plain(&mark.detail)) "; at " (seconds(mark.at)) }
            (sign(mark.kind))
        }
    }
}

pub fn sign(kind: MarkKind) -> Markup {
    match kind {
        MarkKind::Fault => html! { path.fault d="M-5.5,-16 h11 L0,-8 Z" {} },
        MarkKind::Died => html! { g.died { circle r="7" {} path d="M-3,-3 L3,3 M3,-3 L-3,3" {} } },
        MarkKind::Resumed => html! { path.resumed d="M-4,-7 L7,0 L-4,7 Z" {} },
        MarkKind::Snapshot => html! { path.snapshot d="M0,4 L5,10 L0,16 L-5,10 Z" {} },
        MarkKind::Epoch => html! { path.epoch d="M0,-13 V13" {} },
        MarkKind::Finished => {
            html! { g.finished { path.halo d="M-12,0 l4,4 l7,-9" {} path d="M-12,0 l4,4 l7,-9" {} } }
        }
        MarkKind::Formed => html! { circle.formed cx="7" r="4.5" {} },
        MarkKind::Restarting => html! { path.restart d="M-3,-2 A5,5 0 1 0 -3,3 M-2,-6 V-1.5 H-6" {} },
        MarkKind::Signalled => html! { path.signal d="M2,-8 L-4,1 H0 L-2,8 L4,-1 H0 Z" {} },
        MarkKind::Lost => html! { path.lost d="M-5,-5 L5,5 M5,-5 L-5,5" {} },
    }
}

/// The part of a sign's surroundings that the legend shows.
pub fn view_box(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Fault => "-13 -22 26 20",
        MarkKind::Snapshot => "-13 0 26 20",
        MarkKind::Finished | MarkKind::Restarting => "-20 -10 26 20",
        MarkKind::Formed => "-6 -10 26 20",
        _ => "-13 -10 26 20",
    }
}

fn class(state: State) -> &'static str {
    STATES.iter().find(|(of, ..)| *of == state).map_or("", |(_, class, _)| class)
}

fn name(state: State) -> &'static str {
    STATES.iter().find(|(of, ..)| *of == state).map_or("", |(.., name)| name)
}

pub fn mark_name(kind: MarkKind) -> &'static str {
    MARKS.iter().find(|(of, _)| *of == kind).map_or("", |(_, name)| name)
}

fn when(from: f64, to: f64) -> String {
    format!("{} to {}", seconds(from), seconds(to))
}

fn again(redone: &Redone) -> String {
    format!("{} trained a second time", crate::counted(redone.steps as usize, "step"))
}

/// Only what occurs in the picture.
fn legend(timeline: &Timeline) -> Markup {
    let rows = || timeline.rows().map(|(_, row)| row);
    let states: BTreeSet<State> = rows().flat_map(|row| &row.spans).map(|span| span.state).collect();
    let of_nodes = timeline.nodes.iter().flat_map(|node| &node.marks);
    let kinds: BTreeSet<MarkKind> = rows().flat_map(|row| &row.marks).chain(of_nodes).map(|mark| mark.kind).collect();
    html! {
        ul.legend aria-label="Legend" {
            @for (_, class, name) in STATES.iter().filter(|(state, ..)| states.contains(state)) {
                li { svg width="26" height="14" aria-hidden="true" { rect.(class) width="26" height="14" {} } " " (name) }
            }
            @if rows().any(|row| !row.redone.is_empty()) {
                li {
                    svg width="26" height="14" aria-hidden="true" { rect.running width="26" height="14" {} rect.again width="26" height="14" {} }
                    " trained a second time"
                }
            }
            @for (kind, name) in MARKS.iter().filter(|(kind, _)| kinds.contains(kind)) {
                li { svg width="26" height="20" viewBox=(view_box(*kind)) aria-hidden="true" { (sign(*kind)) } " " (name) }
            }
        }
    }
}

fn summary(timeline: &Timeline) -> String {
    let (ranks, nodes) = (timeline.rows().count(), timeline.nodes.iter().filter(|node| node.name.is_some()).count());
    let place = if nodes == 0 { String::new() } else { format!(" on {}", crate::counted(nodes, "node")) };
    let ranks = crate::counted(ranks, "rank");
    let failures = match timeline.recoveries.as_slice() {
        [] => "nothing failed".into(),
        failed => failed
            .iter()
            .map(|one| format!("{} at {}", plain(&one.cause), seconds(one.at)))
            .collect::<Vec<_>>()
            .join("; "),
    };
    format!("{ranks}{place} in {}: {failures}.", seconds(timeline.seconds))
}

/// The picture as text, for readers who cannot see it or want the exact times.
fn in_words(index: usize, timeline: &Timeline) -> Markup {
    html! {
        details id={ "timeline-" (index) "-words" } {
            summary { "The picture in words" }
            div.scroll tabindex="0" role="region" aria-label="The picture in words" {
                table {
                    thead { tr { th { "Who" } th.number { "From" } th.number { "To" } th { "What" } th { "Details" } } }
                    tbody {
                        @for node in &timeline.nodes {
                            @if let Some(name) = &node.name {
                                @for mark in node.marks.iter().take(MOST_OF_A_RANK) { (table_row(&format!("agent of \
                                    {name}"), mark.at, None, mark_name(mark.kind), &mark.detail)) }
                            }
                        }
                        @for (node, row) in timeline.rows().take(MOST_RANKS) { (row_in_words(node, row)) }
                    }
                }
            }
        }
    }
}

fn row_in_words(node: Option<&str>, row: &Row) -> Markup {
    let who = node.map_or(format!("rank {}", row.rank), |node| format!("rank {} on {node}", row.rank));
    let spans = row.spans.iter().take(MOST_OF_A_RANK);
    let mut all: Vec<_> = spans.map(|span| (span.from, Some(span.to), name(span.state), span.detail.clone())).collect();
    all.extend(
        row.redone.iter().take(MOST_OF_A_RANK).map(|redone| (redone.from, Some(redone.to), "training", again(redone))),
    );
    let marks = row.marks.iter().take(MOST_OF_A_RANK);
    all.extend(marks.map(|mark| (mark.at, None, mark_name(mark.kind), mark.detail.clone())));
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    html! {
        @if all.is_empty() { tr { td { (plain(&who)) } td {} td {} td { "never started" } td {} } }
        @for (from, to, what, detail) in &all { (table_row(&who, *from, *to, what, detail)) }
    }
}

fn table_row(who: &str, from: f64, to: Option<f64>, what: &str, detail: &str) -> Markup {
    html! {
        tr {
            td { (plain(who)) }
            td.number { (seconds(from)) }
            td.number { @if let Some(to) = to { (seconds(to)) } }
            td { (what) }
            td { (plain(detail)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeRun, NOON, start, two_nodes};

    #[test]
    fn puts_few_round_times_on_the_axis() {
        assert_eq!(ticks(9.3), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(0.0), [0.0]);
        for length in [1e-9, 0.013, 1.0, 7.0, 59.0, 86_400.0, 1e11] {
            assert!((3..=8).contains(&ticks(length).len()), "{length}: {:?}", ticks(length));
        }
    }

    #[test]
    fn draws_within_its_frame_whatever_the_times_are() {
        let places = [across(-1.0, 2.0), across(1.0, 2.0), across(3.0, 2.0), across(1.0, 0.0), across(1.0, f64::NAN)];
        assert_eq!(places, ["0.000%", "50.000%", "100.000%", "0.000%", "0.000%"]);
    }

    #[test]
    fn gives_every_state_a_look_and_every_mark_a_sign_of_its_own() {
        let looks: BTreeSet<_> = STATES.iter().map(|(state, ..)| class(*state)).collect();
        let signs: BTreeSet<_> = MARKS.iter().map(|(kind, _)| sign(*kind).into_string()).collect();
        assert_eq!((looks.len(), signs.len()), (STATES.len(), MARKS.len()));
    }

    #[test]
    fn explains_only_what_it_shows() {
        let legend = legend(&two_nodes().timeline()).into_string();
        assert!(legend.contains("dead: ended by itself") && legend.contains("trained a second time"));
        assert!(!legend.contains("is sent a signal"));
        assert!(!super::legend(&FakeRun::default().timeline()).into_string().contains("<li>"));
    }

    #[test]
    fn limits_the_number_of_drawn_ranks() {
        let many = (0..1000).fold(FakeRun::default(), |run, rank| run.rank(rank, 0, NOON - NOON, start(1000, 1)));
        let drawn = draw(0, &many.timeline()).into_string();
        assert!(drawn.contains("872 more ranks are not drawn"));
        assert!(drawn.contains("rank 127<") && !drawn.contains("rank 128<"));
    }
}
