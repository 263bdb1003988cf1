// SPDX-License-Identifier: Apache-2.0
//! Waiting for what another process does.

use std::convert::Infallible;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Repeats an attempt until it returns a value, with a pause after each; `None` where it returns none within `limit`.
///
/// # Errors
/// The attempt's.
pub fn within<T, E>(
    limit: Duration,
    pause: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let deadline = Instant::now() + limit;
    loop {
        let found = attempt()?;
        if found.is_some() || Instant::now() >= deadline {
            return Ok(found);
        }
        sleep(pause);
    }
}

/// Whether a condition holds within `limit`; it is tested after each pause.
pub fn holds_within(limit: Duration, pause: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let held = within(limit, pause, || Ok::<_, Infallible>(holds().then_some(())));
    held.is_ok_and(|held| held.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_the_wait_and_the_limit_does_and_an_error_does() {
        let (limit, pause) = (Duration::from_millis(20), Duration::from_millis(1));
        let mut left = 3;
        let mut attempt = || {
            left -= 1;
            Ok::<_, ()>((left == 0).then_some("there"))
        };
        assert_eq!(within(limit, pause, &mut attempt), Ok(Some("there")));
        assert_eq!(
            within(limit, pause, || Ok::<Option<()>, ()>(None)),
            Ok(None)
        );
        assert_eq!(
            within(limit, pause, || Err::<Option<()>, _>("why")),
            Err("why")
        );
        assert!(!holds_within(limit, pause, || false));
        // The condition is tested once more at the end.
        assert!(holds_within(Duration::ZERO, pause, || true));
    }
}
