// SPDX-License-Identifier: Apache-2.0
//! Passes that fail, in the log of a program that serves their numbers.

use tracing::{info, warn};

/// Passes that fail one after the other, for the log.
#[derive(Debug, Default)]
pub struct Outage {
    failed: u64,
    logged: Option<String>,
}

impl Outage {
    /// A pass has failed. It is logged if it is the first one, or fails for another reason than the one before.
    pub fn fail(&mut self, why: &str) {
        self.failed += 1;
        if self.logged.as_deref() != Some(why) {
            warn!("a pass failed, and the numbers of the last good one are kept: {why}");
            self.logged = Some(why.to_owned());
        }
    }

    /// A pass has succeeded.
    pub fn succeed(&mut self) {
        if std::mem::take(&mut self.logged).is_some() {
            info!(
                "passes succeed again, {} failed",
                std::mem::take(&mut self.failed)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_in_the_log_once_for_each_reason_with_its_end() {
        let logged = vtax_log::testing::logged(|| {
            let mut outage = Outage::default();
            outage.succeed();
            for why in ["no file", "no file", "no memory"] {
                outage.fail(why);
            }
            outage.succeed();
            outage.succeed();
        });
        let of = "vtax_serve::outage";
        let failed = "a pass failed, and the numbers of the last good one are kept";
        assert_eq!(
            logged.lines().collect::<Vec<_>>(),
            [
                format!("<4>{of}: {failed}: no file"),
                format!("<4>{of}: {failed}: no memory"),
                format!("<6>{of}: passes succeed again, 3 failed"),
            ]
        );
    }
}
