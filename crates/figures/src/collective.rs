//! A collective, round by round. Each rank has a tensor in as many chunks as there are ranks; chunk c of rank r begins as r + 1 + 10·c, so that
//! a sum shows what has been added.
//!
//! Sources: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009), for the ring;
//! R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), for the others.

use crate::scene::{Controls, Frame, Scene, is_narrow, shown};

/// One rank sends chunks to another.
#[derive(Clone, Debug, PartialEq)]
struct Transfer {
    from: usize,
    to: usize,
    chunks: Vec<usize>,
    /// The receiver adds, or replaces.
    adds: bool,
}

type Rounds = Vec<Vec<Transfer>>;
/// What was sent: chunks and their cells.
type Message = (Transfer, Vec<(usize, Cell)>);

/// From this one on, [`ALGORITHMS`] move numbers without adding them.
const GATHER: usize = 5;

const ALGORITHMS: [&str; 7] = [
    "ring all-reduce",
    "doubling all-reduce",
    "tree all-reduce",
    "direct all-reduce",
    "ring reduce-scatter",
    "ring all-gather",
    "all-to-all",
];

fn rounds(algorithm: usize, ranks: usize) -> Rounds {
    match algorithm {
        0 => ring(ranks, true).into_iter().chain(ring(ranks, false)).collect(),
        1 => doubling(ranks),
        2 => tree(ranks),
        3 => direct(ranks),
        4 => ring(ranks, true),
        5 => gather(ranks),
        _ => exchange(ranks),
    }
}

fn all(ranks: usize) -> Vec<usize> {
    (0..ranks).collect()
}

/// Half an all-reduce: after the first half rank r has the sum of chunk r + 1; the second half passes sums on.
fn ring(ranks: usize, adds: bool) -> Rounds {
    let chunk = |round: usize, from: usize| (from + 2 * ranks - round + usize::from(!adds)) % ranks;
    let send =
        |round: usize, from: usize| Transfer { from, to: (from + 1) % ranks, chunks: vec![chunk(round, from)], adds };
    (0..ranks - 1).map(|round| (0..ranks).map(|from| send(round, from)).collect()).collect()
}

/// Each rank begins with its own chunk.
fn gather(ranks: usize) -> Rounds {
    let send = |round: usize, from: usize| Transfer {
        from,
        to: (from + 1) % ranks,
        chunks: vec![(from + ranks - round) % ranks],
        adds: false,
    };
    (0..ranks - 1).map(|round| (0..ranks).map(|from| send(round, from)).collect()).collect()
}

/// Pairs at distances 1, 2, 4, … exchange everything. Ranks beyond a power of two give theirs to a partner, and receive the sum from it.
fn doubling(ranks: usize) -> Rounds {
    let within = 1 << ranks.ilog2();
    let whole = |from: usize, to: usize, adds: bool| Transfer { from, to, chunks: all(ranks), adds };
    let before: Vec<_> = (within..ranks).map(|rank| whole(rank, rank - within, true)).collect();
    let after: Vec<_> = (within..ranks).map(|rank| whole(rank - within, rank, false)).collect();
    let distances = (0..ranks.ilog2()).map(|power| 1 << power);
    let pairs = distances.map(|distance| (0..within).map(|rank| whole(rank, rank ^ distance, true)).collect());
    [before].into_iter().chain(pairs).chain([after]).filter(|round: &Vec<_>| !round.is_empty()).collect()
}

/// Sums go up a binomial tree to rank 0, and down again.
fn tree(ranks: usize) -> Rounds {
    let distances: Vec<usize> = (0..).map(|power| 1 << power).take_while(|distance| *distance < ranks).collect();
    let round = |distance: usize, up: bool| {
        let children = (distance..ranks).filter(move |rank| rank % (2 * distance) == distance);
        let send = |child: usize| {
            let (from, to) = if up { (child, child - distance) } else { (child - distance, child) };
            Transfer { from, to, chunks: all(ranks), adds: up }
        };
        children.map(send).collect::<Vec<_>>()
    };
    let up = distances.iter().map(|distance| round(*distance, true));
    up.chain(distances.iter().rev().map(|distance| round(*distance, false))).collect()
}

/// Rank r adds up chunk r of all, then gives the sum to all.
fn direct(ranks: usize) -> Rounds {
    let pairs = |adds: bool| {
        let of = move |from: usize| {
            let others = (0..ranks).filter(move |to| *to != from);
            others.map(move |to| Transfer { from, to, chunks: vec![if adds { to } else { from }], adds })
        };
        (0..ranks).flat_map(of).collect()
    };
    vec![pairs(true), pairs(false)]
}

/// Chunk d of rank s becomes chunk s of rank d, all at once.
fn exchange(ranks: usize) -> Rounds {
    let of = |from: usize| {
        let others = (0..ranks).filter(move |to| *to != from);
        others.map(move |to| Transfer { from, to, chunks: vec![to], adds: false })
    };
    vec![(0..ranks).flat_map(of).collect()]
}

/// A chunk's number, and which ranks' are in it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    number: usize,
    from: u32,
}

struct Run {
    algorithm: usize,
    ranks: usize,
    rounds: Rounds,
    /// Calls another collective, and so takes no part.
    absent: Option<usize>,
    /// By rank and chunk.
    cells: Vec<Vec<Option<Cell>>>,
    /// Rounds that each rank has ended.
    ended: Vec<usize>,
}

impl Run {
    fn new(algorithm: usize, ranks: usize, absent: Option<usize>) -> Self {
        let owns = |rank: usize, chunk: usize| algorithm != GATHER || rank == chunk;
        let cell = |rank: usize, chunk: usize| {
            owns(rank, chunk).then(|| Cell { number: rank + 1 + 10 * chunk, from: 1 << rank })
        };
        let cells = (0..ranks).map(|rank| (0..ranks).map(|chunk| cell(rank, chunk)).collect()).collect();
        Run { algorithm, ranks, rounds: rounds(algorithm, ranks), absent, cells, ended: vec![0; ranks] }
    }

    /// Where a chunk of `from` arrives on the receiver.
    fn place(&self, transfer: &Transfer, chunk: usize) -> usize {
        if ALGORITHMS[self.algorithm] == "all-to-all" { transfer.from } else { chunk }
    }

    /// Ranks that can end their next round: all who send to them in it have come as far.
    fn able(&self) -> Vec<usize> {
        let arrives = |rank: usize, round: usize| {
            self.rounds[round]
                .iter()
                .filter(|transfer| transfer.to == rank)
                .all(|transfer| self.absent != Some(transfer.from) && self.ended[transfer.from] >= round)
        };
        let able = |rank: &usize| {
            self.absent != Some(*rank) && self.ended[*rank] < self.rounds.len() && arrives(*rank, self.ended[*rank])
        };
        (0..self.ranks).filter(able).collect()
    }

    /// What those ranks receive in it, with the cells as they were sent.
    fn sent(&self, able: &[usize]) -> Vec<Message> {
        let of = |rank: usize| {
            let round = &self.rounds[self.ended[rank]];
            let arriving = round.iter().filter(move |transfer| transfer.to == rank);
            arriving.map(move |transfer| {
                let cell = |chunk: &usize| self.cells[transfer.from][*chunk].map(|cell| (*chunk, cell));
                (transfer.clone(), transfer.chunks.iter().filter_map(cell).collect())
            })
        };
        able.iter().copied().flat_map(of).collect()
    }

    fn receive(&mut self, able: &[usize], sent: &[Message]) {
        for (transfer, cells) in sent {
            for (chunk, cell) in cells {
                let place = self.place(transfer, *chunk);
                let here = &mut self.cells[transfer.to][place];
                *here = match here {
                    Some(own) if transfer.adds => {
                        Some(Cell { number: own.number + cell.number, from: own.from | cell.from })
                    }
                    _ => Some(*cell),
                };
            }
        }
        able.iter().for_each(|rank| self.ended[*rank] += 1);
    }

    /// How a cell looks: whether its number is the collective's result, a part of it, or the rank's own.
    fn class(&self, rank: usize, cell: Option<Cell>) -> &'static str {
        let all = (1 << self.ranks) - 1;
        match cell {
            None => "empty",
            Some(cell) if cell.from == all || (self.algorithm >= GATHER && cell.from != 1 << rank) => "done",
            Some(cell) if cell.from.count_ones() > 1 => "partial",
            Some(_) => "cell",
        }
    }

    /// What the figure says in the end, after so many rounds.
    fn end(&self, rounds: usize) -> String {
        let Some(absent) = self.absent else { return format!("Done after {rounds} rounds.") };
        let waits = self.waits();
        let waits = waits.iter().map(|(rank, whom)| format!("rank {rank} waits for {}", listed(whom)));
        let waits = waits.collect::<Vec<_>>().join("; ");
        format!("A hang, until the timeout: rank {absent} is in another collective; {waits}.")
    }

    /// Bytes that each rank sends, as a part of the tensor; the most of all ranks.
    fn most_sent(&self) -> f64 {
        self.most(self.rounds.iter().flatten())
    }

    /// The sum over the rounds of the largest part of the tensor that a rank sends in each.
    fn per_byte(&self) -> f64 {
        self.rounds.iter().map(|round| self.most(round.iter())).sum()
    }

    /// The largest part of the tensor that a rank sends in these.
    fn most<'a>(&self, transfers: impl Iterator<Item = &'a Transfer>) -> f64 {
        let mut sent = vec![0; self.ranks];
        transfers.for_each(|transfer| sent[transfer.from] += transfer.chunks.len());
        sent.into_iter().max().unwrap_or(0) as f64 / self.ranks as f64
    }

    /// Whom each rank that cannot go on waits for.
    fn waits(&self) -> Vec<(usize, Vec<usize>)> {
        let waits = |rank: usize| {
            let round = self.rounds.get(self.ended[rank]).filter(|_| self.absent != Some(rank))?;
            let late = |from: usize| self.absent == Some(from) || self.ended[from] < self.ended[rank];
            let for_whom: Vec<_> = round
                .iter()
                .filter(|transfer| transfer.to == rank && late(transfer.from))
                .map(|transfer| transfer.from)
                .collect();
            (!for_whom.is_empty()).then_some((rank, for_whom))
        };
        (0..self.ranks).filter_map(waits).collect()
    }
}

/// Where things are.
struct Place {
    width: f64,
    column: f64,
    top: f64,
    row: f64,
    height: f64,
}

impl Place {
    fn new(width: f64, ranks: usize) -> Self {
        let (top, row) = (26.0, 26.0);
        Place { width, column: width / ranks as f64, top, row, height: top + ranks as f64 * row + 24.0 }
    }

    fn cell(&self, rank: usize, chunk: usize) -> [f64; 4] {
        let wide = (self.column - 6.0).min(56.0);
        let left = rank as f64 * self.column + (self.column - wide) / 2.0;
        [left, self.top + chunk as f64 * self.row, wide, self.row - 4.0]
    }

    /// What all ranks have, and what is on its way, at the sender or already at the receiver.
    fn frame(&self, run: &Run, says: impl Into<String>, moving: &[Message], arrived: bool) -> Frame {
        let mut frame = Frame::new(says);
        for rank in 0..run.ranks {
            let [x, _, wide, _] = self.cell(rank, 0);
            let name = if is_narrow(self.width) && run.ranks > 5 { format!("{rank}") } else { format!("rank {rank}") };
            frame.cell(format!("name {rank}"), [x, 2.0, wide, 20.0], "plain strong", name);
            for (chunk, cell) in run.cells[rank].iter().enumerate() {
                let number = cell.map_or(String::new(), |cell| cell.number.to_string());
                frame.cell(format!("{rank} {chunk}"), self.cell(rank, chunk), run.class(rank, *cell), number);
            }
            if run.absent == Some(rank) {
                let name = if wide < 50.0 { "?" } else { "other" };
                frame.cell(format!("elsewhere {rank}"), [x, self.height - 22.0, wide, 20.0], "wrong", name);
            }
        }
        for (transfer, cells) in moving {
            for (chunk, cell) in cells {
                let (rank, at) =
                    if arrived { (transfer.to, run.place(transfer, *chunk)) } else { (transfer.from, *chunk) };
                let [x, y, wide, high] = self.cell(rank, at);
                let key = format!("move {} {} {chunk}", transfer.from, transfer.to);
                frame.cell(key, [x + 3.0, y + 3.0, wide - 6.0, high - 6.0], "moving", cell.number.to_string());
            }
        }
        frame
    }
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let algorithm = controls.choice("algorithm", "collective", &ALGORITHMS);
    let ranks = controls.count("ranks", "ranks", [2, 8], 4);
    let fault = controls.choice("order", "calls", &["the same on all ranks", "rank 1 calls another first"]);
    let mut run = Run::new(algorithm, ranks, (fault == 1).then_some(1));
    let place = Place::new(width, ranks);

    let before = format!("Before: each rank has its own numbers, in {ranks} chunks.");
    let mut frames = vec![place.frame(&run, before, &[], false)];
    let mut turn = 0;
    loop {
        let able = run.able();
        if able.is_empty() {
            break;
        }
        turn += 1;
        let sent = run.sent(&able);
        let numbers: usize = sent.iter().map(|(_, cells)| cells.len()).sum();
        let adds = sent.first().is_some_and(|(transfer, _)| transfer.adds);
        let keeps = if adds { "adds" } else { "keeps" };
        frames.push(place.frame(&run, format!("Round {turn}: {numbers} numbers are on their way."), &sent, false));
        frames.push(place.frame(&run, format!("Round {turn}: each receiver {keeps} what it receives."), &sent, true));
        run.receive(&able, &sent);
        frames.push(place.frame(&run, format!("After round {turn}."), &[], false));
    }
    if let Some(last) = frames.last_mut() {
        last.says = run.end(turn);
    }
    let mut scene = Scene::new([width, place.height], frames);
    scene.tell("rounds", run.rounds.len().to_string());
    scene.tell("sent by one rank, at most", format!("{} × the tensor", shown(run.most_sent(), "")));
    scene.tell("time", format!("{} α + {} β·bytes", run.rounds.len(), shown(run.per_byte(), "")));
    Ok(scene)
}

fn listed(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(algorithm: usize, ranks: usize) -> Run {
        let mut run = Run::new(algorithm, ranks, None);
        loop {
            let able = run.able();
            if able.is_empty() {
                break;
            }
            let sent = run.sent(&able);
            run.receive(&able, &sent);
        }
        assert!(run.ended.iter().all(|ended| *ended == run.rounds.len()), "{algorithm} {ranks}");
        run
    }

    /// The numbers that the collective must leave, for all algorithms and numbers of ranks.
    #[test]
    fn every_rank_ends_with_what_the_collective_promises() {
        for (algorithm, ranks) in (0..7).flat_map(|algorithm| (2..=8).map(move |ranks| (algorithm, ranks))) {
            let run = end(algorithm, ranks);
            let sum = |chunk: usize| (0..ranks).map(|rank| rank + 1 + 10 * chunk).sum::<usize>();
            for rank in 0..ranks {
                for chunk in 0..ranks {
                    let found = run.cells[rank][chunk].map(|cell| cell.number);
                    let expected = match algorithm {
                        0..=3 => sum(chunk),
                        4 if chunk == (rank + 1) % ranks => sum(chunk),
                        4 => continue,
                        5 => chunk + 1 + 10 * chunk,
                        _ => chunk + 1 + 10 * rank,
                    };
                    assert_eq!(
                        found,
                        Some(expected),
                        "{} on {ranks}: rank {rank}, chunk {chunk}",
                        ALGORITHMS[algorithm]
                    );
                }
            }
        }
    }

    /// Formulas of the book: 2(n−1)/n of the tensor for a ring and a direct all-reduce, (n−1)/n for halves of it.
    #[test]
    fn a_rank_sends_what_the_formula_says() {
        for ranks in 2..=8 {
            let part = (ranks - 1) as f64 / ranks as f64;
            for (algorithm, expected) in [(0, 2.0 * part), (3, 2.0 * part), (4, part), (5, part), (6, part)] {
                let run = Run::new(algorithm, ranks, None);
                assert!((run.most_sent() - expected).abs() < 1e-12, "{algorithm} {ranks}");
            }
            assert_eq!(Run::new(0, ranks, None).rounds.len(), 2 * (ranks - 1));
        }
        assert_eq!(Run::new(1, 8, None).rounds.len(), 3);
        assert_eq!(Run::new(2, 8, None).rounds.len(), 6);
    }

    #[test]
    fn a_rank_in_another_collective_stops_the_others_one_after_the_other() {
        let mut run = Run::new(0, 4, Some(1));
        while !run.able().is_empty() {
            let able = run.able();
            let sent = run.sent(&able);
            run.receive(&able, &sent);
        }
        assert_eq!(run.ended, [2, 0, 0, 1]);
        assert_eq!(run.waits(), [(0, vec![3]), (2, vec![1]), (3, vec![2])]);
    }
}
