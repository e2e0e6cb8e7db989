//! A rank that only keeps a client of its job's store, as each rank of a training job does. `scripts/bench/ranks.py`
//! starts a thousand of them to measure the launcher's share of the work.
//!
//! The argument is the number of seconds to stay after all ranks have connected.

use std::env;
use std::error::Error;
use std::time::Duration;

use tcpstore::Client;

/// A thousand processes on two cores take a while to start.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let stays: f64 = env::args().nth(1).ok_or("give the seconds to stay")?.parse()?;
    let ranks: i64 = env::var("WORLD_SIZE")?.parse()?;
    let store = Client::connect(&env::var("MASTER_ADDR")?, env::var("MASTER_PORT")?.parse()?, PATIENCE).await?;
    if store.add("here", 1).await? == ranks {
        println!("all {ranks} ranks are here");
        store.set("all", b"").await?;
    }
    store.wait(&["all"], PATIENCE).await?;
    tokio::time::sleep(Duration::from_secs_f64(stays)).await;
    Ok(())
}
