//! Placeholder until the lab lands.
fn main() {}
