//! What facts of a trial whose joules a power model computed are called, for those who write and who
//! read them.

/// The model in words: its name, its date, and how far it is off.
pub const MODEL: &str = "power_model";
/// Its name: which machine, and how the curve was got.
pub const NAME: &str = "power_model.name";
/// The day on which it was measured or fitted.
pub const DATE: &str = "power_model.date";
/// The file that it was read from; absent of the default model.
pub const FILE: &str = "power_model.file";
/// The meter that it was fitted to; absent of a published curve.
pub const FITTED_TO: &str = "power_model.fitted_to";
/// How far curve and meter lie apart, typically.
pub const RESIDUAL_RMS_WATTS: &str = "power_model.residual_rms_watts";
/// And at worst.
pub const RESIDUAL_WORST_WATTS: &str = "power_model.residual_worst_watts";
