//! Reads one rank for both.

use anyhow::Context;

use crate::environment::Worker;
use crate::variables::Variables;

pub fn environment(variables: &Variables) -> anyhow::Result<Worker> {
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
