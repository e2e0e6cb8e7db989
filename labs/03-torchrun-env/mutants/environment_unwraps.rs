//! Takes for certain that a launcher has set everything.

use crate::environment::Worker;
use crate::variables::Variables;

pub fn environment(variables: &Variables) -> anyhow::Result<Worker> {
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
