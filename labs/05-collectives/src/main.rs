//! Lab 05.

fn main() {}
