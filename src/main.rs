//! tune.
fn main() {}
