//! The instructor's page: HTML that reads without a script; [`crate::live_page`] has a script that asks for it again every two seconds.

use std::collections::BTreeSet;
use std::time::Duration;

use maud::{Markup, html};

use crate::live_page::{following, notice, span};
use crate::report::count;
use crate::report::formatting::plain;
use crate::report::html::page_with;

use super::view::{BARS, Mark, Met, Row, TaskTimes, View};

const STYLE: &str = include_str!("class.css");
/// Lists of the stuck and of diagnoses end after this many, on the wall after these.
const MOST: usize = 8;
const MOST_ON_WALL: usize = 4;
/// A diagnosis that only one seat has is shown among so many.
const MOST_WITH_SINGLE: usize = 3;
/// On the wall, a route with more tasks is shown by numbers alone.
const MOST_SIGNS: usize = 24;

/// What the page shows besides the view.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    /// The folder, as the command names it; none for made-up seats.
    pub(super) folder: Option<&'a str>,
    /// For a projector: all seats on one screen.
    pub(super) wall: bool,
    pub(super) route: &'a str,
    pub(super) routes: &'a [String],
    pub(super) names: Names,
    /// Files that are not a seat's, and why.
    pub(super) broken: &'a [(String, String)],
    /// What keeps the folder from being read, and for how long.
    pub(super) trouble: Option<&'a (String, Duration)>,
}

/// How seats are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Shown,
    /// By this page's address.
    Hidden,
    /// By the command, for every page.
    AlwaysHidden,
}

pub(super) fn render(frame: &Frame<'_>, view: &View) -> String {
    let head = html! {
        (following())
        style { (maud::PreEscaped(STYLE)) }
    };
    let body = if frame.wall { wall(frame, view) } else { whole(frame, view) };
    page_with(&plain(frame.title), &head, body)
}

fn whole(frame: &Frame<'_>, view: &View) -> Markup {
    html! {
        main {
            (header(frame, view))
            (notice("The folder", frame.trouble))
            @if view.rows.is_empty() { (nobody(frame)) } @else {
                div.pair { (met(view, MOST)) (stuck(frame, view, MOST)) }
                div.beside { (where_all_are(frame, view)) (times(view)) }
            }
            @if !frame.broken.is_empty() { (broken(frame)) }
        }
        footer { "Times are by the clock of the folder's file system, whatever a seat's own says. A seat works on a task from when it passed the one before." }
    }
}

/// A line for each seat, and next to them what most have met and who has been stuck for longest.
fn wall(frame: &Frame<'_>, view: &View) -> Markup {
    let columns = match view.rows.len() {
        0..=12 => 1,
        13..=40 => 2,
        _ => 3,
    };
    let rows = view.rows.len().div_ceil(columns).max(8);
    let with_signs = view.plan.len() <= MOST_SIGNS && columns < 3;
    // Of user@host, the user is enough where all differ.
    let user = |row: &Row| row.name.split('@').next().unwrap_or_default().to_owned();
    let users: BTreeSet<String> = view.rows.iter().map(user).collect();
    let are_enough = frame.names == Names::Shown && users.len() == view.rows.len() && !users.contains("");
    html! {
        main.wall style={ "--rows: " (rows) "; --columns: " (columns) } {
            (header(frame, view))
            (notice("The folder", frame.trouble))
            @if view.rows.is_empty() { (nobody(frame)) } @else {
                div.board {
                    ol.all.with-signs[with_signs] {
                        @for (index, row) in view.rows.iter().enumerate() {
                            li.silent[row.is_silent()] {
                                span.who { @if are_enough { (plain(&user(row))) } @else { (name(frame, index, row)) } }
                                @if with_signs { span.marks { (marks(view, row, false)) } } @else { span.number { (row.done()) " of " (view.plan.len()) } }
                                @match row.at {
                                    None => { span { "finished" } span {} }
                                    Some(at) => { span { (task(view, at)) } span.number { (span(row.since)) } }
                                }
                            }
                        }
                    }
                    div.beside-all { (met(view, MOST_ON_WALL)) (stuck(frame, view, MOST_ON_WALL)) }
                }
            }
        }
    }
}

fn header(frame: &Frame<'_>, view: &View) -> Markup {
    let tasks = view.plan.len();
    let mut done: Vec<usize> = view.rows.iter().map(Row::done).collect();
    done.sort_unstable();
    let median = done.get(done.len() / 2).copied().unwrap_or_default();
    let hidden = frame.names != Names::Shown;
    html! {
        header {
            h1 { span.name { (plain(frame.title)) } }
            @if frame.folder.is_none() { p.demo { (super::DEMO) } }
            p.verdict {
                strong { (count(view.rows.len(), "seat")) }
                @if !view.rows.is_empty() {
                    "; tasks done, median: " strong { (median) " of " (tasks) }
                }
            }
            nav {
                "Route: "
                @for route in frame.routes {
                    @if route == frame.route { strong { (route) } } @else { a href=(address(route, hidden, frame.wall)) { (route) } }
                    " "
                }
                @match frame.names {
                    Names::Shown => { "· " a href=(address(frame.route, true, frame.wall)) { "hide names" } }
                    Names::Hidden => { "· " a href=(address(frame.route, false, frame.wall)) { "show names" } }
                    Names::AlwaysHidden => {}
                }
                " · " a href=(address(frame.route, hidden, !frame.wall)) { @if frame.wall { "the whole page" } @else { "for the wall" } }
                @if !frame.wall {
                    " · report: "
                    @for ending in ["html", "csv", "json", "xml"] { a href={ "report." (ending) (address(frame.route, hidden, false)) } { (ending) } " " }
                }
            }
        }
    }
}

fn address(route: &str, hidden: bool, wall: bool) -> String {
    format!("?route={route}{}{}", if hidden { "&names=hidden" } else { "" }, if wall { "&wall=on" } else { "" })
}

fn nobody(frame: &Frame<'_>) -> Markup {
    html! {
        section {
            h2 { "No seat has reported yet" }
            p { "With these commands a participant is seen here and begins the first task; then they grade as always:" }
            (crate::report::html::command(&format!("export LOCKSTEP_CLASS={}", lockstep_launch::command::quoted(frame.folder.unwrap_or_default()))))
            (crate::report::html::command("lockstep progress"))
        }
    }
}

fn task(view: &View, at: usize) -> String {
    let planned = &view.plan[at];
    format!("{} {}", planned.lab.number(), planned.task.name)
}

fn name(frame: &Frame<'_>, index: usize, row: &Row) -> String {
    if frame.names == Names::Shown { plain(&row.name) } else { format!("seat {}", index + 1) }
}

fn met(view: &View, most: usize) -> Markup {
    let is_shown = |(place, met): &(usize, &Met)| met.seats > 1 || *place < MOST_WITH_SINGLE;
    let most: Vec<&Met> = view.met.iter().enumerate().filter(is_shown).map(|(_, met)| met).take(most).collect();
    html! {
        section {
            h2 { "What most have just met" }
            @if most.is_empty() { p.small { "No diagnosis is open." } }
            ol.list {
                @for met in &most {
                    li {
                        span.count { (met.seats) }
                        div { p { strong { (task(view, met.at)) } " · " (met.verdict.words()) } p.evidence { (plain(&met.diagnosis)) } }
                    }
                }
            }
            @if most.len() < view.met.len() { p.small { "and " (view.met.len() - most.len()) " more" } }
        }
    }
}

fn stuck(frame: &Frame<'_>, view: &View, most: usize) -> Markup {
    let stuck = view.stuck();
    html! {
        section {
            h2 { "At their task for longer than planned" }
            @if stuck.is_empty() { p.small { "Nobody." } }
            ol.list {
                @for (index, row) in stuck.iter().take(most) {
                    @let at = row.at.unwrap_or_default();
                    li {
                        span.count { (span(row.since)) }
                        div {
                            p { strong { (name(frame, *index, row)) } " · " (task(view, at)) " · planned " (view.plan[at].minutes) " min · graded " (times_word(row.tries)) }
                            @if let Some((_, diagnosis)) = &row.finding { p.evidence { (plain(diagnosis)) } }
                        }
                    }
                }
            }
            @if stuck.len() > most { p.small { "and " (stuck.len() - most) " more" } }
        }
    }
}

pub(super) fn times_word(count: u32) -> String {
    match count {
        0 => "not yet".into(),
        1 => "once".into(),
        _ => format!("{count} times"),
    }
}

/// A row for each seat, a sign for each task: 200 seats and 60 tasks are a page of a hundred kilobytes.
fn where_all_are(frame: &Frame<'_>, view: &View) -> Markup {
    html! {
        section {
            h2 { "Where everybody is" }
            p.small.legend-line {
                span.m-passed { "✓" } " passed  " span.m-tried { "✗" } " graded, not right  " span.m-open { "·" } " not graded  "
                span.here { "·" } " works on it. Columns are the route's tasks, by lab."
            }
            div.scroll tabindex="0" role="region" aria-label="Where everybody is" {
                table.seats {
                    thead { tr { th scope="col" { "Seat" } @if view.has_python() { th scope="col" { "In" } } th.marks scope="col" { (labs(view)) } th.number scope="col" { "Done" } th scope="col" { "At" } th.number scope="col" { "For" } th.number scope="col" { "Graded" } } }
                    tbody {
                        @for (index, row) in view.rows.iter().enumerate() {
                            tr.silent[row.is_silent()] {
                                td.seat { (name(frame, index, row)) }
                                @if view.has_python() { td { (row.language.as_deref().unwrap_or_default()) } }
                                td.marks { (marks(view, row, true)) }
                                td.number { (row.done()) }
                                @match row.at {
                                    None => { td { "finished" } td {} td {} }
                                    Some(at) => {
                                        td { (task(view, at)) }
                                        td.number { (span(row.since)) }
                                        td.number { (times_word(row.tries)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            @if view.rows.iter().any(|row| row.is_silent()) {
                p.small { "Seats in italics were silent for " (super::view::SILENT / 60) " minutes or more." }
            }
        }
    }
}

/// The places of the route's tasks, in groups by lab.
fn groups(view: &View) -> Vec<(&'static str, std::ops::Range<usize>)> {
    let mut groups: Vec<(&'static str, std::ops::Range<usize>)> = Vec::new();
    for (index, planned) in view.plan.iter().enumerate() {
        match groups.last_mut() {
            Some((lab, range)) if *lab == planned.lab.number() => range.end = index + 1,
            _ => groups.push((planned.lab.number(), index..index + 1)),
        }
    }
    groups
}

/// The labs' numbers, each as wide as its tasks' signs.
fn labs(view: &View) -> String {
    let column = |(lab, range): (&str, std::ops::Range<usize>)| format!("{lab:width$}", width = range.len().max(2));
    groups(view).into_iter().map(column).collect::<Vec<_>>().join(" ")
}

/// A sign for each task, by lab; `padded` as in [`labs`].
fn marks(view: &View, row: &Row, padded: bool) -> Markup {
    let sign = |index: usize| match row.marks[index] {
        Mark::Passed => ("m-passed", '✓'),
        Mark::Tried => ("m-tried", '✗'),
        Mark::Open => ("m-open", '·'),
    };
    html! {
        @for (number, (_, range)) in groups(view).into_iter().enumerate() {
            @if number > 0 { " " }
            @for run in runs(range.clone(), |index| (sign(index), row.at == Some(index))) {
                @let ((class, sign), here) = run.0;
                span.(class).here[here] { (sign.to_string().repeat(run.1)) }
            }
            @if padded && range.len() < 2 { " " }
        }
    }
}

/// Neighbours that are equal, and how many.
fn runs<T: PartialEq>(range: std::ops::Range<usize>, of: impl Fn(usize) -> T) -> Vec<(T, usize)> {
    let mut runs: Vec<(T, usize)> = Vec::new();
    for index in range {
        let next = of(index);
        match runs.last_mut() {
            Some((last, count)) if *last == next => *count += 1,
            _ => runs.push((next, 1)),
        }
    }
    runs
}

fn times(view: &View) -> Markup {
    html! {
        section {
            h2 { "Minutes against the plan" }
            p.small { "Bars: seats that took at most half of the plan's minutes, at most these, one and a half, twice as many, and longer. The plan counts reading and breaks." }
            div.scroll tabindex="0" role="region" aria-label="Minutes against the plan" {
                table.times {
                    thead { tr { th scope="col" { "Task" } th.number scope="col" { "Passed" } th.number scope="col" { "Now" } th.number scope="col" { "Plan, min" } th.number scope="col" { "Median, min" } th scope="col" { "Seats" } } }
                    tbody {
                        @for (planned, times) in view.plan.iter().zip(&view.times) {
                            tr {
                                td { (planned.lab.number()) " " (planned.task.name) }
                                td.number { (times.passed) }
                                td.number { @if times.working > 0 { (times.working) } }
                                td.number { (planned.minutes) }
                                td.number { @if let Some(minutes) = times.minutes.get(times.minutes.len() / 2) { (format!("{minutes:.0}")) } }
                                td { @if !times.minutes.is_empty() { (bars(times)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn bars(times: &TaskTimes) -> Markup {
    const HEIGHT: usize = 22;
    let most = times.bars.iter().copied().max().unwrap_or_default().max(1);
    let words: Vec<String> = times.bars.iter().map(usize::to_string).collect();
    html! {
        svg.bars width="110" height=(HEIGHT + 2) role="img" aria-label={ "seats by share of the plan: " (words.join(", ")) } {
            @for (index, seats) in times.bars.iter().enumerate() {
                @let height = (seats * HEIGHT).div_ceil(most).max(1);
                rect.late[index >= 2].very-late[index == BARS.len()] x=(index * 22) y=(HEIGHT + 1 - height) width="19" height=(height) {
                    title { (count(*seats, "seat")) }
                }
                @if *seats > 0 && height > 13 { text x=(index * 22 + 9) y=(HEIGHT - 1) { (seats) } }
            }
        }
    }
}

fn broken(frame: &Frame<'_>) -> Markup {
    let name = |file, index| super::file_name(file, index, frame.names != Names::Shown);
    html! {
        section.notice {
            h2 { "Files that are not a seat's" }
            ul { @for (index, (file, why)) in frame.broken.iter().enumerate() { li { code { (plain(&name(file, index))) } ": " (plain(why)) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{plan, seat};
    use super::*;

    fn shown(names: Names, seats: Vec<lockstep_grading::seat::Seat>) -> String {
        let routes = ["morning".to_owned(), "day".to_owned()];
        let frame = Frame {
            title: "Class in /srv/class",
            folder: Some("/srv/class"),
            wall: false,
            route: "day",
            routes: &routes,
            names,
            broken: &[("zoe@host.json".into(), "torn <b>".into())],
            trouble: None,
        };
        render(&frame, &View::new(plan(), seats, 2_000))
    }

    #[test]
    fn shows_signs_by_lab_and_escapes_what_seats_write() {
        let seats = vec![seat("<script>", &[(1_600, Ok(1_600)), (1_900, Err("a <b>sum</b>"))])];
        let page = shown(Names::Shown, seats);
        assert!(page.contains("<span class=\"m-passed\">✓</span><span class=\"m-tried here\">✗</span>"), "{page}");
        assert!(page.contains("&lt;script&gt;") && page.contains("a &lt;b&gt;sum") && page.contains("torn &lt;b&gt;"));
        assert!(!page.contains("<b>") && !page.contains("<script>"), "{page}");
    }

    #[test]
    fn hidden_names_are_not_on_the_page() {
        let seats = || vec![seat("xenia", &[(1_600, Err("a sum"))]), seat("yusuf", &[])];
        assert!(shown(Names::Shown, seats()).contains("xenia"));
        for names in [Names::Hidden, Names::AlwaysHidden] {
            let page = shown(names, seats());
            assert!(page.contains("seat 1") && page.contains("file 1"), "{page}");
            assert!(["xenia", "yusuf", "zoe"].iter().all(|name| !page.contains(name)), "{page}");
            assert_eq!(page.contains("show names"), names == Names::Hidden);
        }
    }

    #[test]
    fn the_wall_has_a_line_for_each_seat_and_says_when_seats_are_made_up() {
        let seats: Vec<_> = (0..20).map(|number| seat(&format!("seat-{number}"), &[(1_900, Err("a sum"))])).collect();
        let routes = ["day".to_owned()];
        let frame = |folder| Frame {
            title: "Day <2>",
            folder,
            wall: true,
            route: "day",
            routes: &routes,
            names: Names::Shown,
            broken: &[],
            trouble: None,
        };
        let view = View::new(plan(), seats, 2_000);
        let page = render(&frame(Some("/srv/class")), &view);
        assert_eq!(page.matches("<span class=\"who\">").count(), 20, "{page}");
        assert!(page.contains("--rows: 10; --columns: 2") && page.contains("<title>Day &lt;2&gt;"), "{page}");
        assert!(!page.contains("report.html") && !page.contains(super::super::DEMO), "{page}");
        assert!(render(&frame(None), &view).contains(super::super::DEMO));
    }

    #[test]
    fn an_empty_class_says_what_a_seat_does() {
        assert!(shown(Names::Shown, vec![]).contains("export LOCKSTEP_CLASS=/srv/class"));
    }
}
