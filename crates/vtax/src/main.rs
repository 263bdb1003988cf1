//! The `vtax` command: parses, calls the libraries, prints. No logic.

fn main() {}
