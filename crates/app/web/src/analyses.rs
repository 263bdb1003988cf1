// SPDX-License-Identifier: Apache-2.0
//! Analyses of runs, cached until a trial is added.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;
use vtax_files::Dir;
use vtax_report::analysis::{Analysis, analyse};
use vtax_results::{ResultsDir, ResultsError};

/// Analyses by the directory of their run.
pub type Analyses = Cache<Analysis>;

type Computed<T> = Result<Arc<T>, Arc<ResultsError>>;

/// Values that are computed from runs, at most `MOST` of them.
#[derive(Debug)]
pub struct Cache<T, const MOST: usize = 16> {
    slots: Mutex<HashMap<PathBuf, Arc<Slot<T>>>>,
}

#[derive(Debug)]
struct Slot<T> {
    /// The time of the last change of the run.
    at: SystemTime,
    computed: OnceLock<Computed<T>>,
}

impl<T, const MOST: usize> Default for Cache<T, MOST> {
    fn default() -> Self {
        Self {
            slots: Mutex::default(),
        }
    }
}

impl Analyses {
    /// The analysis of a run.
    ///
    /// # Errors
    /// When its trials cannot be read.
    pub fn analysis(&self, results: &ResultsDir) -> Result<Arc<Analysis>, Arc<ResultsError>> {
        self.get(results.path(), changed(results.dir(), "trials"), || {
            analyse(results)
        })
    }
}

impl<T, const MOST: usize> Cache<T, MOST> {
    /// The value of a run whose last change was `at`. Concurrent callers share one computation. Computations of
    /// different runs do not wait for each other.
    pub fn get(
        &self,
        path: &Path,
        at: Option<SystemTime>,
        compute: impl FnOnce() -> Result<T, ResultsError>,
    ) -> Computed<T> {
        let compute = || compute().map(Arc::new).map_err(Arc::new);
        let Some(at) = at else {
            return compute();
        };
        let slot = self.slot(path, at);
        let computed = slot.computed.get_or_init(compute).clone();
        if computed.is_err() {
            // The next attempt may succeed.
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            if slots.get(path).is_some_and(|is| Arc::ptr_eq(is, &slot)) {
                slots.remove(path);
            }
        }
        computed
    }

    fn slot(&self, path: &Path, at: SystemTime) -> Arc<Slot<T>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(path)
            && slot.at == at
        {
            return Arc::clone(slot);
        }
        if slots.len() >= MOST {
            slots.clear();
        }
        let slot = Arc::new(Slot {
            at,
            computed: OnceLock::new(),
        });
        slots.insert(path.to_owned(), Arc::clone(&slot));
        slot
    }
}

/// The time of the last change of a file or directory.
pub fn changed(dir: &Dir, below: impl AsRef<Path>) -> Option<SystemTime> {
    dir.metadata(below).ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn failure() -> ResultsError {
        ResultsError::NotARun(PathBuf::from("run"))
    }

    /// A timeout far above the duration of any step here.
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn nobody_waits_for_the_analysis_of_another_run_and_everybody_for_that_of_the_same() {
        let kept = Arc::new(<Cache<u32>>::default());
        let at = Some(SystemTime::UNIX_EPOCH);
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let (report, reported) = mpsc::channel();
        let ask = |path: &'static str,
                   make: Box<dyn FnOnce() -> Result<u32, ResultsError> + Send>| {
            let (kept, report) = (Arc::clone(&kept), report.clone());
            std::thread::spawn(move || {
                let made = kept.get(Path::new(path), at, make);
                report.send((path, *made.unwrap())).unwrap();
            });
        };
        ask(
            "slow",
            Box::new(move || {
                begun.send(()).unwrap();
                wait.recv_timeout(SOON).map_err(|_| failure())?;
                Ok(1)
            }),
        );
        begins.recv_timeout(SOON).unwrap();
        ask("slow", Box::new(|| Err(failure())));
        ask("quick", Box::new(|| Ok(2)));
        assert_eq!(reported.recv_timeout(SOON / 2).unwrap(), ("quick", 2));
        go.send(()).unwrap();
        for _ in 0..2 {
            assert_eq!(reported.recv_timeout(SOON).unwrap(), ("slow", 1));
        }
    }

    #[test]
    fn a_failure_is_not_kept_and_neither_is_what_was_made_before_a_change() {
        let kept = <Cache<u32>>::default();
        let path = Path::new("run");
        let at = SystemTime::UNIX_EPOCH;
        let later = at + Duration::from_secs(1);
        assert!(kept.get(path, Some(at), || Err(failure())).is_err());
        assert_eq!(*kept.get(path, Some(at), || Ok(1)).unwrap(), 1);
        assert_eq!(*kept.get(path, Some(at), || Ok(2)).unwrap(), 1);
        assert_eq!(*kept.get(path, Some(later), || Ok(3)).unwrap(), 3);
        assert_eq!(*kept.get(path, None, || Ok(4)).unwrap(), 4);
    }
}
