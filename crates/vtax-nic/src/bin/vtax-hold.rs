//! The guest's tool that asks its virtual NIC for a hold time.

fn main() {}
