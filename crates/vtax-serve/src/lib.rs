//! Shows charge-back: [`top`] to people in a terminal, [`record`] to billing scripts, [`exporter`]
//! to Prometheus. What is shown is computed in `vtax_observe::charge`; here it is only put in form.

pub mod exporter;
pub mod metrics;
pub mod record;
pub mod top;
