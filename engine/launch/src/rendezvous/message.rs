//! What agents and their authority tell each other, and how it is framed on a connection.
//!
//! An agent sends requests, and a beat at regular intervals. The authority sends each agent its own [`View`], complete each time:
//! only the latest counts, so a slow reader misses nothing and holds no memory. A frame is its length, four bytes of big-endian, and
//! JSON. The first frame is the authority's [`Greeting`]; an agent of another schema goes no further.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::error::Refusal;
use super::state::{Cause, Closing, JobIdentity, Lost, Node, NodeId, RankAssignment, SeenNode};

/// The version of the messages.
pub const SCHEMA: u32 = 6;
/// The largest frame that an authority accepts from an agent: many times the longest command line and failure message.
pub(super) const MAX_REQUEST: usize = 1 << 20;
/// The largest frame that an agent accepts from its authority: a survey of many thousand nodes.
pub(super) const MAX_REPLY: usize = 64 << 20;

/// The first message of an authority on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// [`SCHEMA`] of the authority.
    pub schema: u32,
}

/// From an agent to its authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAuthority {
    /// It is alive. The time is the sender's own.
    Beat(Duration),
    /// A request of its node.
    Request(Request),
    /// An authority of this generation has taken over the job; it is at this address.
    Superseded {
        /// The job's `--rdzv-id`.
        run_id: String,
        /// Its generation.
        generation: u64,
        /// Its address.
        address: String,
    },
}

/// From the authority to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    /// The authority is alive: it has received the beat of this time, and those before it.
    Beat(Duration),
    /// The agent's view has changed.
    View(Box<View>),
}

/// A node's request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// To take part in a round: its workers have ended. Sent again whenever the round has changed without this node.
    Join {
        /// What the node publishes about itself.
        node: Box<Node>,
        /// The job that it was started for.
        job: Box<JobIdentity>,
        /// The node's id before it was last removed, as far as it knows; 0 if it never was. An authority that has removed the node
        /// since ignores the request, because it was sent before the removal.
        was: NodeId,
        /// The last round that it took part in.
        given: Option<u64>,
        /// The round that it has seen, so that a later request differs.
        round: u64,
    },
    /// To restart the workers of this round.
    Restart {
        /// The round.
        round: u64,
        /// What failed.
        reason: String,
    },
    /// To announce that its workers of this round have all succeeded.
    Succeed {
        /// The round.
        round: u64,
    },
    /// To end the job for all nodes.
    Close(Box<Closing>),
    /// To leave.
    Leave {
        /// Why.
        why: String,
    },
    /// To announce the address of the workers' store of this round, on group rank 0.
    Master {
        /// The round.
        round: u64,
        /// The address.
        address: String,
    },
    /// To know all nodes.
    Survey,
    /// To announce that it knows its place in this round.
    Took {
        /// The round.
        round: u64,
    },
    /// To make this agent the authority, since the last one is lost.
    Follow(Box<Follow>),
}

/// What one agent has to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// The agent's id; 0 before it has joined.
    pub id: NodeId,
    /// The node whose agent is the authority, if it is of this job.
    pub host: Option<Node>,
    /// The current round, from 0.
    pub round: u64,
    /// Its phase.
    pub phase: Phase,
    /// Why it is formed.
    pub cause: Cause,
    /// The number of members.
    pub members: usize,
    /// How many of them have arrived.
    pub arrived: usize,
    /// How many members' workers have all succeeded.
    pub done: usize,
    /// The first expected members; if no member is expected, the first members.
    pub named: Vec<Node>,
    /// The agent's own part.
    pub own: OwnPart,
    /// Why the node of this id was removed, if it was.
    pub removed: Option<String>,
    /// Why the agent cannot take part at all, if so.
    pub refusal: Option<Refusal>,
    /// All nodes, if the agent wanted to know them.
    pub survey: Option<Box<Survey>>,
    /// How many times another agent has become the authority, at least.
    pub generation: u64,
    /// The last id that was given to a node.
    pub last_id: NodeId,
    /// What the agent has to know to go on without its authority.
    pub succession: Option<Box<Succession>>,
    /// Where the authority of a later generation is.
    pub moved: Option<String>,
    /// How often the agent has lost its connection. The agent counts.
    #[serde(skip)]
    pub connection: u64,
}

/// What an agent has to know to go on without its authority.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Succession {
    /// The number of the base.
    pub round: u64,
    /// The number of its members.
    pub size: usize,
    /// Those that can take over, by group rank, without the authority.
    pub order: Vec<Successor>,
}

/// A member that can take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Successor {
    /// Its id.
    pub id: NodeId,
    /// Where it listens.
    pub address: String,
}

/// A round that a node took part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Taken {
    /// Its number.
    pub round: u64,
    /// The node's group rank.
    pub rank: usize,
    /// The number of members.
    pub size: usize,
}

/// What a member tells the candidate that it follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Follow {
    /// The member, with the id that the lost authority gave it.
    pub node: Node,
    /// The job that it was started for.
    pub job: JobIdentity,
    /// The rounds that it took since its base.
    pub taken: Vec<Taken>,
    /// What it knows of the base.
    pub base: Succession,
    /// The latest round that it has seen, formed or not.
    pub seen: u64,
}

/// The phase of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // see RoundPhase
pub enum Phase {
    Gathering,
    Running,
    Finished,
    Closed(Box<Closing>),
}

/// A node's own part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnPart {
    /// It takes no part.
    Absent,
    /// It is a member.
    Member {
        /// Whether it has arrived in the gathering round.
        arrived: bool,
        /// Whether its workers have all succeeded.
        done: bool,
        /// Its place in the running round.
        place: Option<Box<RoundPlace>>,
    },
    /// It is number `at` of the waiting nodes; `holder` has the rank that it requests.
    Waiting {
        /// From 0.
        at: usize,
        /// The holder of its rank.
        holder: Option<Node>,
    },
}

/// A member's place in a running round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoundPlace {
    /// Its ranks.
    pub ranks: RankAssignment,
    /// The number of workers of all nodes.
    pub world_size: usize,
    /// The node of group rank 0.
    pub first: Node,
    /// The address of the workers' store, once it is known.
    pub master: Option<String>,
}

/// All nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Survey {
    /// Members that have arrived.
    pub came: Vec<SeenNode>,
    /// Members that are expected.
    pub expected: Vec<SeenNode>,
    /// Nodes that were removed.
    pub lost: Vec<Lost>,
    /// Members whose workers have not all succeeded.
    pub unfinished: Vec<Node>,
}

/// Reads a message of at most `most` bytes.
///
/// # Errors
/// The connection ended, or the bytes are not such a message.
pub(super) async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<T> {
    let length = read_length(stream, most).await?;
    read_rest(stream, length).await
}

/// Reads the length of a message.
///
/// # Errors
/// As for [`read`].
pub(super) async fn read_length(stream: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<usize> {
    match stream.read_u32().await? as usize {
        length if length <= most => Ok(length),
        length => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes"))),
    }
}

/// Reads a message after its length. The buffer grows only with bytes that have arrived.
///
/// # Errors
/// As for [`read`].
pub(super) async fn read_rest<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
) -> io::Result<T> {
    let mut bytes = Vec::new();
    if stream.take(length as u64).read_to_end(&mut bytes).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}

/// Writes a frame.
///
/// # Errors
/// The connection ended.
pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).map_err(|_| io::ErrorKind::InvalidData)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    stream.write_all(&frame).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_frame_comes_back_and_a_damaged_one_is_refused() {
        let request = ToAuthority::Request(Request::Restart { round: 7, reason: "rank 1 was killed".into() });
        let mut bytes = Vec::new();
        write(&mut bytes, &request).await.unwrap();
        assert_eq!(read::<ToAuthority>(&mut &bytes[..], MAX_REQUEST).await.unwrap(), request);
        for end in 0..bytes.len() {
            assert!(read::<ToAuthority>(&mut &bytes[..end], MAX_REQUEST).await.is_err(), "cut at {end}");
        }
        assert!(read::<ToAuthority>(&mut &bytes[..], 8).await.unwrap_err().to_string().contains("bytes"));
        bytes[6] = b'?';
        assert!(read::<ToAuthority>(&mut &bytes[..], MAX_REQUEST).await.is_err());
    }
}
