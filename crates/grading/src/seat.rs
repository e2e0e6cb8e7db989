//! What a seat tells its class: when it joined, which tasks were tried and passed, in one small file of a folder that all seats of the class
//! share.
//!
//! `LOCKSTEP_CLASS` names the folder, and each grading adds to the seat's own file there. Nothing else in the folder is touched. A file is
//! replaced as a whole, so a reader sees the old one or the new one. If it cannot be written, the command goes on after one note.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use lockstep_contract::foreign;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::progress::Progress;
use crate::{Finding, GradeResult, Language, Verdict};

/// The variable that names the class's folder.
pub const CLASS: &str = "LOCKSTEP_CLASS";
/// The variable that names the seat; otherwise it is the user on the host.
pub const SEAT: &str = "LOCKSTEP_SEAT";
/// How long a seat's file can be, in bytes: ten times as much as a seat needs that has done every task.
pub const LONGEST_FILE: u64 = 256 << 10;
/// How long a seat's name can be, in characters.
pub const LONGEST_NAME: usize = 60;
/// How long a diagnosis can be, in characters; the rest is left out.
const LONGEST_DIAGNOSIS: usize = 300;
/// How long grading waits for the shared folder.
const DEADLINE: Duration = Duration::from_secs(5);

/// What a seat's file holds. Times are seconds since 1970, by the seat's clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seat {
    pub name: String,
    /// When the file was first written.
    pub since: u64,
    /// When it was last written; 0 if an older version wrote it.
    #[serde(default)]
    pub written: u64,
    /// By the lab's number, then by the task's name.
    pub tasks: BTreeMap<String, BTreeMap<String, Attempts>>,
}

/// The gradings of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempts {
    pub first: u64,
    pub last: u64,
    /// None for a task that had passed before the seat joined the class.
    pub count: u32,
    /// When it passed for the first time.
    pub passed: Option<u64>,
    /// The finding of the last grading; none if it passed.
    pub finding: Option<SeatFinding>,
    /// What the answer that was graded last is written in; none if an older version wrote it, and before the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeatFinding {
    pub verdict: Verdict,
    pub diagnosis: String,
}

impl Seat {
    /// The seat in this file.
    ///
    /// Returns why the file is not one that a seat has written, in a few words. Links and devices are not followed.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        // The first look keeps a device from being opened, the second one sees what was opened.
        if !fs::symlink_metadata(file)?.is_file() {
            bail!("not a regular file");
        }
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(file)?;
        if !opened.metadata()?.is_file() {
            bail!("not a regular file");
        }
        let mut json = Vec::new();
        opened.take(LONGEST_FILE + 1).read_to_end(&mut json)?;
        if json.len() as u64 > LONGEST_FILE {
            bail!("more than the {LONGEST_FILE} bytes that a seat may write");
        }
        let seat: Seat = serde_json::from_slice(&json).context("torn or not a seat's")?;
        if seat.name.chars().count() > LONGEST_NAME {
            bail!("its name is longer than {LONGEST_NAME} characters");
        }
        Ok(seat)
    }

    /// The seat with times by the clock of the file system, by which its file was written at `at`: all seats share that clock, and a
    /// seat's own may be wrong.
    pub fn by_clock_of_folder(mut self, at: u64) -> Self {
        if self.written == 0 {
            return self;
        }
        let late = at.wrapping_sub(self.written).cast_signed();
        let attempts = self.tasks.values_mut().flat_map(BTreeMap::values_mut);
        let times = attempts.flat_map(|attempts| {
            [Some(&mut attempts.first), Some(&mut attempts.last), attempts.passed.as_mut()].into_iter().flatten()
        });
        times.chain([&mut self.since, &mut self.written]).for_each(|time| *time = time.saturating_add_signed(late));
        self
    }

    fn record(&mut self, lab: &str, task: &str, language: Language, finding: Option<SeatFinding>, now: u64) {
        let attempts = self.tasks.entry(lab.into()).or_default().entry(task.into()).or_default();
        if attempts.count == 0 && attempts.passed.is_none() {
            attempts.first = now;
        }
        attempts.last = now;
        attempts.count += 1;
        attempts.language = Some(language);
        if finding.is_none() {
            attempts.passed.get_or_insert(now);
        }
        attempts.finding = finding;
    }

    /// Adds what had passed before the class began.
    fn add(&mut self, progress: &Progress) {
        for (lab, task, at) in progress.passed() {
            let attempts = self.tasks.entry(lab.into()).or_default().entry(task.into()).or_default();
            if attempts.passed.is_none() {
                attempts.passed = Some(at);
                attempts.last = attempts.last.max(at);
                if attempts.count == 0 {
                    attempts.first = at;
                }
            }
        }
    }

    /// Replaces the file.
    fn write(&self, file: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_vec(self)?;
        lockstep_paths::write_atomically(file, |out| {
            // The instructor's account must be able to read it, whatever the umask.
            out.get_ref().set_permissions(fs::Permissions::from_mode(0o644))?;
            out.write_all(&json)
        })?;
        Ok(())
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Tells the class that the seat is there, if the environment names a class: from now on it works on its first task. `folder` is in the
/// learner's checkout.
pub fn join(folder: &Path) {
    update(folder, |_, _| ());
}

/// Tells the class how the grading of a task ended, if the environment names a class. `folder` is in the learner's checkout.
pub fn tell(folder: &Path, lab: &str, task: &str, language: Language, found: &GradeResult) {
    let (lab, task) = (lab.to_owned(), task.to_owned());
    let finding = found.as_ref().err().map(|finding| seat_finding(finding));
    update(folder, move |seat, now| seat.record(&lab, &task, language, finding, now));
}

/// Changes the seat's file, or prints why it cannot.
fn update(folder: &Path, change: impl FnOnce(&mut Seat, u64) + Send + 'static) {
    let Some(class) = std::env::var_os(CLASS).filter(|class| !class.is_empty()) else { return };
    let class = PathBuf::from(class);
    let (file, folder) = (class.clone(), folder.to_owned());
    let (done, ended) = channel();
    // A thread, since a network file system can hang.
    let write = move || drop(done.send(rewrite(&file, &folder, change)));
    let why = match std::thread::Builder::new().spawn(write) {
        Err(error) => format!("cannot start a thread: {error}"),
        Ok(_) => match ended.recv_timeout(DEADLINE) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => foreign::one_line(&format!("{error:#}")),
            Err(RecvTimeoutError::Timeout) => format!("it has not answered for {} s", DEADLINE.as_secs()),
            Err(RecvTimeoutError::Disconnected) => "the thread that writes it panicked".into(),
        },
    };
    static NOTE: Once = Once::new();
    NOTE.call_once(|| {
        let class = foreign::path(&class);
        let _ = writeln!(
            std::io::stderr(),
            "note: cannot tell the class in {class} how far this seat is: {why}; all else goes on (look at the folder, or unset {CLASS})"
        );
    });
}

fn seat_finding(finding: &Finding) -> SeatFinding {
    let shown_below = finding.diagnosis.find("; see below").unwrap_or(finding.diagnosis.len());
    let diagnosis = finding.diagnosis[..shown_below].chars().take(LONGEST_DIAGNOSIS).collect();
    SeatFinding { verdict: finding.verdict, diagnosis }
}

fn rewrite(class: &Path, folder: &Path, change: impl FnOnce(&mut Seat, u64)) -> anyhow::Result<()> {
    let now = now();
    let name = name();
    let file = class.join(format!("{}.json", file_stem(&name)));
    let mut seat = match Seat::read(&file) {
        Ok(seat) => seat,
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() != ErrorKind::NotFound) => {
            return Err(error);
        }
        // Damaged files are not kept: what had passed is in the checkout's progress.
        Err(_) => Seat::default(),
    };
    if seat.since == 0 {
        seat.since = now;
    }
    seat.name = name;
    seat.written = now;
    change(&mut seat, now);
    // The command has already reported damaged progress.
    seat.add(&Progress::read(folder).unwrap_or_default());
    seat.write(&file)
}

/// The seat's name: what the environment says, or the user on the host.
fn name() -> String {
    let chosen = std::env::var(SEAT).ok().filter(|name| !name.trim().is_empty());
    let name = chosen.unwrap_or_else(|| {
        let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
        let user = user.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()));
        format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
    });
    name.chars().take(LONGEST_NAME).collect()
}

/// The file name for a seat: two seat names that differ only in other characters than these share a file.
fn file_stem(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "@._-".contains(c) { c } else { '_' };
    let stem: String = name.chars().map(plain).collect();
    // Hidden files are not those of seats.
    if stem.starts_with('.') { format!("_{stem}") } else { stem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(class: &Path, finding: Option<SeatFinding>) {
        rewrite(class, class, |seat, now| seat.record("02", "shard", Language::Python, finding, now)).unwrap();
    }

    fn wrong(diagnosis: &str) -> Option<SeatFinding> {
        Some(SeatFinding { verdict: Verdict::WrongValue, diagnosis: diagnosis.into() })
    }

    #[test]
    fn a_seat_counts_its_gradings_and_keeps_when_it_first_passed() {
        let mut seat = Seat::default();
        seat.record("02", "shard", Language::Rust, wrong("off by one"), 10);
        seat.record("02", "shard", Language::Rust, None, 20);
        seat.record("02", "shard", Language::Rust, None, 30);
        seat.record("02", "average", Language::Rust, wrong("a sum"), 40);
        let shard =
            Attempts { first: 10, last: 30, count: 3, passed: Some(20), finding: None, language: Some(Language::Rust) };
        assert_eq!(seat.tasks["02"]["shard"], shard);
        let average = Attempts {
            first: 40,
            last: 40,
            count: 1,
            passed: None,
            finding: wrong("a sum"),
            language: Some(Language::Rust),
        };
        assert_eq!(seat.tasks["02"]["average"], average);
    }

    #[test]
    fn a_wrong_clock_of_a_seat_is_corrected_by_that_of_the_folder() {
        let mut seat = Seat { since: 1_000, written: 1_600, ..Seat::default() };
        seat.record("02", "shard", Language::Rust, None, 1_200);
        seat.record("02", "average", Language::Rust, wrong("a sum"), 1_600);
        for folders in [5_600, 1_600, 1_100] {
            let moved = seat.clone().by_clock_of_folder(folders);
            let (shard, average) = (&moved.tasks["02"]["shard"], &moved.tasks["02"]["average"]);
            let ago = [moved.since, shard.first, shard.passed.unwrap(), average.last].map(|time| folders - time);
            assert_eq!((moved.written, ago), (folders, [600, 400, 400, 0]));
        }
        let older = Seat { written: 0, ..seat };
        assert_eq!(older.clone().by_clock_of_folder(9_999), older);
    }

    #[test]
    fn a_seat_brings_what_had_passed_before_the_class() {
        let root = tempfile::tempdir().unwrap();
        Progress::record(root.path(), "01", "learns", 7).unwrap();
        let mut seat = Seat::default();
        seat.record("01", "batches", Language::Rust, None, 50);
        seat.add(&Progress::read(root.path()).unwrap());
        let learns = &seat.tasks["01"]["learns"];
        assert!(learns.count == 0 && learns.passed.is_some_and(|at| at > 1_700_000_000), "{learns:?}");
        assert_eq!(seat.tasks["01"]["batches"].passed, Some(50));
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_replaced_as_a_whole() {
        let class = tempfile::tempdir().unwrap();
        rewrite(class.path(), class.path(), |_, _| ()).unwrap();
        record(class.path(), wrong("off by one"));
        record(class.path(), None);
        let files: Vec<_> = fs::read_dir(class.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let seat = Seat::read(&files[0]).unwrap();
        let shard = &seat.tasks["02"]["shard"];
        assert!(seat.name == name() && seat.since > 0 && shard.count == 2, "{seat:?}");
        assert_eq!(shard.language, Some(Language::Python));
        assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o644);
        // A damaged file of its own is replaced.
        fs::write(&files[0], "{\"name\":").unwrap();
        record(class.path(), None);
        assert_eq!(Seat::read(&files[0]).unwrap().tasks["02"]["shard"].count, 1);
    }

    #[test]
    fn refuses_what_no_seat_has_written() {
        let class = tempfile::tempdir().unwrap();
        let file = class.path().join("seat.json");
        let long = format!("{{\"name\":\"{}\",\"since\":1,\"tasks\":{{}}}}", "x".repeat(LONGEST_NAME + 1));
        let big = " ".repeat(LONGEST_FILE as usize + 1);
        for (text, why) in [("{\"na", "torn"), (&*long, "longer than"), (&*big, "that a seat may write")] {
            fs::write(&file, text).unwrap();
            let error = format!("{:#}", Seat::read(&file).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
        let link = class.path().join("link.json");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert_eq!(Seat::read(&link).unwrap_err().to_string(), "not a regular file");
    }

    #[test]
    fn a_name_never_leads_out_of_the_folder() {
        for (name, stem) in
            [("ann@login", "ann@login"), ("../x", "_.._x"), ("a/b c", "a_b_c"), (".x", "_.x"), ("Zoë", "Zoë")]
        {
            assert_eq!(file_stem(name), stem);
        }
    }
}
