//! Answers to `environment`: wrong ones, and unusual right ones.

use std::str::FromStr;

use anyhow::{Context, ensure};

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
