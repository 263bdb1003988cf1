//! What is served: each part of it, as the answers find it.

use crate::comparison::Analyses;
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
    pub(crate) plans: Arc<Plans>,
    pub(crate) machines: Arc<Machines>,
    /// None: nothing is started here.
    pub(crate) keeper: Option<Keeper>,
}

impl Site {
    /// The live host, and the results below a directory; `state` is the directory of vtax's state.
    pub fn new(live: Arc<Live>, results: &Path, state: &Path) -> Self {
        Self {
            live,
            results: Arc::new(Results::below(results)),
            analyses: Arc::default(),
            runs: Arc::new(Runs::of(state)),
            plans: Arc::new(Plans::below(Path::new("plans"))),
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

    /// The same, where runs of the plans below a directory can be started.
    #[must_use]
    pub fn with_runs(self, plans: &Path, keeper: Keeper) -> Self {
        Self {
            plans: Arc::new(Plans::below(plans)),
            keeper: Some(keeper),
            ..self
        }
    }
}
