//! Serves Prometheus text over HTTP on a UNIX socket or a loopback port.
