// SPDX-License-Identifier: Apache-2.0
//! Names of environment facts of a trial with joules, shared by their writers and readers: the meters, and the power model.

/// Description of the model: its name, its date, and its error.
pub const MODEL: &str = "power_model";
/// Name of the model: the machine, and the origin of the curve.
pub const NAME: &str = "power_model.name";
/// Date of the measurement or fit.
pub const DATE: &str = "power_model.date";
/// File of the model; absent for the default model.
pub const FILE: &str = "power_model.file";
/// Meter of the fit; absent for a published curve.
pub const FITTED_TO: &str = "power_model.fitted_to";
/// Root mean square of the difference between curve and meter, in watts.
pub const RESIDUAL_RMS_WATTS: &str = "power_model.residual_rms_watts";
/// Largest difference between curve and meter, in watts.
pub const RESIDUAL_WORST_WATTS: &str = "power_model.residual_worst_watts";

/// Domains of the meters whose sum is the host's energy, and what they cover.
pub const METERS: &str = "energy.meters";
/// Caveats of these meters, joined by semicolons.
pub const CAVEATS: &str = "energy.caveats";
