//! The model of a replay: a lane for each rank with what it did and when, who waited for whom, and the moments worth a look.
//!
//! It is also a format: the page of `lockstep replay` carries it as JSON. All times are nanoseconds since [`Replay::started`]. They stay
//! below 2^53, so JavaScript holds them exactly. [`crate::analyse`] fills what is marked "derived".

use lockstep_contract::recording::Element;
use serde::{Deserialize, Serialize};

/// Increases when a field changes its meaning or is removed.
pub const VERSION: u32 = 1;

/// A recorded run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    pub version: u32,
    pub source: Source,
    /// Seconds since the Unix epoch (the recording hosts' clocks): time 0 of everything else.
    pub started: f64,
    /// The last recorded moment.
    pub end: u64,
    /// In order of `number`.
    pub attempts: Vec<Attempt>,
    /// In order of attempt and name; members are ranks of the whole job, in group order.
    pub groups: Vec<Group>,
    /// The lanes of all known ranks, in order; `recorded` is false where nothing is recorded.
    pub lanes: Vec<Lane>,
    /// Marks of the whole job (the launcher's): restarts, verdicts, signals.
    pub marks: Vec<Mark>,
    /// Who waited for whom, derived from the calls. Ordered by `from`; one rank's waits do not overlap.
    pub waits: Vec<Wait>,
    /// Calls with the same group and number that differ between ranks, in order of time.
    pub mismatches: Vec<Mismatch>,
    /// For each attempt that stood still: who did first.
    pub standstills: Vec<Standstill>,
    /// Where PyTorch's flight recorder was told to write, without the rank at the end (TORCH_FR_DUMP_TEMP_FILE), as the launcher saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flight_recorder: Option<String>,
    /// Sentences on what is not in the recording: dropped lines, torn lines, ranks without a file, clocks of several hosts. Show them.
    pub missing: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `lockstep run --record` or LOCKSTEP_RECORD.
    #[default]
    Recording,
    /// PyTorch's flight recorder.
    FlightRecorder,
}

/// One start of all workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 0.
    pub number: u32,
    pub from: u64,
    /// None: it was still running when the recording ended.
    pub to: Option<u64>,
    /// How it ended, as the launcher says: "all ranks succeeded", "rank 2 was killed by SIGKILL; restarted". None if not known.
    pub ended: Option<String>,
}

/// A process group of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub attempt: u32,
    /// `0` is the default group.
    pub name: String,
    pub members: Vec<usize>,
}

/// What one rank did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    pub rank: usize,
    pub node: Option<String>,
    /// False: nothing of this rank is recorded (a Python program, a lost file), so nothing is claimed about it.
    pub recorded: bool,
    /// The rank's processes, one for each attempt in which it took part, in order of `from`.
    pub processes: Vec<Process>,
    /// Times in which the rank may have done what is not recorded (dropped, torn or cut lines): draw them as unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    /// In order of `from`. Steps enclose calls; calls may overlap (asynchronous ones).
    pub spans: Vec<Span>,
    /// In order of `at`.
    pub marks: Vec<Mark>,
    /// For how long other ranks waited for this one, in sum over these ranks (derived).
    pub waited_for: u64,
}

/// The life of a rank's process in one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub attempt: u32,
    pub pid: Option<u32>,
    pub from: u64,
    /// None: it still ran when the recording ended, or its end is not known.
    pub to: Option<u64>,
    /// "exit code 0", "killed by SIGKILL". None: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The launcher ended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

/// Something with a duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Unique in the replay.
    pub id: u32,
    pub attempt: u32,
    pub kind: SpanKind,
    /// What a reader sees: `all_reduce(Sum) of [4] Float`, `send to rank 1 of [4] Float tag 0`, `step 7`, `snapshot at step 40`.
    pub name: String,
    pub from: u64,
    /// From when on the rank did nothing but wait for the call's end (an asynchronous call: when `wait` was called). None: not known, or
    /// it never waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_from: Option<u64>,
    /// None: it never ended (a hang, a death).
    pub to: Option<u64>,
    /// If it ended in an error: the kind, in one word or sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The call, for Collective, Send and Receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
    /// A step's epoch, number and loss; `None` for other marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// The ids of the same call's spans on other ranks (collective), or of the other side (message). Derived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matched: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    Step,
    Collective,
    Send,
    Receive,
    /// The rank joins a group: connecting.
    Join,
    Snapshot,
}

/// A call of a group's operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub group: String,
    /// Collective: its number in the group, from 1, equal on all ranks for the same call. Message: its number among those of this group,
    /// sender, receiver and tag, from 1. None: not known (a receive from any rank that has not ended).
    pub number: Option<u64>,
    /// Bytes of the tensors that the rank passed. None: not known.
    pub bytes: Option<u64>,
    /// The other rank of a message, in the whole job. None: a collective, or a receive from any rank that has not ended.
    pub peer: Option<usize>,
    pub tag: Option<u32>,
    /// At most the first four elements that the rank passed, and those that it got, of tensors in host memory. See [`Element`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Element>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Element>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub epoch: u64,
    pub step: u64,
    /// None: not finished, or not a finite number.
    pub loss: Option<f64>,
}

/// Something without a duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    pub at: u64,
    pub attempt: u32,
    pub kind: MarkKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    Start,
    Exit,
    /// Killed by a signal, or a failing exit code.
    Death,
    Restart,
    /// An injected fault, or a warning.
    Fault,
    /// A call failed.
    Error,
    /// Ranks that others wait for, as the straggler watch says.
    Late,
    Resume,
    Evaluation,
    Verdict,
    Signal,
}

/// Rank `rank` waits in one call for other ranks. There is at most one for each span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    pub rank: usize,
    pub attempt: u32,
    /// The span in which it waits.
    pub span: u32,
    pub from: u64,
    /// When the last of `on` came. None: until the recording, the attempt or the rank ended; draw it until then.
    pub to: Option<u64>,
    /// For whom, in order of rank. At a moment t in the wait, draw an arrow to each whose `until` is later than t or None.
    pub on: Vec<Awaited>,
    /// True: any of `on` would do (a receive from any rank).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    /// A sentence, for waits that did not end well (to is None, or the call failed):
    /// "rank 1 has not called barrier (call 3 of group 0): it is in recv [4] Float tag 0 from rank 0". For others the page says what it likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaited {
    pub rank: usize,
    /// When that rank made the call. None: it never did.
    pub until: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    pub at: u64,
    pub attempt: u32,
    pub group: String,
    pub number: u64,
    pub spans: Vec<u32>,
    /// "call 3 of group 0: ranks 0, 2 called all_reduce(Sum) of [4] Float, rank 1 called barrier".
    pub text: String,
}

/// The job stood still: who did first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standstill {
    pub attempt: u32,
    /// When the first of `ranks` stood still: its last recorded act, or the last wait that closed the circle.
    pub at: u64,
    /// Ranks that others wait for and that wait for nobody themselves; or the ranks of a circle.
    pub ranks: Vec<usize>,
    /// True: `ranks` wait for each other.
    pub circle: bool,
    pub text: String,
}
