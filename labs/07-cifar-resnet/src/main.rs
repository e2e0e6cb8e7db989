//! Lab 07.

fn main() {}
