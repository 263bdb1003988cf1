//! Load generators that run as processes of their own, in the client's namespace.

pub mod http;
