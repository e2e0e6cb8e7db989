//! Takes every error for a deadline that has passed.

use std::time::Duration;

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::{Kind, Tensor};

use crate::deadline::Received;

pub fn deadline(group: &ProcessGroup, from: Rank, length: i64, patience: Duration) -> Result<Received> {
    let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    match group.irecv(buffer, from, 0).and_then(|work| work.wait_for(patience)) {
        Ok(message) => Ok(Received::Message(message)),
        Err(_) => Ok(Received::Late),
    }
}
