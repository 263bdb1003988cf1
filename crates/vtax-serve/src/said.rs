//! Problems that are said once: passes find most of them again and again.

use std::collections::HashSet;

/// Not for ever: problems may name what comes and goes.
const MOST: usize = 1000;

/// What was said.
#[derive(Debug, Default)]
pub struct Said(HashSet<String>);

impl Said {
    /// Says what was not said yet.
    pub fn say_new<'a>(
        &mut self,
        problems: impl IntoIterator<Item = &'a String>,
        say: &mut dyn FnMut(&str),
    ) {
        for problem in problems {
            if self.0.len() < MOST && self.0.insert(problem.clone()) {
                say(problem);
            }
        }
    }
}

#[cfg(test)]
#[test]
fn a_problem_is_said_once_and_no_number_of_problems_fills_the_memory() {
    let mut said = Said::default();
    let mut lines = 0;
    for number in 0..3 * MOST {
        let problems = [number.to_string(), "again".to_owned()];
        said.say_new(&problems, &mut |_| lines += 1);
    }
    assert_eq!((lines, said.0.len()), (MOST, MOST));
}
