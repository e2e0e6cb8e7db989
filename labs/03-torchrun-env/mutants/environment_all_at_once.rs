//! Right, in its own way: asks for all variables first, and names all that are missing.

use anyhow::{Context, ensure};

use crate::environment::Worker;
use crate::variables::Variables;

const NAMES: [&str; 6] = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

pub fn environment(variables: &Variables) -> anyhow::Result<Worker> {
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
