//! A run's curves as a CSV file: a row for each step and each evaluation, written by rank 0.
//!
//! | column | in the row of a step | in the row of an evaluation |
//! |---|---|---|
//! | `epoch` | the epoch | the epoch |
//! | `step` | the step within the epoch | empty |
//! | `loss` | rank 0's mean loss | empty |
//! | `lr` | the learning rate of the optimizer's first group | empty |
//! | `samples_per_second` | of all ranks since the row before: rank 0's, times the number of ranks | empty |
//! | `held_out_loss`, `held_out_accuracy` | empty | over all ranks; no accuracy where nothing is right or wrong |
//!
//! A run that is killed and resumed has each step once: its first row drops those of the same step and of later ones, which the
//! killed process had written after its last snapshot. The times are not part of the file's meaning: two runs differ in them.
//!
//! Why CSV: no crate that writes TensorBoard's event files is kept up. The book shows how to bring these rows to TensorBoard.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::metrics::Evaluation;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Row {
    epoch: u64,
    step: Option<u64>,
    loss: Option<f64>,
    lr: Option<f64>,
    samples_per_second: Option<f64>,
    held_out_loss: Option<f64>,
    held_out_accuracy: Option<f64>,
}

const HEADER: &str = "epoch,step,loss,lr,samples_per_second,held_out_loss,held_out_accuracy\n";

/// Epoch and step.
type Place = (u64, u64);

impl Row {
    /// An evaluation comes after all steps of its epoch.
    fn place(&self) -> Place {
        (self.epoch, self.step.unwrap_or(u64::MAX))
    }
}

/// Why curves cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CurvesError {
    /// The file or its folder cannot be made, read or written.
    #[error("cannot write curves to {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is another one's: nothing in it is changed.
    #[error("cannot write curves to {}: line {line} is not from a run's curves; name another file", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The first line that is not.
        line: u64,
    },
}

/// The open file.
#[derive(Debug)]
pub(crate) struct Curves {
    path: PathBuf,
    file: File,
    /// The places of the rows of former processes, with the offset at which each begins; none after this process' first row.
    former: Vec<(Place, u64)>,
    since: Instant,
}

impl Curves {
    /// Opens or makes the file. Of a last row that a killed process has left incomplete nothing stays.
    pub(crate) fn open(path: &Path) -> Result<Self, CurvesError> {
        let fail = |source| CurvesError::File { path: path.to_owned(), source };
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(fail(io::Error::other("it exists and is not a regular file; name another")));
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(fail)?;
        let text = fs::read(path).map_err(fail)?;
        let complete = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut curves = Curves { path: path.to_owned(), file, former: Vec::new(), since: Instant::now() };
        if text.starts_with(HEADER.as_bytes()) {
            curves.former = rows(&text[..complete]).map_err(|line| curves.not_ours(line))?;
            curves.cut(complete as u64).map_err(fail)?;
        } else if HEADER.as_bytes().starts_with(&text) {
            curves.cut(0).and_then(|()| curves.file.write_all(HEADER.as_bytes())).map_err(fail)?;
        } else {
            return Err(curves.not_ours(1));
        }
        Ok(curves)
    }

    fn not_ours(&self, line: u64) -> CurvesError {
        CurvesError::NotOurs { path: self.path.clone(), line }
    }

    fn cut(&mut self, at: u64) -> io::Result<()> {
        self.file.set_len(at)?;
        self.file.seek(SeekFrom::Start(at)).map(drop)
    }

    /// An epoch begins, or goes on: the time before it belongs to no step.
    pub(crate) fn begin(&mut self) {
        self.since = Instant::now();
    }

    /// A step is done, with `samples` samples on all ranks.
    pub(crate) fn step(&mut self, epoch: u64, step: u64, loss: f64, lr: Option<f64>, samples: u64) -> io::Result<()> {
        let rate = samples as f64 / self.since.elapsed().as_secs_f64().max(f64::EPSILON);
        self.since = Instant::now();
        let (step, loss, samples_per_second) = (Some(step), Some(loss), Some(rate.round()));
        self.put(&Row { epoch, step, loss, lr, samples_per_second, ..Row::default() })
    }

    pub(crate) fn eval(&mut self, epoch: u64, all: &Evaluation) -> io::Result<()> {
        let (held_out_loss, held_out_accuracy) = (Some(all.loss()), Some(all.accuracy()).filter(|part| !part.is_nan()));
        self.put(&Row { epoch, held_out_loss, held_out_accuracy, ..Row::default() })
    }

    fn put(&mut self, row: &Row) -> io::Result<()> {
        let former = std::mem::take(&mut self.former);
        if let Some((_, at)) = former.into_iter().find(|(place, _)| *place >= row.place()) {
            self.cut(at)?;
        }
        let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
        writer.serialize(row).map_err(io::Error::other)?;
        let line = writer.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
        // A whole line at once, so that a kill tears at most the last.
        self.file.write_all(&line)
    }
}

/// The places of the rows of a file, with the offset of each, or the number of the line that is no row.
fn rows(text: &[u8]) -> Result<Vec<(Place, u64)>, u64> {
    let mut reader = csv::Reader::from_reader(text);
    let mut rows = Vec::new();
    for record in reader.byte_records() {
        let record = record.map_err(|error| error.position().map_or(1, csv::Position::line))?;
        let (at, line) = record.position().map_or((0, 1), |at| (at.byte(), at.line()));
        let row: Row = record.deserialize(None).map_err(|_| line)?;
        rows.push((row.place(), at));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Epoch, step, loss and held-out loss of each row.
    type Lines = Vec<(u64, Option<u64>, Option<f64>, Option<f64>)>;

    fn lines(path: &Path) -> Lines {
        let mut reader = csv::Reader::from_path(path).unwrap();
        assert_eq!(reader.headers().unwrap().iter().collect::<Vec<_>>().join(",") + "\n", HEADER);
        let rows = reader.deserialize::<Row>().map(Result::unwrap);
        rows.map(|row| (row.epoch, row.step, row.loss, row.held_out_loss)).collect()
    }

    fn evaluated() -> Evaluation {
        let mut all = Evaluation::default();
        all.add_loss(1.5, 6);
        all
    }

    /// Two epochs of two steps from `(epoch, step)` on, each with the loss `loss`.
    fn train(path: &Path, from: (u64, u64), loss: f64) {
        let mut curves = Curves::open(path).unwrap();
        for epoch in from.0..2 {
            curves.begin();
            for step in (if epoch == from.0 { from.1 } else { 0 })..2 {
                curves.step(epoch, step, loss, Some(0.1), 4).unwrap();
            }
            curves.eval(epoch, &evaluated()).unwrap();
        }
    }

    #[test]
    fn a_resumed_run_has_each_row_once_wherever_the_killed_one_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/curves.csv");
        train(&path, (0, 0), 1.0);
        let whole = fs::read(&path).unwrap();
        let all = lines(&path);
        assert_eq!(
            all[..3],
            [(0, Some(0), Some(1.0), None), (0, Some(1), Some(1.0), None), (0, None, None, Some(0.25))]
        );
        assert_eq!(all.len(), 6);
        for cut in HEADER.len()..=whole.len() {
            for (from, kept) in [((0, 0), 0), ((0, 1), 1), ((1, 0), 3), ((1, 1), 4)] {
                fs::write(&path, &whole[..cut]).unwrap();
                let rows = whole[HEADER.len()..cut].iter().filter(|&&byte| byte == b'\n').count();
                train(&path, from, 2.0);
                let again = lines(&path);
                let kept = kept.min(rows);
                assert_eq!(again[..kept], all[..kept], "cut at {cut}, from {from:?}");
                let losses: Vec<f64> = again[kept..].iter().filter_map(|row| row.2).collect();
                assert!(losses.iter().all(|loss| *loss == 2.0) && losses.len() as u64 == 4 - from.0 * 2 - from.1);
            }
        }
        // Nothing is left to train: nothing is dropped.
        fs::write(&path, &whole).unwrap();
        drop(Curves::open(&path).unwrap());
        assert!(fs::read(&path).unwrap() == whole);
    }

    #[test]
    fn a_file_of_others_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        for (text, line) in [
            ("a,b\n1,2\n".to_owned(), 1),
            (format!("{HEADER}0,0,1,,,,\n0,x,1,,,,\n"), 3),
            (format!("{HEADER}0,1\n"), 2),
        ] {
            fs::write(&path, &text).unwrap();
            let error = Curves::open(&path).unwrap_err();
            assert!(matches!(error, CurvesError::NotOurs { line: at, .. } if at == line), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(matches!(Curves::open(folder.path()), Err(CurvesError::File { .. })));
    }

    #[test]
    fn a_loss_that_is_not_a_number_stands_in_its_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curves.csv");
        Curves::open(&path).unwrap().step(0, 0, f64::NAN, None, 1).unwrap();
        assert!(lines(&path)[0].2.unwrap().is_nan());
    }
}
