//! Telemetry as Prometheus text.
