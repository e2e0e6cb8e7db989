//! Lab 04.

fn main() {}
