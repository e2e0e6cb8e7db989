//! Answers to `environment`: wrong ones, and unusual right ones.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use lockstep_answers::edit;

use crate::environment::Worker;
use crate::simulated::Variables;

/// Falls back to rank 0 of 1 if variables are missing.
pub fn guesses(variables: &Variables) -> anyhow::Result<Worker> {
    let number = |name: &str, default: usize| variables.get(name).map_or(Ok(default), str::parse);
    Ok(Worker {
        rank: number("RANK", 0)?,
        local_rank: number("LOCAL_RANK", 0)?,
        world_size: number("WORLD_SIZE", 1)?,
        local_world_size: number("LOCAL_WORLD_SIZE", 1)?,
        master_addr: variables.get("MASTER_ADDR").unwrap_or("127.0.0.1").into(),
        master_port: number("MASTER_PORT", 29500)? as u16,
    })
}

/// Assumes that a launcher has set everything.
pub fn unwraps(variables: &Variables) -> anyhow::Result<Worker> {
    let number = |name: &str| variables.get(name).unwrap().parse().unwrap();
    Ok(Worker {
        rank: number("RANK"),
        local_rank: number("LOCAL_RANK"),
        world_size: number("WORLD_SIZE"),
        local_world_size: number("LOCAL_WORLD_SIZE"),
        master_addr: variables.get("MASTER_ADDR").unwrap().into(),
        master_port: number("MASTER_PORT") as u16,
    })
}

/// Returns the parser's error, which does not name the variable.
pub fn anonymous(variables: &Variables) -> anyhow::Result<Worker> {
    let text = |name: &str| variables.get(name).with_context(|| format!("{name} is not set"));
    Ok(Worker {
        rank: text("RANK")?.parse()?,
        local_rank: text("LOCAL_RANK")?.parse()?,
        world_size: text("WORLD_SIZE")?.parse()?,
        local_world_size: text("LOCAL_WORLD_SIZE")?.parse()?,
        master_addr: text("MASTER_ADDR")?.into(),
        master_port: text("MASTER_PORT")?.parse()?,
    })
}

/// Reads one variable for both ranks.
pub fn mixes(variables: &Variables) -> anyhow::Result<Worker> {
    let text = |name: &str| variables.get(name).with_context(|| format!("{name} is not set"));
    let number = |name: &str| -> anyhow::Result<usize> { text(name)?.parse().context(name.to_owned()) };
    let rank = number("LOCAL_RANK")?;
    Ok(Worker {
        rank,
        local_rank: rank,
        world_size: number("WORLD_SIZE")?,
        local_world_size: number("LOCAL_WORLD_SIZE")?,
        master_addr: text("MASTER_ADDR")?.into(),
        master_port: text("MASTER_PORT")?.parse().context("MASTER_PORT")?,
    })
}

/// Right: checks all variables first and names all that are missing.
pub fn all_at_once(variables: &Variables) -> anyhow::Result<Worker> {
    let missing: Vec<&str> = NAMES.into_iter().filter(|name| variables.get(name).is_none()).collect();
    ensure!(missing.is_empty(), "not set: {}", missing.join(", "));
    let values = NAMES.map(|name| variables.get(name).unwrap_or_default());
    let number = |place: usize| -> anyhow::Result<usize> {
        values[place].parse().with_context(|| format!("{}={}", NAMES[place], values[place]))
    };
    let [rank, local_rank, world_size, local_world_size] = [number(0)?, number(1)?, number(2)?, number(3)?];
    ensure!((0..world_size).contains(&rank), "RANK={rank} is not below WORLD_SIZE={world_size}");
    let master_port = number(5)?.try_into().with_context(|| format!("MASTER_PORT={}", values[5]))?;
    Ok(Worker { rank, local_rank, world_size, local_world_size, master_addr: values[4].into(), master_port })
}

const NAMES: [&str; 6] = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// Believes that it is the only process if neither rank nor world size is set.
pub fn alone(variables: &Variables) -> anyhow::Result<Worker> {
    let get = |name: &'static str| variables.get(name).with_context(|| format!("{name} is not set"));
    let number =
        |name| -> anyhow::Result<usize> { get(name)?.parse().with_context(|| format!("{name} is not a number")) };
    if variables.get("RANK").is_none() && variables.get("WORLD_SIZE").is_none() {
        let master_addr = "localhost".to_owned();
        return Ok(Worker {
            rank: 0,
            local_rank: 0,
            world_size: 1,
            local_world_size: 1,
            master_addr,
            master_port: 29500,
        });
    }
    let (rank, world_size) = (number("RANK")?, number("WORLD_SIZE")?);
    ensure!(rank < world_size, "RANK {rank} is not below WORLD_SIZE {world_size}");
    Ok(Worker {
        rank,
        local_rank: number("LOCAL_RANK")?,
        world_size,
        local_world_size: number("LOCAL_WORLD_SIZE")?,
        master_addr: get("MASTER_ADDR")?.to_owned(),
        master_port: get("MASTER_PORT")?.parse().context("MASTER_PORT is not a port")?,
    })
}

/// Treats a missing world size as 1, although the rank is usually not below that.
pub fn size_1(variables: &Variables) -> anyhow::Result<Worker> {
    fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(text: &str, name: &str) -> anyhow::Result<T> {
        text.parse().with_context(|| format!("{name} is {text:?}, not a number"))
    }
    let text = |name: &str| variables.get(name).with_context(|| format!("{name} is not set"));
    let worker = Worker {
        rank: number(text("RANK")?, "RANK")?,
        local_rank: number(text("LOCAL_RANK")?, "LOCAL_RANK")?,
        world_size: number(variables.get("WORLD_SIZE").unwrap_or("1"), "WORLD_SIZE")?,
        local_world_size: number(text("LOCAL_WORLD_SIZE")?, "LOCAL_WORLD_SIZE")?,
        master_addr: text("MASTER_ADDR")?.into(),
        master_port: number(text("MASTER_PORT")?, "MASTER_PORT")?,
    };
    ensure!(worker.rank < worker.world_size, "RANK is not below WORLD_SIZE");
    Ok(worker)
}

/// Takes the sign off a negative number.
#[edit(local_world_size: number(variables, "LOCAL_WORLD_SIZE")? => local_world_size: number::<i64>(variables, "LOCAL_WORLD_SIZE")?.unsigned_abs() as usize)]
pub fn absolute() {}

/// Reads a negative local rank as a huge one.
#[edit(local_rank: number(variables, "LOCAL_RANK")? => local_rank: number::<i64>(variables, "LOCAL_RANK")? as usize)]
pub fn negative() {}

/// Cuts off what a port has too much.
#[edit(number(variables, "MASTER_PORT")? => number::<u64>(variables, "MASTER_PORT")? as u16)]
pub fn cut_port() {}

/// Guesses the address alone.
#[edit(text(variables, "MASTER_ADDR")?.to_owned() => variables.get("MASTER_ADDR").unwrap_or("localhost").to_owned())]
pub fn guessed_address() {}

/// Guesses the local rank alone.
#[edit(local_rank: number(variables, "LOCAL_RANK")? => local_rank: match variables.get("LOCAL_RANK") {
    None => number(variables, "RANK")?,
    Some(_) => number(variables, "LOCAL_RANK")?,
})]
pub fn guessed_local_rank() {}

/// Says of each variable that one of the six is missing.
#[edit(with_context(|| format!("{name} is not set: start this program with a launcher")) => with_context(|| {
    let _ = name;
    "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set"
}))]
pub fn one_of_six() {}

/// Says of each number that one of the five is not valid.
#[edit(with_context(|| format!("{name} is {value:?}, which is not a valid number")) => context(
    "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and MASTER_PORT must be numbers"
))]
pub fn one_of_five() {}

/// Has one text for all faults, which does not even list all variables.
pub fn one_text(variables: &Variables) -> Result<Worker> {
    const TEXT: &str =
        "start this program with a launcher, which sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT …";
    all_at_once(variables).map_err(|_| anyhow::anyhow!(TEXT))
}

/// Names a number together with the one of the node.
#[edit(format!("{name} is {value:?}, which is not a valid number") => {
    let whole = name.trim_start_matches("LOCAL_");
    format!("{whole} or LOCAL_{whole} is {value:?}, which is not a valid number")
})]
pub fn one_of_two() {}

/// Sees only a rank that is the world size.
#[edit(worker.rank < worker.world_size => worker.rank != worker.world_size)]
pub fn not_the_size() {}

/// Right: the error names the variable first, and then what the others are.
#[edit(format!("{name} is not set: start this program with a launcher") => format!("{name} is not set; {}", others(variables)))]
pub fn says_the_others() {}

fn others(variables: &Variables) -> String {
    let set = NAMES.iter().filter_map(|name| Some(format!("{name}={}", variables.get(name)?)));
    format!("these are: {}", set.collect::<Vec<_>>().join(" "))
}

/// Right: the error begins with what a launcher sets.
#[edit(format!("{name} is not set: start this program with a launcher") => format!("a launcher sets RANK and WORLD_SIZE, but {name} is missing"))]
pub fn says_what_is_set() {}

/// Right: the error names the variable, and then says which there are; for the rank it names none.
pub fn helpful(variables: &Variables) -> Result<Worker> {
    const HELP: &str = "a launcher sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT";
    let text = |name: &str| variables.get(name).with_context(|| format!("no variable {name}: {HELP}"));
    let number = |name: &str| text(name)?.parse::<usize>().with_context(|| format!("no number in {name}: {HELP}"));
    let (rank, world_size) = (number("RANK")?, number("WORLD_SIZE")?);
    ensure!((0..world_size).contains(&rank), "this process has no place in its job");
    Ok(Worker {
        rank,
        local_rank: number("LOCAL_RANK")?,
        world_size,
        local_world_size: number("LOCAL_WORLD_SIZE")?,
        master_addr: text("MASTER_ADDR")?.to_string(),
        master_port: u16::try_from(number("MASTER_PORT")?)
            .with_context(|| format!("no port in MASTER_PORT: {HELP}"))?,
    })
}

/// Right: checks the numbers of the node as well.
#[edit(Ok(worker) => node_is_right(worker))]
pub fn checks_the_node() {}

fn node_is_right(worker: Worker) -> Result<Worker> {
    ensure!(worker.local_rank < worker.local_world_size, "LOCAL_RANK is not below LOCAL_WORLD_SIZE");
    ensure!(worker.local_world_size <= worker.world_size, "LOCAL_WORLD_SIZE is above WORLD_SIZE");
    ensure!(!worker.master_addr.is_empty(), "MASTER_ADDR is empty");
    Ok(worker)
}
