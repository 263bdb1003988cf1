// SPDX-License-Identifier: Apache-2.0
//! Problems that are reported once, although most passes find them again.

use std::collections::HashSet;

/// Limit on the remembered problems: their texts may name guests, which start and end.
const MAX_PROBLEMS: usize = 1000;

/// The problems that were reported.
#[derive(Debug, Default)]
pub struct Problems(HashSet<String>);

impl Problems {
    /// Reports the problems that are new.
    pub fn report_new<'a>(
        &mut self,
        problems: impl IntoIterator<Item = &'a String>,
        report: &mut dyn FnMut(&str),
    ) {
        for problem in problems {
            if self.0.len() < MAX_PROBLEMS && self.0.insert(problem.clone()) {
                report(problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_reported_once_and_no_number_of_problems_fills_the_memory() {
        let mut reported = Problems::default();
        let mut lines = 0;
        for number in 0..3 * MAX_PROBLEMS {
            let problems = [number.to_string(), "again".to_owned()];
            reported.report_new(&problems, &mut |_| lines += 1);
        }
        assert_eq!((lines, reported.0.len()), (MAX_PROBLEMS, MAX_PROBLEMS));
    }
}
