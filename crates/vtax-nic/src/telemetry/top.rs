//! `vtax-nic top`: the ports, live.
