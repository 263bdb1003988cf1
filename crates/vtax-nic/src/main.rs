//! The program `vtax-nic`.

fn main() {}
