//! Lab 08.

fn main() {}
