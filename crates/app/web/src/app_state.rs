// SPDX-License-Identifier: Apache-2.0
//! The state that all handlers share.

use crate::analyses::Analyses;
use crate::live::Live;
use crate::machines::Machines;
use crate::plans::Plans;
use crate::results::Results;
use crate::run_manager::RunManager;
use crate::runs::Runs;
use std::path::Path;
use std::sync::Arc;

/// The parts of the page.
#[derive(Debug, Clone)]
pub struct AppState {
    pub(crate) live: Arc<Live>,
    pub(crate) results: Arc<Results>,
    pub(crate) analyses: Arc<Analyses>,
    pub(crate) runs: Arc<Runs>,
    /// None where runs cannot be started.
    pub(crate) plans: Option<Arc<Plans>>,
    pub(crate) machines: Arc<Machines>,
    pub(crate) run_manager: Option<RunManager>,
}

impl AppState {
    /// The live host, and the results below a directory; `state` is the directory of vtax's state.
    pub fn new(live: Arc<Live>, results: &Path, state: &Path) -> Self {
        Self {
            live,
            results: Arc::new(Results::below(results)),
            analyses: Arc::default(),
            runs: Arc::new(Runs::new(state, None)),
            plans: None,
            machines: Arc::default(),
            run_manager: None,
        }
    }

    /// The same with these machines.
    #[must_use]
    pub fn with_machines(self, machines: Machines) -> Self {
        Self {
            machines: Arc::new(machines),
            ..self
        }
    }

    /// The same with a thread that has the privileges to see which lab runs.
    #[must_use]
    pub fn with_run_manager(self, state: &Path, run_manager: RunManager) -> Self {
        Self {
            runs: Arc::new(Runs::new(state, Some(run_manager.clone()))),
            run_manager: Some(run_manager),
            ..self
        }
    }

    /// The same where that thread starts runs. The plans below a directory are offered.
    #[must_use]
    pub fn with_plans(self, plans: &Path) -> Self {
        Self {
            plans: Some(Arc::new(Plans::below(plans))),
            ..self
        }
    }
}
