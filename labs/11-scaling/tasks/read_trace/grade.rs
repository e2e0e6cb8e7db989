//! Grades `read_trace`: traces of a step on several ranks. One rank comes last: it computes for longer, or begins later.

use lockstep_grading::{Claim, Inputs, Numbers, Runner, causes, close};
use serde::Deserialize;

/// Microseconds; the trace has whole ones.
const TOLERANCE: f64 = 0.5;
const BUCKETS: usize = 4;

#[derive(Clone, Debug, Deserialize)]
struct Reading {
    exposed: Numbers,
    overlap: Option<f64>,
    straggler: usize,
}

/// A span of a rank.
#[derive(Clone, Copy, PartialEq)]
struct Span {
    rank: usize,
    kind: &'static str,
    begin: usize,
    end: usize,
}

struct ReadTraceCase {
    json: String,
    spans: Vec<Span>,
    ranks: usize,
    straggler: usize,
}

/// Why a rank comes last.
#[derive(Clone, Copy, PartialEq)]
enum Late {
    /// It computes for longer than the others.
    Computes,
    /// It waits for its loader, while another rank computes for longer and still comes before it.
    Begins,
    /// It falls behind more and more, while another rank calls its first all-reduce last, and a third one computes until the end.
    Grows,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let cases = [Late::Computes, Late::Begins, Late::Grows].map(|late| draw(&mut random, late));
    let inputs: Vec<&String> = cases.iter().map(|case| &case.json).collect();
    let outputs = runner.call::<_, Reading>(1, &inputs)?;
    let all: Vec<(&ReadTraceCase, &Reading)> =
        cases.iter().enumerate().map(|(number, case)| (case, outputs.of(0, number))).collect();
    all.iter().try_for_each(|(case, found)| check_exposed(case, found, &all))?;
    all.iter().try_for_each(|(case, found)| check_overlap(case, found, &all))?;
    all.iter().try_for_each(|(case, found)| check_straggler(case, found, &all))
}

/// A forward pass, a backward pass that fills buckets, and their all-reduces, which end together on all ranks. The first two are under
/// way at the same time. Meanwhile the loader's thread reads.
fn draw(random: &mut Inputs, late: Late) -> ReadTraceCase {
    let ranks = random.below(3..6);
    let straggler = random.below(0..ranks);
    let slowest = if late == Late::Computes { straggler } else { (straggler + 1) % ranks };
    let busy = (straggler + 2) % ranks;
    let mut ends = Vec::new();
    let mut spans = Vec::new();
    let mut ready = vec![Vec::new(); ranks];
    for (rank, ready) in ready.iter_mut().enumerate() {
        let slow = if rank == slowest && late != Late::Grows { 3 } else { 2 };
        let grows = if rank == straggler && late == Late::Grows { 2 } else { 1 };
        let forward = if rank == slowest && late == Late::Grows { random.below(1700..1800) } else { 0 };
        let mut now = random.below(100..200);
        if rank == straggler && late == Late::Begins {
            let begin = now;
            now += random.below(6000..7000);
            spans.push(Span { rank, kind: "loading", begin, end: now });
        }
        let mut compute = |length: usize, spans: &mut Vec<Span>| {
            spans.push(Span { rank, kind: "compute", begin: now, end: now + length });
            now += length;
            // The thread launches the next one.
            let end = now;
            now += 20;
            end
        };
        compute(forward + random.below(1900..2100) * slow / 2, &mut spans);
        for _ in 0..BUCKETS {
            ready.push(compute(grows * random.below(950..1050) * slow / 2, &mut spans));
        }
        ends.push(now);
    }
    let mut last = 0;
    for bucket in 0..BUCKETS {
        let all_ready = ready.iter().map(|of| of[bucket]).max().unwrap_or(0);
        // The last one goes over the network alone, after the backward pass of all ranks.
        last = all_ready.max(last) + random.below(600..900);
        for (rank, of) in ready.iter().enumerate() {
            spans.push(Span { rank, kind: "communication", begin: of[bucket], end: last });
        }
    }
    if late == Late::Grows {
        spans.push(Span { rank: busy, kind: "compute", begin: ends[busy], end: last - 10 });
    }
    for rank in 0..ranks {
        spans.push(Span {
            rank,
            kind: "loading",
            begin: last - random.below(1500..2500),
            end: last - random.below(50..200),
        });
    }
    // A trace is in the order in which spans ended, or in none.
    for place in (1..spans.len()).rev() {
        spans.swap(place, random.below(0..place + 1));
    }
    ReadTraceCase { json: json(&spans, ranks), spans, ranks, straggler }
}

fn json(spans: &[Span], ranks: usize) -> String {
    let name = |rank: usize| {
        format!(r#"{{"ph":"M","name":"process_name","pid":{rank},"tid":0,"args":{{"name":"rank {rank}"}}}}"#)
    };
    let event = |Span { rank, kind, begin, end }: &Span| {
        let (name, thread) = match *kind {
            "compute" => ("ampere_sgemm_128x64", 1),
            "communication" => ("gloo:all_reduce", 2),
            _ => ("DataLoader.next", 3),
        };
        let duration = end - begin;
        format!(
            r#"{{"ph":"X","name":"{name}","cat":"{kind}","pid":{rank},"tid":{thread},"ts":{begin},"dur":{duration}}}"#
        )
    };
    let events: Vec<String> = (0..ranks).map(name).chain(spans.iter().map(event)).collect();
    format!(r#"{{"displayTimeUnit":"ms","traceEvents":[{}]}}"#, events.join(",\n"))
}

impl ReadTraceCase {
    fn given(&self) -> String {
        format!("a trace of {} ranks", self.ranks)
    }

    /// Microseconds in which one of these spans runs.
    fn covered(&self, of: impl Fn(&Span) -> bool) -> f64 {
        let mut spans: Vec<&Span> = self.spans.iter().filter(|span| of(span)).collect();
        spans.sort_by_key(|span| span.begin);
        let (mut length, mut until) = (0, 0);
        for span in spans {
            length += span.end.saturating_sub(span.begin.max(until));
            until = until.max(span.end);
        }
        length as f64
    }

    fn of_each_rank(&self, of: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..self.ranks).map(of).collect()
    }

    /// Each rank's time with communication and without `busy`.
    fn exposed_without(&self, busy: impl Fn(usize, &Span) -> bool) -> Vec<f64> {
        self.of_each_rank(|rank| {
            let communicates = |span: &Span| span.rank == rank && span.kind == "communication";
            self.covered(|span| busy(rank, span) || communicates(span)) - self.covered(|span| busy(rank, span))
        })
    }

    fn exposed(&self) -> Vec<f64> {
        self.exposed_without(|rank, span| span.rank == rank && span.kind == "compute")
    }

    /// The exposed time, with a moment as often as buckets are in progress in it.
    fn exposed_by_bucket(&self) -> Vec<f64> {
        self.of_each_rank(|rank| {
            let busy = |span: &Span| span.rank == rank && span.kind == "compute";
            let alone = |bucket: &Span| self.covered(|span| busy(span) || span == bucket) - self.covered(busy);
            self.buckets(rank).map(alone).sum()
        })
    }

    fn communicates(&self) -> Vec<f64> {
        self.exposed_without(|_, _| false)
    }

    fn computes(&self) -> Vec<f64> {
        self.of_each_rank(|rank| self.covered(|span| span.rank == rank && span.kind == "compute"))
    }

    fn buckets(&self, rank: usize) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.rank == rank && span.kind == "communication")
    }

    /// When each rank calls its first all-reduce.
    fn first_calls(&self) -> Vec<f64> {
        self.of_each_rank(|rank| self.buckets(rank).map(|span| span.begin as f64).fold(f64::INFINITY, f64::min))
    }

    /// The exposed part of all ranks' communication.
    fn exposed_part(&self) -> f64 {
        self.exposed().iter().sum::<f64>() / self.communicates().iter().sum::<f64>()
    }
}

fn check_exposed(case: &ReadTraceCase, found: &Reading, all: &[(&ReadTraceCase, &Reading)]) -> anyhow::Result<()> {
    let right = case.exposed();
    let gives_it = |wrong: &OfEachRank| all.iter().all(|(case, found)| close(&wrong(case), &found.exposed, TOLERANCE));
    Claim::close(&right, &found.exposed, TOLERANCE)
        .given(case.given())
        .causes(&causes(&OTHER_TIMES, gives_it))
        .or_fail("the exposed time is that in which a rank communicates and does not compute")
}

type OfEachRank = fn(&ReadTraceCase) -> Vec<f64>;

/// Times that mistakes give.
const OTHER_TIMES: [(OfEachRank, &str); 4] = [
    (ReadTraceCase::communicates, "that is all communication: what runs while the rank computes is hidden"),
    (
        |case| case.exposed_without(|rank, span| span.rank == rank && span.kind != "communication"),
        "the loader's thread reads ahead meanwhile, but that does not advance the training: only computing hides communication",
    ),
    (
        |case| case.exposed_without(|_, span| span.kind == "compute"),
        "another rank's computing does not hide this rank's communication: each process (pid) is a rank",
    ),
    (ReadTraceCase::exposed_by_bucket, "two buckets may be in progress at the same time: count such a moment once"),
];

fn check_overlap(case: &ReadTraceCase, found: &Reading, all: &[(&ReadTraceCase, &Reading)]) -> anyhow::Result<()> {
    let is = |found: &Reading, overlap: f64| found.overlap.is_some_and(|found| (overlap - found).abs() < 0.1);
    let all_are = |wrong: fn(&ReadTraceCase) -> f64| all.iter().all(|(case, found)| is(found, wrong(case)));
    let overlap = 100.0 * (1.0 - case.exposed_part());
    let observed = found.overlap.unwrap_or(f64::NAN);
    Claim::that(is(found, overlap), format!("an overlap of {overlap:.1} %"), format!("{observed:.3}"))
        .given(case.given())
        .cause_if(all_are(|case| 100.0 * case.exposed_part()), "that is the exposed part: the overlap is the other one")
        .cause_if(all_are(|case| 1.0 - case.exposed_part()), "that is a part of 1, and a percentage was asked for")
        .cause_if(
            all_are(|case| {
                let parts = case.exposed().into_iter().zip(case.communicates());
                100.0 * (1.0 - parts.map(|(exposed, all)| exposed / all).sum::<f64>() / case.ranks as f64)
            }),
            "that is the mean of the ranks' percentages, in which a rank that communicates little counts as much as others: add up the times \
             of all ranks, and divide once",
        )
        .cause_if(
            all_are(|case| {
                let buckets = case.spans.iter().filter(|span| span.kind == "communication");
                let each: usize = buckets.map(|span| span.end - span.begin).sum();
                100.0 * (1.0 - case.exposed().iter().sum::<f64>() / each as f64)
            }),
            "the lengths of all buckets are added up, so a moment in which two are in progress counts twice in the whole time: count it once",
        )
        .or_fail("the overlap is the hidden part of all time with communication, over all ranks, each moment once")
}

fn check_straggler(case: &ReadTraceCase, found: &Reading, all: &[(&ReadTraceCase, &Reading)]) -> anyhow::Result<()> {
    let largest = |of: Vec<f64>| (0..of.len()).max_by(|a, b| of[*a].total_cmp(&of[*b]));
    let gives_it = |of: &OfEachRank| all.iter().all(|(case, found)| largest(of(case)) == Some(found.straggler));
    Claim::that(found.straggler == case.straggler, "another rank", format!("rank {}", found.straggler))
        .given(case.given())
        .causes(&causes(&OTHER_STRAGGLERS, gives_it))
        .or_fail("the others wait for the rank that calls its all-reduces last")
}

/// What is the largest of the rank that a mistake takes for the straggler.
const OTHER_STRAGGLERS: [(OfEachRank, &str); 5] = [
    (
        |case| case.exposed().iter().map(|time| -time).collect(),
        "this rank has the least exposed communication, but only because it computes something else meanwhile: it waits as long as \
         others. The straggler calls its all-reduces last, so they are short",
    ),
    (
        ReadTraceCase::first_calls,
        "this rank calls its first all-reduce last, and is early for those after it: the others wait far longer for another one. Take \
         all buckets together",
    ),
    (
        ReadTraceCase::computes,
        "this rank computes for longest, and still does not come last: another one waits for its loader and begins later. The others \
         wait for the rank that calls its all-reduces last, whatever the reason",
    ),
    (ReadTraceCase::exposed, CAME_FIRST),
    (ReadTraceCase::communicates, CAME_FIRST),
];

const CAME_FIRST: &str = "this rank communicates for longest because it came first and waits: the straggler comes last, and its exchange is short";
