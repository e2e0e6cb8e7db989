//! Output of workers through real pipes: complete lines, the files, and blocked readers.

#![allow(clippy::unwrap_used)] // a panic fails the test

use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use lockstep_launch::output::{Console, Finished, Outputs, Plan, Prefix, Stream, StreamPlan};
use lockstep_process::Sink;

/// Longer than any test takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

fn piped() -> (PipeReader, Console) {
    let (read, write) = io::pipe().unwrap();
    let nowhere = File::options().write(true).open("/dev/null").unwrap();
    (read, Console::to(write.into(), nowhere.into()).unwrap())
}

fn shown(prefix: &str) -> StreamPlan {
    let prefix = if prefix.is_empty() { Prefix::Never } else { Prefix::Always(prefix.into()) };
    StreamPlan { console: true, prefix, ..StreamPlan::default() }
}

fn only_stdout(stdout: StreamPlan) -> Plan {
    Plan { stdout, stderr: StreamPlan::default() }
}

fn writer(sink: Sink) -> File {
    match sink {
        Sink::Fd(fd) => File::from(fd),
        other => panic!("{other:?}"),
    }
}

/// The write ends of the workers' standard outputs; their standard errors end immediately.
fn stdouts(sinks: Vec<(Sink, Sink)>) -> Vec<File> {
    sinks.into_iter().map(|(stdout, _)| writer(stdout)).collect()
}

fn all(mut read: PipeReader) -> Vec<u8> {
    let mut all = vec![];
    read.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn nobody_waits_for_output_after_all_streams_have_ended() {
    let (done, caught_up) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let inherited = StreamPlan { inherit: true, ..StreamPlan::default() };
        for plan in [Plan::default(), Plan { stdout: inherited.clone(), stderr: inherited }] {
            let (outputs, sinks) = Outputs::open(&piped().1, vec![plan]).unwrap();
            drop(sinks);
            // The reader may still see the ends during the first wait; it is gone during the second.
            runtime.block_on(outputs.catch_up(LIMIT));
            runtime.block_on(outputs.catch_up(LIMIT));
        }
        done.send(()).unwrap();
    });
    lockstep_process::watchdog::receive(&caught_up).expect("a wait for output does not end").expect("the waits failed");
}

#[tokio::test]
async fn the_output_of_a_single_worker_passes_through_byte_for_byte() {
    let (read, console) = piped();
    let (mut outputs, sinks) = Outputs::open(&console, vec![only_stdout(shown(""))]).unwrap();
    let bytes = b"a\r\n\xff\x00 50%\r100%\nno end";
    stdouts(sinks)[0].write_all(bytes).unwrap();
    assert_eq!(outputs.finish(LIMIT).await, Finished::default());
    assert_eq!(outputs.tail(0, Stream::Stdout), ["a", "100%", "no end"]);
    drop((outputs, console));
    assert_eq!(all(read), bytes);
}

#[tokio::test]
async fn the_streams_of_a_single_worker_keep_their_order_and_its_last_lines_on_one_device() {
    let (read, write) = io::pipe().unwrap();
    let console = Console::to(write.try_clone().unwrap().into(), write.into()).unwrap();
    let (mut outputs, mut sinks) =
        Outputs::open(&console, vec![Plan { stdout: shown(""), stderr: shown("") }]).unwrap();
    let (stdout, stderr) = sinks.remove(0);
    let (mut stdout, mut stderr) = (writer(stdout), writer(stderr));
    let text: String = (0..100).map(|number| format!("{number}\n")).collect();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if number % 2 == 0 { &mut stdout } else { &mut stderr }.write_all(line.as_bytes()).unwrap();
    }
    drop((stdout, stderr));
    assert_eq!(outputs.finish(LIMIT).await, Finished::default());
    assert_eq!(outputs.tail(0, Stream::Stderr), text.lines().collect::<Vec<_>>());
    assert!(!outputs.is_unread(0));
    drop((outputs, console));
    assert_eq!(String::from_utf8(all(read)).unwrap(), text);
}

#[tokio::test]
async fn the_last_lines_on_an_inherited_terminal_are_not_read() {
    let inherited = StreamPlan { inherit: true, ..shown("") };
    let plan = Plan { stdout: inherited.clone(), stderr: inherited };
    let (outputs, sinks) = Outputs::open(&piped().1, vec![plan, Plan::default()]).unwrap();
    assert!(matches!(sinks[0], (Sink::Inherit, Sink::Inherit)), "{:?}", sinks[0]);
    assert_eq!([0, 1, 2].map(|worker| outputs.is_unread(worker)), [true, false, false]);
}

/// Each rank writes every byte separately, so that chunks end anywhere in a line.
#[tokio::test]
async fn lines_of_several_ranks_never_mix() {
    const LINES: usize = 200;
    let (read, console) = piped();
    let reader = thread::spawn(move || all(read));
    let plans = (0..4).map(|rank| only_stdout(shown(&format!("[{rank}]:")))).collect();
    let (mut outputs, sinks) = Outputs::open(&console, plans).unwrap();
    let ranks = stdouts(sinks).into_iter().enumerate().map(|(rank, mut stdout)| {
        thread::spawn(move || {
            for line in 0..LINES {
                format!("rank {rank} line {line}\n").bytes().for_each(|byte| stdout.write_all(&[byte]).unwrap());
            }
            stdout.write_all(b"no end").unwrap();
        })
    });
    ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
    assert_eq!(outputs.finish(LIMIT).await, Finished::default());
    drop((outputs, console));
    let text = String::from_utf8(reader.join().unwrap()).unwrap();
    for rank in 0..4 {
        let prefix = format!("[{rank}]:");
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let expected: Vec<String> =
            (0..LINES).map(|line| format!("rank {rank} line {line}")).chain(["no end".into()]).collect();
        assert_eq!(lines, expected);
    }
    assert_eq!(text.lines().count(), 4 * (LINES + 1));
}

#[tokio::test]
async fn a_tee_writes_plain_bytes_to_the_file_and_lines_to_the_console() {
    let folder = tempfile::tempdir().unwrap();
    let (read, console) = piped();
    let path = |name: &str| Some(folder.path().join(name));
    let filters = || vec!["loss".to_owned(), "error".to_owned()];
    let plan = |rank: usize| StreamPlan {
        file: path(&format!("{rank}.log")),
        filters: filters(),
        filtered: path("filtered_stdout.log"),
        ..shown(&format!("[{rank}]:"))
    };
    // The second worker's output is written but not shown, as with --local-ranks-filter.
    let silent = StreamPlan { console: false, ..plan(1) };
    let (mut outputs, sinks) = Outputs::open(&console, vec![only_stdout(plan(0)), only_stdout(silent)]).unwrap();
    for (rank, mut stdout) in stdouts(sinks).into_iter().enumerate() {
        write!(stdout, "begin\n1%\r2%\nrank {rank} loss 1\nend").unwrap();
    }
    assert_eq!(outputs.finish(LIMIT).await, Finished::default());
    drop((outputs, console));
    assert_eq!(String::from_utf8(all(read)).unwrap(), "[0]:begin\n[0]:2%\n[0]:rank 0 loss 1\n[0]:end\n");
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(text("1.log"), "begin\n1%\r2%\nrank 1 loss 1\nend");
    let filtered = text("filtered_stdout.log");
    let mut lines: Vec<&str> = filtered.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0]:rank 0 loss 1", "[1]:rank 1 loss 1"]);
}

#[tokio::test]
async fn a_redirected_stream_is_the_file_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stderr.log");
    let (_read, console) = piped();
    let stderr = StreamPlan { file: Some(path.clone()), ..StreamPlan::default() };
    let plan = Plan { stdout: StreamPlan::default(), stderr };
    let (outputs, mut sinks) = Outputs::open(&console, vec![plan]).unwrap();
    let (_, stderr) = sinks.remove(0);
    let mut stderr = writer(stderr);
    assert!(stderr.metadata().unwrap().is_file());
    stderr.write_all(b"one\ntwo").unwrap();
    // No `finish` is needed: the written bytes are in the file even if the agent dies.
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo");
    assert_eq!(outputs.tail(0, Stream::Stderr), ["one", "two"]);
}

#[tokio::test]
async fn a_blocked_console_delays_only_workers_that_print_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("stdout.log");
    let (read, console) = piped();
    let plans = vec![
        only_stdout(shown("[0]:")),
        only_stdout(StreamPlan { filters: vec!["x".into()], filtered: Some(log.clone()), ..StreamPlan::default() }),
    ];
    let (mut outputs, sinks) = Outputs::open(&console, plans).unwrap();
    let mut stdouts = stdouts(sinks).into_iter();
    let (mut loud, mut quiet) = (stdouts.next().unwrap(), stdouts.next().unwrap());
    const LOUD: usize = 4 << 20;
    let loud = thread::spawn(move || loud.write_all(&[&[b'y'; 999][..], b"\n"].concat().repeat(LOUD / 1000)));
    // The console has no reader, but the other rank can write more than the capacity of a pipe.
    quiet.write_all(&b"xxxxxxxxx\n".repeat(100_000)).unwrap();
    drop(quiet);
    assert!(!loud.is_finished());
    let reader = thread::spawn(move || all(read).len());
    loud.join().unwrap().unwrap();
    assert_eq!(outputs.finish(LIMIT).await, Finished::default());
    drop((outputs, console));
    assert_eq!(reader.join().unwrap(), LOUD / 1000 * 1004);
    assert_eq!(fs::metadata(&log).unwrap().len(), 1_000_000);
}

#[tokio::test]
async fn files_are_still_written_when_the_console_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("stdout.log");
    let (read, console) = piped();
    drop(read);
    let plan = StreamPlan { file: Some(log.clone()), ..shown("[0]:") };
    let (mut outputs, sinks) = Outputs::open(&console, vec![only_stdout(plan)]).unwrap();
    stdouts(sinks)[0].write_all(&b"xxxxxxxxx\n".repeat(100_000)).unwrap();
    assert_eq!(outputs.finish(LIMIT).await, Finished::default());
    assert_eq!(fs::metadata(&log).unwrap().len(), 1_000_000);
}

#[tokio::test]
async fn a_full_disk_is_reported_and_the_console_continues() {
    let (read, console) = piped();
    let plan = StreamPlan { file: Some("/dev/full".into()), ..shown("[0]:") };
    let (mut outputs, sinks) = Outputs::open(&console, vec![only_stdout(plan)]).unwrap();
    stdouts(sinks)[0].write_all(b"a\nb\n").unwrap();
    let finished = outputs.finish(LIMIT).await;
    assert_eq!(finished.failed.len(), 1);
    assert_eq!(finished.failed[0].0, Path::new("/dev/full"));
    drop((outputs, console));
    assert_eq!(all(read), b"[0]:a\n[0]:b\n");
}

#[tokio::test]
async fn a_stream_that_a_process_holds_open_is_given_up() {
    let (read, console) = piped();
    let plans = vec![only_stdout(shown("[0]:")), only_stdout(shown("[1]:"))];
    let (mut outputs, sinks) = Outputs::open(&console, plans).unwrap();
    let mut stdouts = stdouts(sinks);
    let mut held = stdouts.remove(0);
    held.write_all(b"last line").unwrap();
    drop(stdouts);
    let finished = outputs.finish(Duration::from_millis(20)).await;
    assert_eq!(finished, Finished { given_up: vec![(0, Stream::Stdout)], failed: vec![] });
    assert_eq!(outputs.finish(LIMIT).await, finished);
    assert_eq!(outputs.tail(0, Stream::Stdout), ["last line"]);
    drop((outputs, console));
    assert_eq!(all(read), b"[0]:last line\n");
}

#[tokio::test]
async fn the_last_lines_are_kept_even_of_hidden_output() {
    let (_read, console) = piped();
    let (mut outputs, mut sinks) = Outputs::open(&console, vec![Plan::default()]).unwrap();
    let (stdout, stderr) = sinks.remove(0);
    drop(stdout);
    let mut stderr = writer(stderr);
    (0..1000).for_each(|number| writeln!(stderr, "line {number}").unwrap());
    write!(stderr, "Traceback").unwrap();
    drop(stderr);
    outputs.finish(LIMIT).await;
    let tail = outputs.tail(0, Stream::Stderr);
    assert_eq!((tail.len(), tail[0].as_str(), tail[199].as_str()), (200, "line 801", "Traceback"));
    assert_eq!((outputs.tail(0, Stream::Stdout), outputs.tail(7, Stream::Stdout)), (vec![], vec![]));
}
