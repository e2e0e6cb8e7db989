//! The page of a replay: a lane for each rank, which `replay.js` draws, and the moments worth a look as a table, which reads without it. The
//! page needs nothing else: no network, no other file.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use lockstep_contract::recording::Element;
use maud::{Markup, PreEscaped, html};
use serde::Serialize;

use crate::model::{Lane, Mark, MarkKind, Process, Replay, Source, Span, SpanKind, Wait};
use crate::report::formatting::{instant, plain, seconds};
use crate::report::html::{fact, page_with};
use crate::report::timeline::MarkKind as SignKind;
use crate::report::{count, grouped, picture};

const STYLE: &str = include_str!("replay.css");
const SCRIPT: &str = include_str!("replay.js");

/// The most lanes that are drawn and moments that are listed: a page must open on a phone.
const MOST_LANES: usize = 256;
const MOST_MOMENTS: usize = 400;
/// How many of the longest waits are among the moments.
const MOST_WAITS: usize = 5;
/// Calls of a lane that overlap are drawn in up to this many rows.
const MOST_ROWS: usize = 4;
/// How many beginnings and ends of calls are in view around a moment: before it, and after it.
const BEFORE: usize = 40;
const AFTER: usize = 12;

/// The page; `name` is the recording's, as the command names it.
pub(crate) fn render(replay: &Replay, name: &str) -> String {
    let moments = moments(replay);
    let scene = serde_json::to_string(&Scene::of(replay, &moments)).unwrap_or_default().replace('<', "\\u003c");
    let head = html! { style { (PreEscaped(STYLE)) } };
    let body = html! {
        (picture::patterns())
        main {
            (header(replay, name))
            (lanes(replay, &moments))
            @if !replay.missing.is_empty() {
                section.notice { h2 { "What is not in the recording" } ul { @for note in &replay.missing { li { (plain(note)) } } } }
            }
            (table(replay, &moments))
        }
        footer {
            "Written by " code { "lockstep replay" } ". " @if replay.lanes.iter().filter_map(|lane| lane.node.as_ref()).any(|node| Some(node) != replay.lanes[0].node.as_ref()) { "Times are the hosts' own clocks'. " }
            code { "lockstep replay FILE -o replay.json" } " writes the same as JSON."
        }
        script type="application/json" id="scene" { (PreEscaped(scene)) }
        script { (PreEscaped(SCRIPT)) }
    };
    page_with(&format!("Replay of {}", plain(name)), &head, body)
}

fn header(replay: &Replay, name: &str) -> Markup {
    let calls: usize =
        replay.lanes.iter().map(|lane| lane.spans.iter().filter(|span| span.call.is_some()).count()).sum();
    let began = SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(replay.started).unwrap_or_default();
    let late = replay.lanes.iter().max_by_key(|lane| lane.waited_for).filter(|lane| lane.waited_for > 0);
    html! {
        header {
            h1 { "Replay of " span.name { (plain(name)) } }
            p.verdict { (summary(replay)) }
            dl.facts {
                @if is_timed(replay) { (fact("Began", &instant(began))) (fact("Lasted", &seconds(in_seconds(replay.end)))) }
                (fact("Ranks", &grouped(replay.lanes.len() as u64)))
                @if replay.attempts.len() > 1 { (fact("Attempts", &grouped(replay.attempts.len() as u64))) }
                (fact("Groups", &grouped(replay.groups.iter().map(|group| &group.name).collect::<BTreeSet<_>>().len() as u64)))
                (fact("Calls", &grouped(calls as u64)))
                @if let (Some(late), true) = (late, is_timed(replay)) {
                    (fact("Waited for most", &format!("rank {}: {}, of all ranks together", late.rank, seconds(in_seconds(late.waited_for)))))
                }
                @if replay.source == Source::FlightRecorder { (fact("Recorded by", "PyTorch's flight recorder")) }
            }
        }
    }
}

/// What the recording shows, in a sentence.
pub(crate) fn summary(replay: &Replay) -> String {
    let deaths = replay.lanes.iter().flat_map(|lane| &lane.marks).filter(|mark| mark.kind == MarkKind::Death).count();
    let stopped = replay.lanes.iter().flat_map(|lane| &lane.processes).filter(|process| process.stopped).count();
    let deaths = deaths.saturating_sub(stopped);
    match (&replay.standstills[..], &replay.mismatches[..]) {
        ([first, ..], _) => plain(&first.text),
        ([], [first, ..]) => plain(&first.text),
        _ if deaths > 0 => format!("{} ended badly; no rank stood still", count(deaths, "process")),
        _ if replay.waits.iter().any(|wait| wait.to.is_none()) => "some ranks wait where the recording ends".to_owned(),
        _ => "no rank stood still, and the ranks' calls are the same".to_owned(),
    }
}

/// A recording of PyTorch's may have no times: then each call takes one unit.
fn is_timed(replay: &Replay) -> bool {
    replay.source == Source::Recording || replay.started > 0.0
}

fn in_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn lanes(replay: &Replay, moments: &[Moment]) -> Markup {
    let left_out = replay.lanes.len().saturating_sub(MOST_LANES);
    html! {
        section.replay.waits-for-script id="replay" {
            h2 { "What every rank did" }
            noscript { p { "The picture needs JavaScript. The table below reads without it." } }
            div.needs-script {
                div.jumps role="group" aria-label="Go to" {
                    "Go to: "
                    @for (kind, what, none) in JUMPS {
                        @let found = targets(moments, kind);
                        @if found.is_empty() { @if !none.is_empty() { span.none { (none) } } }
                        @else { button type="button" data-jump=(serde_json::to_string(&found).unwrap_or_default()) { (what) span { @if found.len() > 1 { " (" (found.len()) ")" } } } }
                    }
                }
                div.frame {
                    div.labels id="labels" { div.axis {} }
                    div.view {
                        canvas id="lanes" tabindex="0" role="img" aria-label="What every rank did over time. Arrow keys: the next and the last event, and the rank; space: play; plus and minus: zoom; 0: the whole run. The moment is below in words." {}
                        div.tip id="tip" hidden {}
                    }
                }
                canvas.overview id="overview" aria-hidden="true" {}
                div.clock {
                    button type="button" id="back" title="the event before" aria-label="the event before" { "◀" }
                    button type="button" id="play" { "▶ play" }
                    button type="button" id="on" title="the next event" aria-label="the next event" { "▶" }
                    input type="range" id="time" min="0" max="1000" value="0" aria-label="moment";
                    label { "pace " select id="pace" { option value="40" { "slow" } option value="16" selected { "normal" } option value="6" { "fast" } } }
                    span.zoom {
                        button type="button" id="wider" title="zoom out" aria-label="zoom out" { "−" }
                        button type="button" id="closer" title="zoom in" aria-label="zoom in" { "+" }
                        button type="button" id="whole" { "whole run" }
                    }
                }
                p.says id="says" aria-live="polite" {}
                div.scroll tabindex="0" role="region" aria-label="The ranks at this moment" {
                    table.moment id="now" {
                        thead { tr { th { "Rank" } th { "Is in" } th { "Group" } th.number { "Call" } th.number { "Bytes" } th.number { "For" } th { "First elements" } th { "Waits for" } } }
                        tbody {}
                    }
                }
                @if left_out > 0 { p.small { (count(left_out, "more rank")) " are not drawn; the JSON has them." } }
                (legend())
                p.small { "Drag to move, click to go to a moment, Ctrl and the wheel or two fingers to zoom. Keys in the picture: ← → events, ↑ ↓ ranks, space plays, + − zoom, Shift ← → move, 0 the whole run." }
                details id="listed" {
                    summary { "The calls in view" }
                    p.small {}
                    div.scroll tabindex="0" role="region" aria-label="The calls in view" {
                        table { thead { tr { th { "From" } th { "To" } th { "Rank" } th { "Call" } th { "Group" } th { "Number" } th { "Bytes" } th { "First elements" } } } tbody {} }
                    }
                }
            }
        }
    }
}

fn legend() -> Markup {
    let boxes = [
        ("starting", "the rank lives"),
        ("call", "in a call"),
        ("snapshot-box", "joins a group, saves a snapshot"),
        ("stalled", "waits for another rank"),
        ("dead", "never ended"),
    ];
    html! {
        ul.legend aria-label="Legend" {
            @for (class, words) in boxes { li { svg width="26" height="14" aria-hidden="true" { rect.(class) width="26" height="14" {} } " " (words) } }
            li { svg width="26" height="14" aria-hidden="true" { path.arrow d="M2,3 C22,3 22,11 10,11 M10,11 l6,-3 v6 Z" {} } " from the rank that waits to the one that it waits for" }
            @for (kind, words) in [(SignKind::Fault, "fault"), (SignKind::Died, "died"), (SignKind::Resumed, "started, resumed")] {
                li { svg width="26" height="20" viewBox=(picture::view_box(kind)) aria-hidden="true" { (picture::sign(kind)) } " " (words) }
            }
        }
    }
}

/// The moments as text, for readers who cannot see the picture or want the exact times.
fn table(replay: &Replay, moments: &[Moment]) -> Markup {
    let mut shown: Vec<&Moment> = moments.iter().collect();
    // The first of each kind count more than the last of a thousand notes.
    shown.sort_by_key(|moment| (moment.kind == Kind::Note, moment.at));
    shown.truncate(MOST_MOMENTS);
    shown.sort_by_key(|moment| moment.at);
    let left_out = moments.len() - shown.len();
    html! {
        section {
            h2 { "The moments" }
            @if moments.is_empty() { p { "Nothing but calls is recorded." } }
            @else {
                @if left_out > 0 { p.small { (count(left_out, "more moment")) " are in the JSON." } }
                div.scroll tabindex="0" role="region" aria-label="The moments" {
                    table.moments {
                        thead { tr { th.number { "At" } th { "Rank" } th { "What" } th { "Details" } th.needs-script { "" } } }
                        tbody {
                            @for moment in shown {
                                tr.(moment.kind.class()) {
                                    td.number { (when(replay, moment.at)) }
                                    td { @match moment.rank { Some(rank) => { "rank " (rank) }, None => { "all" } } }
                                    td { (moment.name) }
                                    td { (plain(&moment.text)) }
                                    td.needs-script { button type="button" data-moment=(serde_json::to_string(&moment.target()).unwrap_or_default()) aria-label={ "show " (when(replay, moment.at)) } { "show" } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn when(replay: &Replay, at: u64) -> String {
    if is_timed(replay) { format!("{:.3} s", in_seconds(at)) } else { format!("call {at}") }
}

// ---- the moments

/// What a reader jumps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Standstill,
    Mismatch,
    Fault,
    Restart,
    Late,
    Wait,
    Note,
}

/// In the order of the buttons, with what is said where there is none.
const JUMPS: [(Kind, &str, &str); 6] = [
    (Kind::Standstill, "rank that stood still first", "no rank stood still"),
    (Kind::Mismatch, "mismatch of calls", "no mismatch of calls"),
    (Kind::Fault, "fault", "no fault"),
    (Kind::Restart, "restart", "no restart"),
    (Kind::Late, "late rank", ""),
    (Kind::Wait, "longest wait", ""),
];

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::Standstill | Kind::Mismatch | Kind::Fault => "bad",
            Kind::Restart | Kind::Late | Kind::Wait | Kind::Note => "plain",
        }
    }
}

/// A moment that is worth a look.
struct Moment {
    at: u64,
    /// What the picture shows: this moment, or a little later, when the others wait.
    shown: u64,
    /// The first rank that it is about; `None` for the whole job.
    rank: Option<usize>,
    /// The place of its lane, and what is in view around it.
    lane: usize,
    view: [u64; 2],
    kind: Kind,
    name: &'static str,
    text: String,
    /// The wait's length.
    lasted: u64,
}

impl Moment {
    /// What `replay.js` shows: the moment, the lane, from when and until when.
    fn target(&self) -> [u64; 4] {
        [self.shown, self.lane as u64, self.view[0], self.view[1]]
    }
}

/// What a button goes to, in turn: the longest wait first, else in order of time.
fn targets(moments: &[Moment], kind: Kind) -> Vec<[u64; 4]> {
    let mut found: Vec<&Moment> = moments.iter().filter(|moment| moment.kind == kind).collect();
    found.sort_by_key(|moment| Reverse(moment.lasted));
    found.into_iter().map(Moment::target).collect()
}

/// In order of time.
fn moments(replay: &Replay) -> Vec<Moment> {
    let lane_of = |rank: usize| replay.lanes.iter().position(|lane| lane.rank == rank).unwrap_or(0);
    let edges = edges(replay);
    let calls = by_id(replay);
    let mut all: Vec<Moment> = Vec::new();
    let made = |(at, shown): (u64, u64), rank: Option<usize>, kind, name, text: &str| {
        let (at, shown) = (at.min(replay.end), shown.min(replay.end));
        let view = around(&edges, shown, replay.end);
        Moment { at, shown, rank, lane: rank.map_or(0, lane_of), view, kind, name, text: text.to_owned(), lasted: 0 }
    };
    for still in &replay.standstills {
        let name = if still.circle { "ranks wait in a circle" } else { "stood still first" };
        let is_on = |wait: &&Wait| {
            wait.attempt == still.attempt
                && wait.to.is_none()
                && wait.on.iter().any(|on| still.ranks.contains(&on.rank))
        };
        let waits: Vec<&Wait> = replay.waits.iter().filter(is_on).collect();
        let latest = waits.iter().map(|wait| wait.from).max().unwrap_or(still.at);
        // A wait whose call has failed is over, and so is that of a process that was ended.
        let process_end = |wait: &Wait| {
            let lane = replay.lanes.iter().find(|lane| lane.rank == wait.rank)?;
            lane.processes.iter().find(|process| process.attempt == wait.attempt)?.to
        };
        let over = waits.iter().filter_map(|wait| calls.get(&wait.span)?.to.or_else(|| process_end(wait))).min();
        let shown = if over.is_none_or(|over| still.at < over) { latest.max(still.at) } else { latest };
        all.push(made((still.at, shown), still.ranks.first().copied(), Kind::Standstill, name, &still.text));
    }
    let owners: HashMap<u32, usize> =
        replay.lanes.iter().flat_map(|lane| lane.spans.iter().map(|span| (span.id, lane.rank))).collect();
    for mismatch in &replay.mismatches {
        let rank = mismatch.spans.last().and_then(|span| owners.get(span)).copied();
        all.push(made((mismatch.at, mismatch.at), rank, Kind::Mismatch, "mismatch of calls", &mismatch.text));
    }
    let of_lanes = replay.lanes.iter().flat_map(|lane| lane.marks.iter().map(|mark| (Some(lane.rank), mark)));
    for (rank, mark) in of_lanes.chain(replay.marks.iter().map(|mark| (None, mark))) {
        let (kind, name) = if is_stopped(replay, rank, mark) { (Kind::Note, "stopped") } else { of_mark(mark) };
        all.push(made((mark.at, mark.at), rank, kind, name, &mark.text));
    }
    for (lasted, rank, wait, span) in longest(replay, &calls) {
        let text = format!("ranks wait for it for {} in {}", seconds(in_seconds(lasted)), span.name);
        let moment = made((wait.from, wait.from + lasted / 2), Some(rank), Kind::Wait, "is waited for", &text);
        all.push(Moment { lasted, ..moment });
    }
    all.sort_by_key(|moment| (moment.at, moment.kind));
    all
}

/// The longest waits that ended: how long, for which rank, and in which call. Of waits that the same arrival ended, the longest.
fn longest<'a>(replay: &'a Replay, calls: &HashMap<u32, &'a Span>) -> Vec<(u64, usize, &'a Wait, &'a Span)> {
    let mut found: HashMap<(usize, u64), (u64, usize, &Wait, &Span)> = HashMap::new();
    for wait in replay.waits.iter().filter(|wait| !wait.any) {
        let Some(span) = calls.get(&wait.span).filter(|span| span.kind != SpanKind::Join && span.error.is_none())
        else {
            continue;
        };
        let last = wait.on.iter().filter_map(|on| Some((on.until?, on.rank))).max();
        if let (Some((until, rank)), Some(_)) = (last, wait.to) {
            let one = (until.saturating_sub(wait.from), rank, wait, *span);
            let entry = found.entry((rank, until)).or_insert(one);
            *entry = if entry.0 >= one.0 { *entry } else { one };
        }
    }
    let mut all: Vec<_> = found.into_values().collect();
    all.sort_by_key(|(lasted, rank, wait, _)| (Reverse(*lasted), wait.from, *rank));
    let most = all.first().map_or(0, |one| one.0);
    all.retain(|one| 10 * one.0 >= most);
    all.truncate(MOST_WAITS);
    all
}

fn by_id(replay: &Replay) -> HashMap<u32, &Span> {
    replay.lanes.iter().flat_map(|lane| &lane.spans).map(|span| (span.id, span)).collect()
}

/// Returns true if the launcher ended the process whose death this is.
fn is_stopped(replay: &Replay, rank: Option<usize>, mark: &Mark) -> bool {
    let lane = replay.lanes.iter().find(|lane| Some(lane.rank) == rank);
    let mut processes = lane.into_iter().flat_map(|lane| &lane.processes);
    mark.kind == MarkKind::Death && processes.any(|process| process.attempt == mark.attempt && process.stopped)
}

fn of_mark(mark: &Mark) -> (Kind, &'static str) {
    match mark.kind {
        MarkKind::Start => (Kind::Note, "started"),
        MarkKind::Exit => (Kind::Note, "ended"),
        MarkKind::Death => (Kind::Fault, "died"),
        MarkKind::Restart => (Kind::Restart, "restart"),
        MarkKind::Fault => (Kind::Fault, "fault"),
        MarkKind::Error => (Kind::Fault, "a call failed"),
        MarkKind::Late => (Kind::Late, "late"),
        MarkKind::Resume => (Kind::Note, "resumed"),
        MarkKind::Evaluation => (Kind::Note, "evaluation"),
        MarkKind::Verdict => (Kind::Note, "the launcher's verdict"),
        MarkKind::Signal => (Kind::Note, "signal"),
    }
}

/// All beginnings and ends of calls, in order.
fn edges(replay: &Replay) -> Vec<u64> {
    let spans = replay
        .lanes
        .iter()
        .flat_map(|lane| &lane.spans)
        .filter(|span| !matches!(span.kind, SpanKind::Step | SpanKind::Join));
    let mut edges: Vec<u64> = spans.flat_map(|span| [Some(span.from), span.to]).flatten().collect();
    edges.sort_unstable();
    edges
}

/// What is in view around a moment: some events before it, and after it.
fn around(edges: &[u64], at: u64, end: u64) -> [u64; 2] {
    let place = edges.partition_point(|edge| *edge < at);
    // What is before the first call is not in view.
    let from = edges.get(place.saturating_sub(BEFORE)).map_or(0, |edge| (*edge).min(at));
    let to = edges.get(place + AFTER).copied().unwrap_or(end).max(at);
    // Of a hang, its beginning is to be seen, and not the minutes until the deadline.
    let before = (at - from).max(end / 1000).max(1);
    [at.saturating_sub(before), to.clamp(at + before / 2, at + 2 * before).min(end).max(at.saturating_sub(before) + 1)]
}

// ---- what replay.js draws

#[derive(Serialize)]
struct Scene<'a> {
    timed: bool,
    /// The end, and with what the page opens: the moment, the lane, from when and until when.
    length: u64,
    first: u64,
    lane: usize,
    view: [u64; 2],
    lanes: Vec<SceneLane<'a>>,
    /// Names of groups.
    groups: Vec<&'a str>,
    kinds: Vec<CallKind<'a>>,
    /// Calls and messages: the place of the group, or -1, and the number.
    ops: Vec<(i64, Option<u64>)>,
    /// When, the place of the lane or -1, the sign, and what it says; in order of time.
    marks: Vec<(u64, i64, &'static str, &'a str)>,
}

/// What many calls have in common.
#[derive(Serialize, PartialEq, Eq, Hash, Clone)]
struct CallKind<'a> {
    name: &'a str,
    short: String,
    class: &'static str,
    bytes: Option<u64>,
}

/// The spans are columns: the beginning counts from the one before, and `lasts` until the end or, of those in `open`, until the rank's.
#[derive(Serialize, Default)]
struct SceneLane<'a> {
    rank: usize,
    place: &'a str,
    recorded: bool,
    rows: usize,
    /// Each process's start and end, how it ended, and the CSS class for that end.
    lives: Vec<(u64, u64, &'a str, &'static str)>,
    from: Vec<u64>,
    lasts: Vec<u64>,
    row: Vec<usize>,
    kind: Vec<usize>,
    op: Vec<usize>,
    open: Vec<usize>,
    values: BTreeMap<usize, String>,
    errors: BTreeMap<usize, &'a str>,
    steps: Vec<(u64, u64, &'a str)>,
    gaps: Vec<(u64, u64)>,
    waits: Vec<SceneWait<'a>>,
}

/// From when until when; the place of the span; the places of the lanes that it waits for, each until when; any of these would do; and a
/// sentence if it never ended.
#[derive(Serialize)]
struct SceneWait<'a>(u64, u64, i64, Vec<(usize, u64)>, bool, &'a str);

impl<'a> Scene<'a> {
    fn of(replay: &'a Replay, moments: &[Moment]) -> Self {
        let drawn = &replay.lanes[..replay.lanes.len().min(MOST_LANES)];
        let places: HashMap<usize, usize> = drawn.iter().enumerate().map(|(place, lane)| (lane.rank, place)).collect();
        let telling = |moment: &&Moment| moment.kind < Kind::Restart || moment.kind == Kind::Wait;
        let opens = moments.iter().filter(telling).min_by_key(|moment| (moment.kind, Reverse(moment.lasted)));
        let whole = [0, replay.end.max(1)];
        let (first, lane, view) = opens.map_or((0, 0, whole), |moment| (moment.shown, moment.lane, moment.view));
        let mut scene = Scene {
            timed: is_timed(replay),
            length: replay.end.max(1),
            first,
            lane: lane.min(drawn.len().saturating_sub(1)),
            view,
            lanes: Vec::new(),
            groups: replay.groups.iter().map(|group| &*group.name).collect(),
            kinds: Vec::new(),
            ops: Vec::new(),
            marks: Vec::new(),
        };
        let mut tables = Tables::default();
        scene.lanes = drawn.iter().map(|lane| tables.lane(replay, lane)).collect();
        (scene.kinds, scene.ops) = (tables.kinds, tables.ops);
        let ends: Vec<Vec<u64>> = scene.lanes.iter().map(SceneLane::ends).collect();
        for wait in &replay.waits {
            let Some(place) = places.get(&wait.rank) else { continue };
            let lane = &mut scene.lanes[*place];
            let span = tables.spans.get(&wait.span).copied();
            // It waits no longer than its call lasts, which may have failed.
            let lasts = span.and_then(|index| ends[*place].get(index)).copied().unwrap_or(scene.length);
            let until = wait.to.unwrap_or(lasts).min(lasts).max(wait.from);
            let on = wait.on.iter().filter_map(|one| Some((*places.get(&one.rank)?, one.until.unwrap_or(until))));
            lane.waits.push(SceneWait(
                wait.from,
                until,
                span.map_or(-1, |index| index as i64),
                on.collect(),
                wait.any,
                wait.why.as_deref().filter(|_| wait.to.is_none()).unwrap_or_default(),
            ));
        }
        let signs =
            drawn.iter().enumerate().flat_map(|(place, lane)| lane.marks.iter().map(move |mark| (place as i64, mark)));
        for (place, mark) in signs.chain(replay.marks.iter().map(|mark| (-1, mark))) {
            let rank = usize::try_from(place).ok().map(|place| drawn[place].rank);
            let sign = if is_stopped(replay, rank, mark) { "end" } else { sign(mark.kind) };
            scene.marks.push((mark.at.min(scene.length), place, sign, &mark.text));
        }
        scene.marks.sort_by_key(|mark| mark.0);
        scene
    }
}

fn sign(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Death => "died",
        MarkKind::Fault | MarkKind::Error => "fault",
        MarkKind::Start | MarkKind::Restart | MarkKind::Resume => "restart",
        MarkKind::Exit => "end",
        MarkKind::Late | MarkKind::Evaluation | MarkKind::Verdict | MarkKind::Signal => "note",
    }
}

impl SceneLane<'_> {
    /// When each span ends.
    fn ends(&self) -> Vec<u64> {
        let mut before = 0;
        let end = |(from, lasts): (&u64, &u64)| {
            before += from;
            before + lasts
        };
        self.from.iter().zip(&self.lasts).map(end).collect()
    }
}

/// What lanes share.
#[derive(Default)]
struct Tables<'a> {
    kinds: Vec<CallKind<'a>>,
    ops: Vec<(i64, Option<u64>)>,
    known: HashMap<CallKind<'a>, usize>,
    /// The place of an operation, by the least id of its spans.
    by_id: HashMap<u32, usize>,
    /// The place of a span in its lane, by its id.
    spans: HashMap<u32, usize>,
}

impl<'a> Tables<'a> {
    fn lane(&mut self, replay: &'a Replay, lane: &'a Lane) -> SceneLane<'a> {
        let lives = lives(replay, lane);
        let end_of = |from: u64| lives.iter().map(|life| life.1).find(|end| *end > from).unwrap_or(replay.end);
        let place = lane.node.as_deref().unwrap_or_default();
        let gaps = lane.gaps.iter().map(|gap| (gap.from, gap.to)).collect();
        let mut made = SceneLane { rank: lane.rank, place, recorded: lane.recorded, gaps, ..SceneLane::default() };
        let (mut before, mut rows): (u64, Vec<u64>) = (0, Vec::new());
        for span in &lane.spans {
            let until = span.to.unwrap_or_else(|| end_of(span.from)).max(span.from);
            if span.kind == SpanKind::Step {
                made.steps.push((span.from, until, &span.name));
                continue;
            }
            let index = made.from.len();
            self.spans.insert(span.id, index);
            made.from.push(span.from - before.min(span.from));
            made.lasts.push(until - span.from);
            before = span.from;
            let free = rows.iter().position(|end| *end <= span.from).unwrap_or(rows.len()).min(MOST_ROWS - 1);
            if free == rows.len() {
                rows.push(0);
            }
            rows[free] = rows[free].max(until);
            made.row.push(free);
            made.kind.push(self.kind(span));
            made.op.push(self.op(replay, span));
            if span.to.is_none() {
                made.open.push(index);
            }
            if let Some(error) = &span.error {
                made.errors.insert(index, error);
            }
            if let Some(shown) = span.call.as_ref().and_then(|call| values(&call.before, &call.after)) {
                made.values.insert(index, shown);
            }
        }
        made.rows = rows.len().max(1);
        made.lives = lives;
        made
    }

    fn kind(&mut self, span: &'a Span) -> usize {
        let peer =
            span.call.as_ref().and_then(|call| call.peer).map_or_else(|| "?".to_owned(), |peer| peer.to_string());
        let (class, short) = match span.kind {
            SpanKind::Send => ("call", format!("→ {peer}")),
            SpanKind::Receive => ("call", format!("← {peer}")),
            SpanKind::Join => ("other", "join".to_owned()),
            SpanKind::Snapshot => ("other", "snapshot".to_owned()),
            SpanKind::Collective | SpanKind::Step => {
                ("call", span.name.split(['(', ' ']).next().unwrap_or_default().to_owned())
            }
        };
        let bytes = span.call.as_ref().and_then(|call| call.bytes);
        let kind = CallKind { name: &span.name, short, class, bytes };
        *self.known.entry(kind).or_insert_with_key(|kind| {
            self.kinds.push(kind.clone());
            self.kinds.len() - 1
        })
    }

    fn op(&mut self, replay: &Replay, span: &Span) -> usize {
        let least = span.matched.iter().copied().chain([span.id]).min().unwrap_or(span.id);
        *self.by_id.entry(least).or_insert_with(|| {
            let call = span.call.as_ref();
            let group = call.and_then(|call| replay.groups.iter().position(|group| group.name == call.group));
            self.ops.push((group.map_or(-1, |place| place as i64), call.and_then(|call| call.number)));
            self.ops.len() - 1
        })
    }
}

/// Each process of a rank: start, end, how it ended, and the CSS class for that end.
fn lives<'a>(replay: &Replay, lane: &'a Lane) -> Vec<(u64, u64, &'a str, &'static str)> {
    let died = |attempt| lane.marks.iter().any(|mark| mark.attempt == attempt && mark.kind == MarkKind::Death);
    let life = |process: &'a Process| {
        let of_attempt = replay.attempts.iter().find(|attempt| attempt.number == process.attempt);
        let until = process.to.or(of_attempt.and_then(|attempt| attempt.to)).unwrap_or(replay.end);
        let class = if died(process.attempt) && !process.stopped { "dead" } else { "" };
        (process.from, until.max(process.from), process.ended.as_deref().unwrap_or_default(), class)
    };
    lane.processes.iter().map(life).collect()
}

/// `1, 2 → 3, 4`.
fn values(before: &[Element], after: &[Element]) -> Option<String> {
    let one = |value: &Element| match value {
        Element::Integer(number) => number.to_string(),
        Element::Float(number) => short(*number),
        Element::Single(number) => short(f64::from(*number)),
        Element::Word(word) => plain(word),
    };
    let all = |values: &[Element]| values.iter().map(one).collect::<Vec<_>>().join(", ");
    match (before.is_empty(), after.is_empty()) {
        (true, true) => None,
        (false, true) => Some(all(before)),
        (true, false) => Some(format!("→ {}", all(after))),
        (false, false) => Some(format!("{} → {}", all(before), all(after))),
    }
}

/// A few digits, by which a number is recognized.
fn short(number: f64) -> String {
    if number != 0.0 && !(1e-3..1e5).contains(&number.abs()) {
        return format!("{number:.3e}");
    }
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::model::{Attempt, Awaited, Call, Group, Mismatch, Standstill};

    const HOSTILE: &str = "</script><script>alert(1)</script>\"'&lt;]]>-->";

    fn span(id: u32, from: u64, to: Option<u64>, name: &str) -> Span {
        let call = Call { group: "0".into(), number: Some(1), bytes: Some(16), ..Call::default() };
        Span {
            id,
            attempt: 0,
            kind: SpanKind::Collective,
            name: name.into(),
            from,
            waits_from: Some(from),
            to,
            error: None,
            call: Some(call),
            step: None,
            matched: Vec::new(),
        }
    }

    fn lane(rank: usize, spans: Vec<Span>) -> Lane {
        let processes = vec![Process { attempt: 0, pid: None, from: 0, to: None, ended: None, stopped: false }];
        Lane { rank, recorded: true, processes, spans, ..Lane::default() }
    }

    /// Rank 0 waits in a barrier to which rank 1, in an all-reduce, does not come.
    fn hang(name: &str) -> Replay {
        let mark = |at, kind| Mark { at, attempt: 0, kind, text: name.into() };
        let mut lanes = vec![
            lane(0, vec![span(0, 10, Some(20), name), span(1, 30, None, "barrier")]),
            lane(1, vec![span(2, 12, Some(20), name), span(3, 40, None, "all_reduce(Sum) of [4] Float")]),
        ];
        (lanes[0].spans[0].matched, lanes[1].spans[0].matched) = (vec![2], vec![0]);
        lanes[1].marks = vec![mark(0, MarkKind::Start), mark(90, MarkKind::Late)];
        Replay {
            started: 1.0,
            end: 100,
            attempts: vec![Attempt { number: 0, from: 0, to: None, ended: None }],
            groups: vec![Group { attempt: 0, name: "0".into(), members: vec![0, 1] }],
            lanes,
            waits: vec![Wait {
                rank: 0,
                attempt: 0,
                span: 1,
                from: 30,
                to: None,
                on: vec![Awaited { rank: 1, until: None }],
                any: false,
                why: Some("rank 1 has not called barrier".into()),
            }],
            mismatches: vec![Mismatch {
                at: 40,
                attempt: 0,
                group: "0".into(),
                number: 2,
                spans: vec![1, 3],
                text: "call 2 of group 0: rank 0 called barrier, rank 1 all_reduce".into(),
            }],
            standstills: vec![Standstill {
                attempt: 0,
                at: 40,
                ranks: vec![1, 0],
                circle: true,
                text: "ranks 0 and 1 wait for each other".into(),
            }],
            missing: vec![name.into()],
            ..Replay::default()
        }
    }

    fn scene(page: &str) -> Value {
        let (_, rest) = page.split_once("id=\"scene\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn shows_who_waits_for_whom_and_opens_where_ranks_stood_still() {
        let scene = scene(&render(&hang("all_reduce(Sum) of [2] Float"), "run.recording"));
        assert_eq!((scene["first"].as_u64(), scene["lane"].as_u64()), (Some(40), Some(1)));
        // From 30 to the end, in the second span of its lane, for the lane at place 1, until the end.
        let wait = serde_json::json!([30, 100, 1, [[1, 100]], false, "rank 1 has not called barrier"]);
        assert_eq!(scene["lanes"][0]["waits"], serde_json::json!([wait]));
        // Beginnings count from the one before; a span that never ended lasts until the end.
        assert_eq!((&scene["lanes"][0]["from"], &scene["lanes"][0]["lasts"]), (&[10, 20].into(), &[10, 70].into()));
        assert_eq!(scene["lanes"][0]["open"], serde_json::json!([1]));
        assert_eq!(scene["lanes"][0]["op"][0], scene["lanes"][1]["op"][0], "both ranks are in the same operation");
        assert_ne!(scene["lanes"][0]["op"][1], scene["lanes"][1]["op"][1]);
    }

    #[test]
    fn has_all_moments_as_a_table_and_needs_nothing_else() {
        let page = render(&hang("all_reduce(Sum) of [2] Float"), "run.recording");
        for text in [
            "ranks 0 and 1 wait for each other",
            "mismatch of calls",
            "rank that stood still first",
            "no restart",
            "no fault",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains(" src="));
    }

    #[test]
    fn lets_no_text_become_markup() {
        let page = render(&hang(HOSTILE), HOSTILE);
        assert_eq!(page.matches("</script>").count(), 2, "the scene and the script");
        assert!(!page.contains("<script>alert"));
        assert_eq!(scene(&page)["kinds"][0]["name"], HOSTILE);
    }

    #[test]
    fn calls_that_overlap_are_in_rows() {
        let overlapping = (0..6).map(|id| span(id, u64::from(id), Some(100), "all_reduce")).collect();
        let replay = Replay { end: 100, started: 1.0, lanes: vec![lane(0, overlapping)], ..Replay::default() };
        let scene = scene(&render(&replay, "x"));
        assert_eq!(
            (&scene["lanes"][0]["row"], &scene["lanes"][0]["rows"]),
            (&serde_json::json!([0, 1, 2, 3, 3, 3]), &4.into())
        );
    }

    #[test]
    fn an_empty_replay_and_one_of_many_ranks_have_a_page() {
        assert!(render(&Replay::default(), "x").contains("Nothing but calls is recorded"));
        let lanes =
            (0..MOST_LANES + 5).map(|rank| lane(rank, vec![span(rank as u32, 1, Some(2), "barrier")])).collect();
        let page = render(&Replay { end: 2, started: 1.0, lanes, ..Replay::default() }, "x");
        assert!(page.contains("5 more ranks are not drawn"));
        assert_eq!(scene(&page)["lanes"].as_array().unwrap().len(), MOST_LANES);
    }

    #[test]
    fn the_beginning_of_a_hang_is_in_view_and_not_only_its_end() {
        let edges: Vec<u64> = (0..1000).map(|at| at * 1000).chain([10_000_000_000]).collect();
        let [from, to] = around(&edges, 999_000, 10_000_000_000);
        assert!(from < 999_000 && to < 60_000_000, "{from} {to}");
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.5, 1.0, -2.25, 123.456_789, 1e9, 1e-7].map(short);
        assert_eq!(texts, ["0", "0.5", "1", "-2.25", "123.4568", "1.000e9", "1.000e-7"]);
        let values = values(&[Element::Integer(3), Element::Word("NaN".into())], &[Element::Single(0.1)]);
        assert_eq!(values.as_deref(), Some("3, NaN → 0.1"));
    }
}
