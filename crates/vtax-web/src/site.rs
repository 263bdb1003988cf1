//! What is served: each part of it, as the answers find it.

use crate::analyses::Analyses;
use crate::keeper::Keeper;
use crate::live::Live;
use crate::machines::Machines;
use crate::plans::Plans;
use crate::results::Results;
use crate::runs::Runs;
use std::path::Path;
use std::sync::Arc;

/// What is served.
#[derive(Debug, Clone)]
pub struct Site {
    pub(crate) live: Arc<Live>,
    pub(crate) results: Arc<Results>,
    pub(crate) analyses: Arc<Analyses>,
    pub(crate) runs: Arc<Runs>,
    /// None: nothing is started here.
    pub(crate) plans: Option<Arc<Plans>>,
    pub(crate) machines: Arc<Machines>,
    pub(crate) keeper: Option<Keeper>,
}

impl Site {
    /// The live host, and the results below a directory; `state` is the directory of vtax's state.
    pub fn new(live: Arc<Live>, results: &Path, state: &Path) -> Self {
        Self {
            live,
            results: Arc::new(Results::below(results)),
            analyses: Arc::default(),
            runs: Arc::new(Runs::of(state, None)),
            plans: None,
            machines: Arc::default(),
            keeper: None,
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

    /// The same, where a thread with more rights sees which lab runs.
    #[must_use]
    pub fn with_keeper(self, state: &Path, keeper: Keeper) -> Self {
        Self {
            runs: Arc::new(Runs::of(state, Some(keeper.clone()))),
            keeper: Some(keeper),
            ..self
        }
    }

    /// The same, where that thread starts runs, of the plans below a directory among others.
    #[must_use]
    pub fn with_plans(self, plans: &Path) -> Self {
        Self {
            plans: Some(Arc::new(Plans::below(plans))),
            ..self
        }
    }
}
