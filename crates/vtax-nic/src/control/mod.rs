//! How a guest or an operator sets what a port may hold.
