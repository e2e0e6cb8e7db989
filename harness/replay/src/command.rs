//! `lockstep replay`: the page of a recorded run.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use lockstep_contract::foreign;
use lockstep_launch::exit::{Code, Refused};
use lockstep_report::{Form, Screen, Target, count};

use crate::model::{Replay, Source};
use crate::{flight_recorder, page};

/// Mismatches and standstills are printed up to this many.
const MOST_SHOWN: usize = 3;

/// Step through a recorded run on a page: what each rank did, who waited for whom, and where ranks stood still
#[derive(Args)]
#[command(after_help = "\
Recorded by `lockstep run --record FILE …` or, in programs of PyTorch, by its flight recorder (TORCH_FR_BUFFER_SIZE=2000; one file of \
TORCH_FR_DUMP_TEMP_FILE stands for all). The exit code is 0 whatever became of the run, and 2 if FILE cannot be read or is no recording.")]
pub struct ReplayOptions {
    /// The recording: what `lockstep run --record` wrote, a folder of a run's parts, or a file of PyTorch's flight recorder
    #[arg(value_name = "FILE", value_hint = ValueHint::AnyPath)]
    recording: PathBuf,
    /// Where the replay goes: .html for the page, .json for all that it shows, - for JSON on stdout; may be repeated [default: FILE.html]
    #[arg(short, long = "output", value_name = "PAGE")]
    #[arg(value_parser = |name: &str| Target::parse(name, FORMS))]
    outputs: Vec<Target>,
}

/// The forms of a replay: the page, and all that it shows.
const FORMS: &[Form] = &[Form::Html, Form::Json];

impl ReplayOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        let replay = read(&self.recording).map_err(|why| Refused(why.to_string()))?;
        let screen = Screen::new(self.outputs.iter().any(Target::is_stdout));
        show(&replay, &screen);
        let outputs = match self.outputs {
            outputs if !outputs.is_empty() => outputs,
            _ => {
                let give = |why| Refused(format!("{why}; give another place for the page: -o FILE.html"));
                vec![Target::file(page_of(&self.recording), Form::Html).map_err(give)?]
            }
        };
        for target in &outputs {
            let text = match target.form {
                Form::Html => page::render(&replay, &self.recording.display().to_string()),
                Form::Json => serde_json::to_string(&replay)? + "\n",
                other => anyhow::bail!("{other:?} is no form of a replay"),
            };
            target.save("the replay", &text)?;
            if let Some(path) = target.path() {
                screen.line(format_args!("written: {}; open it in a browser", foreign::path(path)));
            }
        }
        Ok(Code::Success)
    }
}

/// Reads a recording of any kind.
fn read(path: &Path) -> Result<Replay, Box<dyn fmt::Display>> {
    match flight_recorder::read(path) {
        Some(replay) => Ok(replay),
        None => crate::read(path).map_err(|why| Box::new(why) as Box<dyn fmt::Display>),
    }
}

/// The page next to a recording, or in its folder.
fn page_of(recording: &Path) -> PathBuf {
    if recording.is_dir() {
        return recording.join("replay.html");
    }
    let mut name = recording.file_name().unwrap_or_default().to_owned();
    name.push(".html");
    recording.with_file_name(name)
}

fn show(replay: &Replay, screen: &Screen) {
    let calls: usize = replay.lanes.iter().flat_map(|lane| &lane.spans).filter(|span| span.call.is_some()).count();
    let by = if replay.source == Source::FlightRecorder { ", by PyTorch's flight recorder" } else { "" };
    screen.line(format_args!("{}, {}{by}", count(replay.lanes.len(), "rank"), count(calls, "call")));
    let found = replay.standstills.iter().map(|still| &still.text).chain(replay.mismatches.iter().map(|one| &one.text));
    for text in found.clone().take(MOST_SHOWN) {
        screen.line(foreign::escaped(text));
    }
    if found.count() == 0 {
        screen.line(page::summary(replay));
    }
    for note in &replay.missing {
        screen.line(format_args!("note: {}", foreign::escaped(note)));
    }
}
