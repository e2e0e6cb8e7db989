//! What is missing gets a value: it is rank 0 of 1.

use crate::environment::Worker;
use crate::variables::Variables;

pub fn environment(variables: &Variables) -> anyhow::Result<Worker> {
    let number = |name: &str, otherwise: usize| variables.get(name).map_or(Ok(otherwise), str::parse);
    Ok(Worker {
        rank: number("RANK", 0)?,
        local_rank: number("LOCAL_RANK", 0)?,
        world_size: number("WORLD_SIZE", 1)?,
        local_world_size: number("LOCAL_WORLD_SIZE", 1)?,
        master_addr: variables.get("MASTER_ADDR").unwrap_or("127.0.0.1").into(),
        master_port: number("MASTER_PORT", 29500)? as u16,
    })
}
