//! Analyses of runs, kept until a trial is added.

use crate::results::changed;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;
use vtax_report::analysis::{Analysis, analyse};
use vtax_report::results::ResultsDir;

/// Analyses that are kept.
const MOST: usize = 16;

/// Analyses by the directory of their run.
pub type Analyses = Kept<Analysis>;

/// What is made of runs.
#[derive(Debug)]
pub struct Kept<T> {
    kept: Mutex<HashMap<PathBuf, Arc<Slot<T>>>>,
}

/// One of them.
#[derive(Debug)]
struct Slot<T> {
    /// When the run had changed last.
    at: SystemTime,
    made: OnceLock<Result<Arc<T>, String>>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
        }
    }
}

impl Analyses {
    /// The analysis of a run.
    ///
    /// # Errors
    /// When its trials cannot be read; in words.
    pub fn of(&self, results: &ResultsDir) -> Result<Arc<Analysis>, String> {
        self.get(results.path(), changed(results.dir(), "trials"), || {
            analyse(results).map_err(|error| error.to_string())
        })
    }
}

impl<T> Kept<T> {
    /// What was made of a run that has changed `at` last, or what is made now. Two who ask for it at once get one;
    /// nobody waits for that of another run.
    fn get(
        &self,
        path: &Path,
        at: Option<SystemTime>,
        make: impl FnOnce() -> Result<T, String>,
    ) -> Result<Arc<T>, String> {
        let make = || make().map(Arc::new);
        let Some(at) = at else {
            return make();
        };
        let slot = self.slot(path, at);
        let made = slot.made.get_or_init(make).clone();
        if made.is_err() {
            // What went wrong once may go well the next time.
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.get(path).is_some_and(|is| Arc::ptr_eq(is, &slot)) {
                kept.remove(path);
            }
        }
        made
    }

    fn slot(&self, path: &Path, at: SystemTime) -> Arc<Slot<T>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = kept.get(path)
            && slot.at == at
        {
            return Arc::clone(slot);
        }
        if kept.len() >= MOST {
            kept.clear();
        }
        let slot = Arc::new(Slot {
            at,
            made: OnceLock::new(),
        });
        kept.insert(path.to_owned(), Arc::clone(&slot));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Far beyond what anything here takes.
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn nobody_waits_for_the_analysis_of_another_run_and_everybody_for_that_of_the_same() {
        let kept = Arc::new(Kept::<u32>::default());
        let at = Some(SystemTime::UNIX_EPOCH);
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let ask = |path: &'static str, make: Box<dyn FnOnce() -> Result<u32, String> + Send>| {
            let (kept, tell) = (Arc::clone(&kept), tell.clone());
            std::thread::spawn(move || {
                let made = kept.get(Path::new(path), at, make);
                tell.send((path, *made.unwrap())).unwrap();
            });
        };
        ask(
            "slow",
            Box::new(move || {
                begun.send(()).unwrap();
                wait.recv_timeout(SOON).map_err(|cause| cause.to_string())?;
                Ok(1)
            }),
        );
        begins.recv_timeout(SOON).unwrap();
        ask("slow", Box::new(|| Err("it is made twice".to_owned())));
        ask("quick", Box::new(|| Ok(2)));
        assert_eq!(told.recv_timeout(SOON / 2).unwrap(), ("quick", 2));
        go.send(()).unwrap();
        for _ in 0..2 {
            assert_eq!(told.recv_timeout(SOON).unwrap(), ("slow", 1));
        }
    }

    #[test]
    fn a_failure_is_not_kept_and_neither_is_what_was_made_before_a_change() {
        let kept = Kept::<u32>::default();
        let path = Path::new("run");
        let at = SystemTime::UNIX_EPOCH;
        let later = at + Duration::from_secs(1);
        assert!(kept.get(path, Some(at), || Err("torn".to_owned())).is_err());
        assert_eq!(*kept.get(path, Some(at), || Ok(1)).unwrap(), 1);
        assert_eq!(*kept.get(path, Some(at), || Ok(2)).unwrap(), 1);
        assert_eq!(*kept.get(path, Some(later), || Ok(3)).unwrap(), 3);
        assert_eq!(*kept.get(path, None, || Ok(4)).unwrap(), 4);
    }
}
