//! The page with the curves: HTML and SVG that read without a script; [`crate::live_page`] has a script that asks for the page again.
//!
//! Places are shares of the width and heights are pixels, so that lines and words keep their size on a phone and on a wide screen. Attempts
//! differ in colour and in dashes.

use std::time::{Duration, SystemTime};

use lockstep_plot::Axis;
use maud::{Markup, PreEscaped, html};

use super::series::{AttemptCurves, Curves, Dot, Quantity, State, thinned};
use crate::live_page::{following, notice};
use crate::report::formatting::{instant, plain, seconds};
use crate::report::html::{fact, numbers, page_with};
use crate::report::picture;
use crate::report::timeline::MarkKind;
use crate::report::{Table, Timeline, count, grouped};

const STYLE: &str = include_str!("curves.css");

/// Heights in pixels: of a curve, of a rank's curve, and what is below them; the width of the words at the left.
const HEIGHT: f64 = 240.0;
const SMALL: f64 = 96.0;
const BELOW: f64 = 40.0;
const BELOW_SMALL: f64 = 22.0;
const LEFT: f64 = 56.0;
/// The width of a curve's own coordinates, which the browser stretches.
const ACROSS: f64 = 1000.0;
/// The height of the signs of failures.
const LANE: f64 = 26.0;
/// The most dots of a line, and of a rank's line.
const MOST_DOTS: usize = 600;
const MOST_SMALL: usize = 150;
/// The most attempts and ranks that are drawn, and rows of an attempt in a table: a page must open on a phone.
const MOST_ATTEMPTS: usize = 24;
const MOST_RANKS: usize = 16;
const MOST_ROWS: usize = 8;
/// Above this ratio of the greatest to the least loss the axis is logarithmic.
const WIDE: f64 = 20.0;
/// The colours and the dashes of attempts; their numbers have no common divisor.
const COLOURS: usize = 5;
const DASHES: usize = 4;

/// What the page shows.
pub(super) struct View<'a> {
    /// The folder, as the command names it.
    pub(super) folder: &'a str,
    pub(super) curves: &'a Curves,
    pub(super) timeline: &'a Timeline,
    /// The page asks for itself again; the time of the last event is said to those who look.
    pub(super) live: bool,
}

/// The page; `trouble` is what keeps it from following, and for how long.
pub(super) fn render(view: &View<'_>, trouble: Option<&(String, Duration)>) -> String {
    let View { curves, timeline, .. } = view;
    let head = html! {
        @if view.live { (following()) }
        style { (PreEscaped(STYLE)) }
    };
    let has_steps = curves.attempts.iter().any(|attempt| attempt.extent().is_some());
    let body = html! {
        (picture::patterns())
        svg.patterns width="0" height="0" aria-hidden="true" {
            defs { pattern id="twice" class="twice" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)" { rect width="7" height="7" {} line y2="7" {} } }
        }
        main {
            (header(view))
            (notice("The folder", trouble))
            (doubts(view))
            @if curves.attempts.is_empty() {
                @if view.live { section { h2 { "No events yet" } p { "The curves appear here when a rank has written its first steps." } } }
            } @else {
                (attempts(curves, has_steps))
                @if has_steps { (charts(curves)) } @else { (no_steps()) }
                article { (picture::draw(0, timeline)) }
            }
        }
        footer {
            "Written by " code { "lockstep report" } ". A step's place is the number of steps done, through all epochs; times are the hosts' own clocks'. "
            code { "lockstep report DIR -o curves.csv" } " writes all numbers, without thinning out."
        }
    };
    page_with("Curves of a run", &head, body)
}

fn header(view: &View<'_>) -> Markup {
    let curves = view.curves;
    let began = SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(curves.began).unwrap_or_default();
    let last = SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(curves.began + curves.ended).unwrap_or_default();
    let (class, sign, words) = match curves.state {
        State::Running => ("not-verified", "…", "running".to_owned()),
        State::Ended(0) => ("passed", "✓", "finished".to_owned()),
        State::Ended(code) => ("failed", "✗", format!("ended with exit code {code}")),
        State::Silent => ("not-verified", "?", "no more events".to_owned()),
    };
    html! {
        header {
            h1 { "Curves of " span.name { (plain(view.folder)) } }
            @if !curves.attempts.is_empty() {
                p.verdict { span.badge.(class) { span aria-hidden="true" { (sign) } " " (words) } " " (summary(curves)) }
                dl.facts {
                    @for (name, value) in results(curves) { (fact(name, &value)) }
                    (fact("First event", &instant(began)))
                    (fact("Last event", &format!("{}, {} later", instant(last), seconds(curves.ended))))
                }
            }
        }
    }
}

/// `2 ranks, 3 attempts, 400 steps, 40 of them trained again`.
pub(super) fn summary(curves: &Curves) -> String {
    let size = curves.attempts.iter().map(|attempt| attempt.size).max().unwrap_or(0);
    let steps = curves.extent().map_or(0, |(from, to)| to - from.min(to).saturating_sub(1));
    let mut words = format!("{}, {}", count(size, "rank"), count(curves.attempts.len(), "attempt"));
    if steps > 0 {
        words += &format!(", {} step{}", grouped(steps), if steps == 1 { "" } else { "s" });
    }
    let again: u64 =
        curves.attempts.iter().filter_map(|attempt| attempt.repeated).map(|(from, to)| to - from + 1).sum();
    if again > 0 {
        words +=
            &format!(", {} of which {} trained a second time", grouped(again), if again == 1 { "was" } else { "were" });
    }
    words
}

/// The numbers that one looks for first.
fn results(curves: &Curves) -> Vec<(&'static str, String)> {
    let newest = || curves.attempts.iter().rev();
    let last = |quantity| newest().find_map(|attempt| attempt.last(quantity)).map(short);
    let held = newest().find_map(|attempt| attempt.evaluations.last());
    let all = curves.attempts.iter().flat_map(|attempt| &attempt.evaluations);
    let best = all.filter(|found| found.loss.is_finite()).min_by(|one, other| one.loss.total_cmp(&other.loss));
    let mut found = vec![("Training loss, last", last(Quantity::Loss))];
    found.push(("Held-out loss, last", held.map(|found| short(found.loss))));
    found.push(("Held-out loss, best", best.map(|found| format!("{} in epoch {}", short(found.loss), found.epoch))));
    found.push((
        "Held-out accuracy, last",
        held.filter(|found| found.accuracy.is_finite()).map(|found| percent(found.accuracy)),
    ));
    found.push(("Samples a second, last", last(Quantity::Speed)));
    found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn doubts(view: &View<'_>) -> Markup {
    let notes = &view.curves.notes;
    html! {
        @if !notes.is_empty() { section.notice { h2 { "What to know before" } ul { @for note in notes { li { (plain(note)) } } } } }
    }
}

fn no_steps() -> Markup {
    html! {
        section {
            h2 { "No curves: no rank has written steps" }
            p { "The runtime's " code { "Reporter" } " writes them. A program in another language, such as Python, appends lines like this one to " code { "$LOCKSTEP_EVENTS/rank-$RANK.jsonl" } " itself, with one write for each:" }
            pre { code { "{\"t\": 1763640000.5, \"rank\": 0, \"restart\": 0, \"event\": \"step\", \"epoch\": 0, \"step\": 7, \"loss\": 0.25, \"samples\": 64, \"lr\": 0.1}" } }
            p { "Below is what the launcher saw: when each rank started, and how it ended." }
        }
    }
}

/// The signs of an attempt's colour and dashes.
fn look(attempt: usize) -> String {
    format!("k{} d{}", attempt % COLOURS, attempt % DASHES)
}

/// A table that is also the legend of colours and dashes; where there are curves, with the legend of the rest.
fn attempts(curves: &Curves, has_steps: bool) -> Markup {
    let left_out = curves.attempts.len().saturating_sub(MOST_ATTEMPTS);
    let newest = curves.attempts.len().saturating_sub(1);
    let dash = || "–".to_owned();
    html! {
        section {
            h2 { "Attempts" }
            @if left_out > 0 { p.small { "The newest " (MOST_ATTEMPTS) " are shown and drawn; " (count(left_out, "earlier attempt")) " are in the CSV." } }
            div.scroll tabindex="0" role="region" aria-label="Attempts" {
                table.attempts {
                    thead { tr { th { "Attempt" } th.number { "Ranks" } th.number { "Steps" } th.number { "Trained again" } th.number { "Began at" } th.number { "Took" } th.number { "Last loss" } th { "How it ended" } } }
                    tbody {
                        @for attempt in &curves.attempts[left_out..] {
                            tr {
                                td { svg width="58" height="20" role="img" aria-label={ "attempt " (attempt.number) } { line.line.(look(attempt.number)) x1="0" x2="34" y1="11" y2="11" {} text x="42" y="16" fill="currentColor" { (attempt.number) } } }
                                td.number data-name="ranks" { (attempt.size) }
                                td.number data-name="steps" { (attempt.extent().map_or_else(dash, range)) }
                                td.number data-name="again" { (attempt.repeated.map_or_else(dash, |(from, to)| grouped(to - from + 1))) }
                                td.number data-name="began at" { @if attempt.began < 0.05 { "0" } @else { (seconds(attempt.began)) } }
                                td.number data-name="took" { (seconds(attempt.ended - attempt.began)) }
                                td.number data-name="last loss" { (attempt.last(Quantity::Loss).map_or_else(dash, short)) }
                                td.end { (plain(&attempt.end((attempt.number == newest).then_some(curves.state)))) }
                            }
                        }
                    }
                }
            }
            @if has_steps { (legend(&curves.attempts[left_out..])) }
        }
    }
}

/// `1–77`, or `1`.
pub(super) fn range((from, to): (u64, u64)) -> String {
    if from == to {
        return grouped(from);
    }
    format!("{}–{}", grouped(from), grouped(to))
}

/// All curves, which share their axis at the bottom.
fn charts(curves: &Curves) -> Markup {
    let drawn = &curves.attempts[curves.attempts.len().saturating_sub(MOST_ATTEMPTS)..];
    let scene = Scene::of(curves, drawn);
    let some = |quantity| drawn.iter().any(|attempt| !attempt.dots(quantity, None).is_empty());
    let held = |of: fn(&super::series::Evaluation) -> f64| -> Vec<(usize, Vec<(f64, f64)>)> {
        let of_attempt = |attempt: &AttemptCurves| {
            let dots = attempt.evaluations.iter().map(|found| (found.place as f64, of(found)));
            (attempt.number, sparse(dots.filter(|dot| dot.1.is_finite()).collect()))
        };
        drawn.iter().map(of_attempt).filter(|(_, dots)| !dots.is_empty()).collect()
    };
    let accuracy = held(|found| found.accuracy);
    html! {
        @if some(Quantity::Loss) || !accuracy.is_empty() {
            (scene.section("loss", "Loss", "training: mean of all ranks; held out: after an epoch", Some(Quantity::Loss), &held(|found| found.loss), short))
        }
        @if some(Quantity::LearningRate) { (scene.section("rate", "Learning rate", "of the optimizer's first group", Some(Quantity::LearningRate), &[], short)) }
        @if some(Quantity::Speed) { (scene.section("speed", "Samples a second", "all ranks together; without a process's first step", Some(Quantity::Speed), &[], short)) }
        @if !accuracy.is_empty() { (scene.section("accuracy", "Held-out accuracy", "all ranks together", None, &accuracy, percent)) }
    }
}

/// At most as many as a line has dots, the last one among them.
fn sparse(dots: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let every = dots.len().div_ceil(MOST_SMALL).max(1);
    let last = dots.len().saturating_sub(1);
    dots.into_iter().enumerate().filter(|(place, _)| (last - place).is_multiple_of(every)).map(|(_, dot)| dot).collect()
}

fn legend(drawn: &[AttemptCurves]) -> Markup {
    let has = |kind| drawn.iter().flat_map(|attempt| &attempt.marks).any(|mark| mark.kind == kind);
    let kinds = [MarkKind::Died, MarkKind::Fault, MarkKind::Resumed, MarkKind::Restarting, MarkKind::Snapshot];
    let name = |kind| if kind == MarkKind::Restarting { "starts without a snapshot" } else { picture::mark_name(kind) };
    html! {
        ul.legend aria-label="Legend" {
            li { svg.k0 width="26" height="14" aria-hidden="true" { rect.band width="26" height="14" {} line.line x1="0" x2="26" y1="7" y2="7" {} } " mean; the band reaches from the least to the greatest of all ranks" }
            @if drawn.iter().any(|attempt| !attempt.evaluations.is_empty()) { li { svg.k0 width="26" height="14" aria-hidden="true" { line.held-line x1="0" x2="26" y1="7" y2="7" {} circle.held cx="13" cy="7" r="3.5" {} } " held out" } }
            @if drawn.iter().any(|attempt| attempt.repeated.is_some()) { li { svg width="26" height="14" aria-hidden="true" { rect.twice width="26" height="14" {} } " steps that were trained a second time" } }
            @for kind in kinds.into_iter().filter(|kind| has(*kind)) {
                li { svg width="26" height="20" viewBox=(picture::view_box(kind)) aria-hidden="true" { (picture::sign(kind)) } " " (name(kind)) }
            }
        }
    }
}

/// What all curves share.
struct Scene<'a> {
    drawn: &'a [AttemptCurves],
    x: Axis,
    /// Places with their words.
    ticks: Vec<(f64, String)>,
    epochs: Vec<(f64, String)>,
    ranks: Vec<usize>,
    ranks_left_out: usize,
}

/// The axis at the left.
struct Vertical {
    axis: Axis,
    ticks: Vec<(f64, String)>,
}

/// The most that words below an axis can be on a phone.
const WORDS_BELOW: u32 = 4;

impl<'a> Scene<'a> {
    fn of(curves: &Curves, drawn: &'a [AttemptCurves]) -> Self {
        let (from, to) = curves.extent().unwrap_or_default();
        let (from, to) = (from as f64, to as f64);
        // A single step is in the middle.
        let (least, most) = if to > from { (from, to) } else { (from - 1.0, to + 1.0) };
        let x = Axis { least, most, pixels: (0.0, ACROSS), logarithmic: false };
        let ticks = x.ticks(WORDS_BELOW).into_iter().filter(|tick| tick.fract() == 0.0);
        let ticks = ticks.map(|tick| (tick, grouped(tick as u64))).collect();
        let inside = |begins: u64| begins as f64 + 1.0 >= least && (begins as f64) < most;
        let epochs: Vec<(u64, u64)> = curves.epochs.iter().copied().filter(|(_, begins)| inside(*begins)).collect();
        let every = epochs.len().div_ceil(2 * WORDS_BELOW as usize).max(1);
        let epochs = epochs.into_iter().step_by(every).map(|(epoch, begins)| (begins as f64, epoch.to_string()));
        let mut ranks: Vec<(bool, usize)> = curves
            .ranks()
            .into_iter()
            .map(|rank| {
                let mut all = curves.attempts.iter().flat_map(|attempt| &attempt.ranks);
                (!all.any(|curve| curve.rank == rank && curve.failed.is_some()), rank)
            })
            .collect();
        // Of many ranks, those that failed come first.
        ranks.sort_unstable();
        let ranks_left_out = ranks.len().saturating_sub(MOST_RANKS);
        ranks.truncate(MOST_RANKS);
        let mut ranks: Vec<usize> = ranks.into_iter().map(|(_, rank)| rank).collect();
        ranks.sort_unstable();
        Scene { drawn, x, ticks, epochs: epochs.collect(), ranks, ranks_left_out }
    }

    fn lines(&self, quantity: Option<Quantity>, rank: Option<usize>, most: usize) -> Vec<(usize, Vec<Dot>)> {
        let Some(quantity) = quantity else { return Vec::new() };
        let ends = (self.x.least, self.x.most);
        let of_attempt = |attempt: &AttemptCurves| (attempt.number, thinned(&attempt.dots(quantity, rank), ends, most));
        self.drawn.iter().map(of_attempt).filter(|(_, dots)| !dots.is_empty()).collect()
    }

    fn section(
        &self,
        id: &str,
        title: &str,
        unit: &str,
        quantity: Option<Quantity>,
        held: &[(usize, Vec<(f64, f64)>)],
        show: fn(f64) -> String,
    ) -> Markup {
        let lines = self.lines(quantity, None, MOST_DOTS);
        let most = lines.iter().flat_map(|(_, dots)| dots).map(|dot| dot.places).max().unwrap_or(1);
        let y = Vertical::of(&lines, held, quantity, show);
        let label = format!("{title} by step; the table below has the numbers");
        let several = self.ranks.len() > 1 && quantity.is_some();
        // A learning rate is the same on all ranks, as a rule.
        let equal = |attempt: &AttemptCurves| {
            let of = quantity.filter(|of| *of != Quantity::Speed).map(|of| attempt.dots(of, None));
            of.is_some_and(|dots| dots.iter().all(|dot| dot.least == dot.greatest))
        };
        let same = self.drawn.iter().all(equal);
        let rank_lines: Vec<_> = if several && !same {
            self.ranks.iter().map(|rank| (*rank, self.lines(quantity, Some(*rank), MOST_SMALL))).collect()
        } else {
            Vec::new()
        };
        let shared: Vec<_> = rank_lines.iter().flat_map(|(_, lines)| lines.iter().cloned()).collect();
        let small = Vertical::of(&shared, &[], quantity, show).small();
        html! {
            section {
                h2 { (title) " " span.unit { (unit) @if y.axis.logarithmic { "; logarithmic" } } }
                (self.chart(&lines, held, &y, None, &label))
                @if most > 1 { p.small { "Thinned out: a point of a line is the mean of up to " (count(most, "step")) ". The band keeps their least and greatest values." } }
                @if several && same { p.small { "The same on all ranks." } }
                @if !rank_lines.is_empty() {
                    details id={ (id) "-ranks" } open {
                        summary { "By rank" }
                        div.ranks {
                            @for (rank, lines) in &rank_lines {
                                figure { figcaption { "rank " (rank) } (self.chart(lines, &[], &small, Some(*rank), &format!("{title} of rank {rank}"))) }
                            }
                        }
                        @if self.ranks_left_out > 0 { p.small { (count(self.ranks_left_out, "more rank")) " are in the CSV." } }
                    }
                }
                details id={ (id) "-numbers" } {
                    summary { "The numbers" }
                    @if quantity.is_some() { (numbers(&self.table(title, quantity, show))) }
                    @if !held.is_empty() { (numbers(&held_out(title, held, quantity.is_some(), show))) }
                }
            }
        }
    }

    /// Some rows for each attempt, with the extremes of all steps.
    fn table(&self, title: &str, quantity: Option<Quantity>, show: fn(f64) -> String) -> Table {
        let Some(quantity) = quantity else { return Table::default() };
        let mut rows = Vec::new();
        for attempt in self.drawn {
            let dots = attempt.dots(quantity, None);
            let [Some(first), Some(last)] = [dots.first(), dots.last()] else { continue };
            for dot in thinned(&dots, (first.from as f64, last.to as f64), MOST_ROWS) {
                let steps = range((dot.from, dot.to));
                rows.push(
                    [attempt.number.to_string(), steps, show(dot.mean), show(dot.least), show(dot.greatest)].into(),
                );
            }
        }
        let headings = ["attempt", "steps", "mean", "least", "greatest"].map(Into::into).into();
        Table { title: title.to_owned(), headings, rows }
    }

    /// A curve of all ranks, or of one.
    fn chart(
        &self,
        lines: &[(usize, Vec<Dot>)],
        held: &[(usize, Vec<(f64, f64)>)],
        y: &Vertical,
        rank: Option<usize>,
        label: &str,
    ) -> Markup {
        let (lower, _) = y.axis.pixels;
        let height = lower + if rank.is_some() { 2.0 } else { 4.0 };
        let whole = height + if rank.is_some() { BELOW_SMALL } else { BELOW };
        let across = |place: f64| format!("{:.2}%", self.x.at(place) * 100.0 / ACROSS);
        html! {
            div.curve {
                svg width=(LEFT) height=(whole) aria-hidden="true" {
                    @if rank.is_none() { @for (place, words) in [(16.0, "step"), (32.0, "epoch")] { text x=(LEFT - 8.0) y=(height + place) text-anchor="end" { (words) } } }
                    @for (tick, words) in &y.ticks { text x=(LEFT - 8.0) y=(y.axis.at(*tick) + 4.0) text-anchor="end" { (words) } }
                }
                svg.plot height=(whole) role="img" aria-label=(label) {
                    @for attempt in self.drawn {
                        @if let Some((from, to)) = attempt.repeated {
                            @let (from, to) = (self.x.at(from as f64 - 1.0), self.x.at(to as f64));
                            rect.twice x=(share(from)) width=(share(to - from)) y="0" height=(height) {
                                title { "attempt " (attempt.number) " trained steps " (range(attempt.repeated.unwrap_or_default())) " a second time" }
                            }
                        }
                    }
                    @for (tick, _) in &y.ticks { line x1="0" x2="100%" y1=(y.axis.at(*tick)) y2=(y.axis.at(*tick)) {} }
                    line x1="0" x2="100%" y1=(height) y2=(height) {}
                    @for (begins, words) in &self.epochs {
                        line.epoch-line x1=(across(*begins)) x2=(across(*begins)) y1="0" y2=(height) {}
                        @if rank.is_none() { text x=(across(*begins)) y=(height + 32.0) text-anchor=(anchor(self.x.at(*begins))) { (words) } }
                    }
                    @for (tick, words) in self.ticks.iter().rev().step_by(if rank.is_some() { 2 } else { 1 }) { text x=(across(*tick)) y=(height + 16.0) text-anchor=(anchor(self.x.at(*tick))) { (words) } }
                    svg width="100%" height=(height) viewBox=(format!("0 0 {ACROSS} {height}")) preserveAspectRatio="none" {
                        @for (attempt, dots) in lines { (self.line(*attempt, dots, y)) }
                        @for (attempt, dots) in held {
                            polyline.held-line.(look(*attempt)) points=(lockstep_plot::path(dots.iter().copied(), &self.x, &y.axis)) {}
                        }
                    }
                    @for (attempt, dots) in lines {
                        @if let [dot] = dots[..] { circle.single.(look(*attempt)) cx=(across(dot.place())) cy=(y.axis.at(dot.mean)) r="3" {} }
                    }
                    @for (attempt, dots) in held {
                        @for (place, value) in dots {
                            circle.held.(look(*attempt)) cx=(across(*place)) cy=(y.axis.at(*value)) r=(if dots.len() > 30 { "2" } else { "3.5" }) {
                                title { "held out after step " (grouped(*place as u64)) ": " (short(*value)) }
                            }
                        }
                    }
                    (self.marks(rank, height))
                }
            }
        }
    }

    fn line(&self, attempt: usize, dots: &[Dot], y: &Vertical) -> Markup {
        let path =
            |of: fn(&Dot) -> f64| lockstep_plot::path(dots.iter().map(|dot| (dot.place(), of(dot))), &self.x, &y.axis);
        let back = lockstep_plot::path(dots.iter().rev().map(|dot| (dot.place(), dot.least)), &self.x, &y.axis);
        html! {
            g.(look(attempt)) {
                @if dots.iter().any(|dot| dot.least < dot.greatest) { polygon.band points={ (path(|dot| dot.greatest)) " " (back) } {} }
                polyline.line points=(path(|dot| dot.mean)) {}
            }
        }
    }

    /// Failures and restarts at the top, snapshots at the bottom; of those that would lie on each other, one. A rank has only its own.
    fn marks(&self, rank: Option<usize>, height: f64) -> Markup {
        let mut last: Option<(MarkKind, f64)> = None;
        let mut all: Vec<_> = self
            .drawn
            .iter()
            .flat_map(|attempt| attempt.marks.iter().map(move |mark| (attempt.number, mark)))
            .collect();
        all.retain(|(_, mark)| {
            rank.is_none_or(|rank| {
                mark.rank == rank && mark.kind != MarkKind::Snapshot || mark.kind == MarkKind::Resumed
            })
        });
        all.sort_by_key(|(_, mark)| (mark.kind != MarkKind::Snapshot, mark.kind, mark.place));
        all.retain(|(_, mark)| {
            let at = self.x.at(mark.place as f64);
            let free = last.is_none_or(|(kind, before)| kind != mark.kind || at - before >= ACROSS / 40.0);
            last = if free { Some((mark.kind, at)) } else { last };
            free
        });
        html! {
            @for (number, mark) in all {
                @let x = share(self.x.at(mark.place as f64));
                @if mark.kind == MarkKind::Died { line.fall x1=(x) x2=(x) y1="0" y2=(height) {} }
                @if mark.kind == MarkKind::Resumed { line.rise x1=(x) x2=(x) y1="0" y2=(height) {} }
                @let y = match mark.kind {
                    MarkKind::Snapshot => height - 10.0,
                    // Training often resumes where it died.
                    MarkKind::Resumed | MarkKind::Restarting => LANE + 20.0,
                    _ => LANE,
                };
                svg.mark x=(x) y=(y) {
                    title { "attempt " (number) ", " (grouped(mark.place)) " steps done: " (plain(&mark.detail)) }
                    (picture::sign(mark.kind))
                }
            }
        }
    }
}

fn share(pixels: f64) -> String {
    format!("{:.2}%", pixels * 100.0 / ACROSS)
}

/// Words near an end do not leave the picture.
fn anchor(at: f64) -> &'static str {
    match at {
        at if at < 0.04 * ACROSS => "start",
        at if at > 0.93 * ACROSS => "end",
        _ => "middle",
    }
}

impl Vertical {
    fn of(
        lines: &[(usize, Vec<Dot>)],
        held: &[(usize, Vec<(f64, f64)>)],
        quantity: Option<Quantity>,
        show: fn(f64) -> String,
    ) -> Self {
        let dots = lines.iter().flat_map(|(_, dots)| dots).flat_map(|dot| [dot.least, dot.greatest]);
        let held = held.iter().flat_map(|(_, dots)| dots).map(|(_, value)| *value);
        let (least, most) =
            dots.chain(held).fold((f64::INFINITY, f64::NEG_INFINITY), |all, one| (all.0.min(one), all.1.max(one)));
        let (least, most) = if least <= most { (least, most) } else { (0.0, 1.0) };
        let pixels = (HEIGHT, 6.0);
        let axis = if quantity == Some(Quantity::Loss) && least > 0.0 && most / least > WIDE {
            Axis::logarithmic([least, most].into_iter(), pixels)
        } else {
            // Rates and shares begin at 0, a loss where it is.
            let least = if quantity == Some(Quantity::Loss) { least } else { least.min(0.0) };
            let room = if most > least { 0.06 * (most - least) } else { 0.1 * most.abs().max(1e-9) };
            let below = if least == 0.0 { 0.0 } else { room };
            Axis { least: least - below, most: most + room, pixels, logarithmic: false }
        };
        let ticks = axis.ticks(5).into_iter().map(|tick| (tick, show(tick))).collect();
        Vertical { axis, ticks }
    }

    /// The same for a rank's curve.
    fn small(mut self) -> Self {
        self.axis.pixels = (SMALL, 6.0);
        let every = self.ticks.len().div_ceil(3).max(1);
        self.ticks = self.ticks.into_iter().step_by(every).collect();
        self
    }
}

fn held_out(title: &str, held: &[(usize, Vec<(f64, f64)>)], with_training: bool, show: fn(f64) -> String) -> Table {
    let rows = held.iter().flat_map(|(attempt, dots)| {
        let every = dots.len().div_ceil(2 * MOST_ROWS).max(1);
        let shown = dots.iter().rev().step_by(every).collect::<Vec<_>>().into_iter().rev();
        shown.map(|(place, value)| vec![attempt.to_string(), grouped(*place as u64), show(*value)])
    });
    let headings = ["attempt", "after steps", "held out"].map(Into::into).into();
    Table {
        title: if with_training { format!("{title}, held out") } else { title.to_owned() },
        headings,
        rows: rows.collect(),
    }
}

fn percent(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

/// About three digits.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() || size == 0.0 => format!("{value}"),
        1e9.. => format!("{value:.1e}"),
        999.5.. => format!("{}{}", if value < 0.0 { "-" } else { "" }, grouped(size.round() as u64)),
        1e-4.. => {
            let decimals = (2.0 - size.log10().floor()).max(0.0) as usize;
            let text = format!("{value:.decimals$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_contract::events::Event;
    use roxmltree::{Document, Node, ParsingOptions};

    use super::*;
    use crate::report::history::History;
    use crate::report::testing::{FakeRun, HOSTILE, NOON, start, two_nodes};

    fn page(run: &FakeRun, folder: &str, live: bool) -> String {
        let history = History::of(&run.0);
        let (curves, timeline) = (Curves::of(&history, NOON + 9.4), Timeline::with(&run.0, &history));
        render(&View { folder, curves: &curves, timeline: &timeline, live }, None)
    }

    /// XML's rules are stricter than HTML's. Only HTML's void elements are closed for it.
    fn parsed<T>(page: &str, with: impl FnOnce(&Document<'_>) -> T) -> T {
        let mut parts = page.split("<meta ");
        let first = parts.next().unwrap().to_owned();
        let page = parts.fold(first, |page, rest| page + "<meta " + &rest.replacen('>', "/>", 1));
        let page = page.replace(" open>", " open=\"\">").replace(" defer>", " defer=\"\">");
        with(
            &Document::parse_with_options(&page, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() })
                .unwrap(),
        )
    }

    fn all<'a>(document: &'a Document<'_>, tag: &'static str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|node| node.tag_name().name() == tag).collect()
    }

    fn words(document: &Document<'_>) -> String {
        let texts = document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text());
        texts.collect::<Vec<_>>().join(" ")
    }

    fn losses(steps: u64) -> FakeRun {
        let run = FakeRun::default().rank(0, 0, 0.0, start(1, 1));
        (0..steps).fold(run, |run, step| {
            let loss = if step == steps / 2 { 40.0 } else { 2.0 };
            run.rank(0, 0, 1.0 + step as f64 / 100.0, Event::Step { epoch: 0, step, loss, samples: 8, lr: Some(0.1) })
        })
    }

    #[test]
    fn has_a_line_for_each_attempt_a_table_for_each_curve_and_needs_nothing_else() {
        let page = page(&two_nodes(), "events", false);
        parsed(&page, |document| {
            for tag in ["script", "link", "img", "iframe"] {
                assert!(all(document, tag).is_empty(), "{tag}");
            }
            let lines = |class: &str| {
                all(document, "polyline").into_iter().filter(|line| line.attribute("class") == Some(class)).count()
            };
            // Loss and speed: together, and four ranks in two attempts, two in the third; the losses of all ranks are equal.
            assert_eq!((lines("line"), all(document, "table").len()), (2 * 3 + (4 + 4 + 2), 4));
            let words = words(document);
            for expected in ["rank 1 ended by SIGKILL", "11–24", "The same on all ranks", "finished"] {
                assert!(words.contains(expected), "{expected} in {words}");
            }
            let attributes = document.descendants().flat_map(|node| node.attributes());
            assert!(attributes.into_iter().all(|one| !one.value().contains("NaN")), "{page}");
        });
        assert!(!page.contains("http://") && !page.contains("https://"));
    }

    #[test]
    fn is_small_for_a_long_run_and_keeps_its_extremes() {
        let page = page(&losses(30_000), "events", true);
        assert!(page.len() < 150_000, "{} bytes", page.len());
        parsed(&page, |document| {
            let words = words(document);
            assert!(words.contains("the mean of up to 50 steps") && words.contains(" 40 "), "{words}");
        });
        assert!(page.contains("follow.js") && page.contains("http-equiv=\"refresh\""));
    }

    #[test]
    fn lets_no_text_become_markup_and_survives_any_number() {
        let fault = || Event::Fault { message: HOSTILE.into() };
        let step = |epoch, step, loss| Event::Step { epoch, step, loss, samples: u64::MAX, lr: Some(f64::MAX) };
        let run = losses(3).rank(0, 0, 2.0, fault()).rank(0, 1, 3.0, step(u64::MAX, u64::MAX, f64::MAX));
        let run = run.rank(0, 1, 4.0, step(1, 1, -f64::MAX)).rank(0, 2, 5.0, step(0, 0, 0.0)).rank(0, 2, 6.0, fault());
        let shown = page(&run, HOSTILE, false);
        parsed(&shown, |document| {
            assert!(all(document, "script").is_empty() && all(document, "style").len() == 2);
        });
        parsed(&page(&FakeRun::default(), "events", true), |document| {
            assert!(words(document).contains("No events yet"))
        });
        let silent = FakeRun::default().rank(0, 0, 1.0, start(1, 1));
        parsed(&page(&silent, "events", false), |document| {
            assert!(words(document).contains("no rank has written steps"))
        });
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.00002, 0.003, 0.05, 4.3912, 12.0, 364.4, 12_345.6, 3e12, -2.5, f64::NAN].map(short);
        assert_eq!(texts, ["0", "2.0e-5", "0.003", "0.05", "4.39", "12", "364", "12,346", "3.0e12", "-2.5", "NaN"]);
    }
}
