//! Grades `transpose`: matrices of random shapes on 2 and 3 ranks.

use lockstep_grading::{Claim, Numbers, Runner, Verdict, explain, given};
use serde::Deserialize;

#[derive(Clone, PartialEq, Deserialize)]
struct Matrix {
    size: Vec<i64>,
    numbers: Numbers,
}

/// Formats the matrix for the learner.
impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}", self.numbers, self.size)
    }
}

type Rows = Vec<Vec<f64>>;

/// A call of the answer: the ranks of the group, and the operation.
#[derive(Deserialize)]
struct Call {
    members: Vec<usize>,
    operation: String,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [2, 3] {
        // Neither the matrix nor a block of it is square.
        // Nor do a block's rows divide among the ranks.
        let (tall, wide) = (ranks + 1, random.below(ranks + 2..ranks + 5));
        let (rows, columns) = (ranks * tall, ranks * wide);
        // Each number is its place: 203.1 is in row 2, column 3. Single precision has no tenths.
        let tenth = f64::from(*[1, 2, 3, 4, 6, 7, 8, 9].get(random.below(0..8)).unwrap_or(&1)) / 10.0;
        let row = |row: usize| (0..columns).map(|column| (100 * row + column) as f64 + tenth).collect();
        let matrix: Rows = (0..rows).map(row).collect();
        let outputs = runner.call::<_, (Matrix, Vec<Call>, u64)>(ranks, &[&matrix]).map_err(|error| {
            let error = given(error, |_| format!("a block of {tall} x {columns} on each of {ranks} ranks"));
            explain(error, |finding| {
                if finding.verdict == Verdict::Crash && finding.diagnosis.contains("equal parts") {
                    return Some(format!(
                        "the input is divided by rows, and the other ranks need columns: rank r needs this block's columns from r * columns \
                         / size on. Transpose first, and they are rows ({})",
                        finding.diagnosis
                    ));
                }
                let strided = finding.verdict == Verdict::Crash && finding.diagnosis.contains("contiguous");
                strided.then(|| {
                    format!(
                        "`tr` only changes the strides, so the rows of its result are not contiguous: call `contiguous` before you send \
                         them ({})",
                        finding.diagnosis
                    )
                })
            })
        })?;
        for (rank, (observed, ..)) in outputs.all(0).enumerate() {
            check(rank, ranks, &matrix, observed)?;
        }
        for (rank, (observed, calls, bytes)) in outputs.all(0).enumerate() {
            check_received(rank, observed, calls)?;
            check_sent(rank, ranks, observed, *bytes)?;
        }
    }
    Ok(())
}

fn check(rank: usize, ranks: usize, matrix: &Rows, observed: &Matrix) -> anyhow::Result<()> {
    let (tall, wide) = (matrix.len() / ranks, matrix[0].len() / ranks);
    // This rank's columns of some rows, as rows.
    let columns = |rows: &[Vec<f64>]| -> Rows {
        (rank * wide..(rank + 1) * wide).map(|column| rows.iter().map(|row| row[column]).collect()).collect()
    };
    let expected = of(&columns(matrix), [wide, ranks * tall]);
    let own = &matrix[rank * tall..(rank + 1) * tall];
    let below: Rows = matrix.chunks(tall).flat_map(columns).collect();
    let upright: Rows = matrix.iter().map(|row| row[rank * wide..(rank + 1) * wide].to_vec()).collect();
    let own_transposed: Rows = (0..own[0].len()).map(|column| own.iter().map(|row| row[column]).collect()).collect();
    let holds = |rows: &Rows| rows.concat()[..] == observed.numbers[..];
    let zero = observed.numbers.contains(&0.0);
    Claim::equal(&expected, observed)
        .on_rank(rank)
        .given(format!(
            "a matrix of {} x {} on {ranks} ranks, {tall} rows each; row 1, column 2 is {}",
            matrix.len(),
            matrix[0].len(),
            matrix[1][2]
        ))
        .diagnose_if(
            holds(&below),
            "the right numbers, but the ranks' parts were put together one below the other. Each part is a piece of every row: \
             what came from rank r belongs to the right of what came from the ranks before it",
        )
        .diagnose_if(holds(&upright), "these are the right columns, but they are not transposed yet")
        .diagnose_if(holds(&own_transposed), "the rank has transposed its own block: nothing was exchanged")
        .diagnose_if(holds(&own.to_vec()), "this is the rank's own block: nothing was exchanged")
        .diagnose_if(
            expected.numbers.iter().map(|number| f64::from(*number as f32)).eq(observed.numbers.iter().copied()),
            "the right numbers, rounded to single precision: a result has the kind of the tensors that are sent, so create it with the \
             block's `kind()`",
        )
        .diagnose_if(zero, "part of the result was never received")
        .diagnose_if(
            expected.numbers == observed.numbers,
            "the right numbers in the wrong shape: a rank's block of the transpose has `columns / size` rows",
        )
        .or_fail("row i of the transpose must be column i of the matrix, from the first rank's rows to the last rank's")
}

fn of(rows: &Rows, [height, width]: [usize; 2]) -> Matrix {
    Matrix { size: vec![height as i64, width as i64], numbers: rows.concat().into() }
}

/// Checks that the rank has received no more than what it returns.
fn check_received(rank: usize, observed: &Matrix, calls: &[Call]) -> anyhow::Result<()> {
    let ranks = calls.first().map_or(1, |call| call.members.len());
    let numbers: usize = calls.iter().map(|call| received(rank, call)).sum();
    let most = observed.numbers.len() / ranks * (ranks - 1);
    let shown: Vec<&str> = calls.iter().map(|call| &*call.operation).collect();
    let named = |names: [&str; 4]| shown.iter().filter(|call| names.contains(&operation(call))).count();
    let messages = named(["send", "recv", "isend", "irecv"]);
    let collectives = shown.len() - messages - named(["barrier"; 4]);
    // A message to each rank and one from it, or a collective of which each rank is the root.
    let exchanges = collectives + messages.div_ceil(2);
    Claim::that(
        exchanges <= ranks,
        format!("no more than {ranks} exchanges"),
        format!("{exchanges}: {}", shown.join(", ")),
    )
    .on_rank(rank)
    .given(format!("{ranks} ranks"))
    .or_fail(
        "the result is right, but it takes a call for each row or each column of the block, and each call takes time, however little it \
         sends: put everything for a rank into one tensor, and exchange all with one call",
    )?;
    Claim::that(
        numbers <= most,
        format!("at most {most} numbers from other ranks"),
        format!("{numbers} numbers: {}", shown.join(", ")),
    )
    .on_rank(rank)
    .given(format!("{ranks} ranks"))
    .diagnose_if(
        numbers < 2 * most,
        "the result is right, but more arrives than is returned: do not send what every rank knows, such as the sizes",
    )
    .or_fail(
        "the result is right, but every rank gets whole blocks and keeps a part of each: with p ranks, p times as much as it needs. Send \
         every rank only its part, as all_to_all does",
    )
}

/// Checks that the rank has sent no more than its block. In double precision, that is 8 bytes for each number.
fn check_sent(rank: usize, ranks: usize, observed: &Matrix, bytes: u64) -> anyhow::Result<()> {
    let block = 8 * observed.numbers.len() as u64;
    Claim::that(bytes <= block, format!("at most {block} bytes sent"), format!("{bytes} bytes"))
        .on_rank(rank)
        .given(format!("{ranks} ranks"))
        .diagnose_if(
            bytes < 2 * block,
            "the result is right, but more is sent than a block: do not send what every rank knows, such as the sizes",
        )
        .or_fail(
            "the result is right, but the rank sends more than its block, and every rank keeps only a part of what it gets: send every rank \
             its own part only",
        )
}

fn operation(call: &str) -> &str {
    call.split([' ', '(']).next().unwrap_or("")
}

/// How many numbers a call brings to this rank from others.
fn received(rank: usize, call: &Call) -> usize {
    let (operation, others) = (call.operation.as_str(), call.members.len() - 1);
    let shape = operation.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(shape, _)| shape);
    let numbers: usize = shape.split(", ").filter_map(|length| length.parse::<usize>().ok()).product();
    let ours = |way: &str| operation.contains(&format!("{way} rank {rank} of"));
    match self::operation(operation) {
        // What all_to_all brings is what others pass to it: `check_sent`.
        "all_gather" | "all_gather_into_tensor" | "all_reduce" => numbers * others,
        "gather" | "reduce" if ours("to") => numbers * others,
        "broadcast" | "scatter" if !ours("from") => numbers,
        "recv" | "irecv" => numbers,
        _ => 0,
    }
}
