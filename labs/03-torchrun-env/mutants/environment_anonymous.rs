//! Hands on the parser's error, which does not know what it was parsing.

use anyhow::Context;

use crate::environment::Worker;
use crate::variables::Variables;

pub fn environment(variables: &Variables) -> anyhow::Result<Worker> {
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
