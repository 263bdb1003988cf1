//! How many bytes of the memory that a port's front ends share this program has populated: pages that nobody had
//! touched before, which the kernel charges to whoever touches them first.

use crate::hold::Nanos;
use std::sync::{Mutex, PoisonError};

/// How long the whole of an account takes to come back after its front end has gone. A front end may keep the pages,
/// and nobody can see whether it does.
const RETURNS_IN: Nanos = Nanos::from_secs(3_600);

/// The account of one port, for as long as the program runs.
#[derive(Debug)]
pub struct Account {
    most: u64,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// Bytes populated for the front end that is connected.
    populated: u64,
    /// Bytes populated for front ends that have gone, less what has come back since.
    left: u64,
    left_at: Nanos,
    is_overdrawn: bool,
}

impl Account {
    /// An account of `most` bytes.
    pub fn of(most: u64) -> Self {
        Self {
            most,
            books: Mutex::default(),
        }
    }

    fn with<T>(&self, now: Nanos, change: impl FnOnce(&mut Books) -> T) -> T {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let (most, time) = (
            u128::from(self.most),
            u128::from(now.since(books.left_at).0),
        );
        let back = most * time / u128::from(RETURNS_IN.0);
        if back > 0 {
            books.left = books
                .left
                .saturating_sub(u64::try_from(back).unwrap_or(u64::MAX));
            books.left_at = now;
        }
        change(&mut books)
    }

    /// Takes `bytes` off it; `false` if it has fewer, and from then on until the front end has gone.
    pub(super) fn take(&self, bytes: u64, now: Nanos) -> bool {
        self.with(now, |books| {
            let used = books.populated.saturating_add(books.left);
            books.is_overdrawn |= used.saturating_add(bytes) > self.most;
            if !books.is_overdrawn {
                books.populated += bytes;
            }
            !books.is_overdrawn
        })
    }

    /// Puts back what was taken and not used.
    pub(super) fn give_back(&self, bytes: u64, now: Nanos) {
        self.with(now, |books| {
            books.populated = books.populated.saturating_sub(bytes)
        });
    }

    /// Whether a page was wanted that it had no bytes for.
    pub fn is_overdrawn(&self) -> bool {
        self.with(Nanos::ZERO, |books| books.is_overdrawn)
    }

    /// The front end has gone: another may come, and finds what comes back with time.
    pub fn front_end_left(&self, now: Nanos) {
        self.with(now, |books| {
            books.left = books
                .left
                .saturating_add(std::mem::take(&mut books.populated));
            books.left_at = now;
            books.is_overdrawn = false;
        });
    }

    /// Its bytes.
    pub fn most(&self) -> u64 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn an_account_ends_where_it_was_set_and_stays_ended() {
        let account = Account::of(2 * PAGE);
        let now = Nanos::from_secs(5);
        assert!(account.take(PAGE, now) && account.take(PAGE, now));
        assert!(!account.is_overdrawn());
        assert!(!account.take(PAGE, now) && account.is_overdrawn());
        account.give_back(2 * PAGE, now);
        assert!(
            !account.take(PAGE, now),
            "its port is about to be disconnected"
        );
    }

    #[test]
    fn front_ends_that_come_and_go_get_no_more_than_comes_back_with_time() {
        let account = Account::of(100 * PAGE);
        let (start, mut populated) = (Nanos::from_secs(7), 0);
        for second in 0..3_600 {
            let now = start + Nanos::from_secs(second);
            while account.take(PAGE, now) {
                populated += 1;
            }
            account.front_end_left(now);
        }
        // What there was, and what came back within the hour.
        assert!((190..=200).contains(&populated), "{populated}");
    }

    #[test]
    fn nothing_comes_back_while_the_front_end_is_there() {
        let account = Account::of(PAGE);
        assert!(account.take(PAGE, Nanos::from_secs(1)));
        assert!(!account.take(PAGE, Nanos::from_secs(100_000)));
    }

    #[test]
    fn a_front_end_that_went_long_ago_leaves_the_next_all() {
        let account = Account::of(PAGE);
        assert!(account.take(PAGE, Nanos::from_secs(1)));
        account.front_end_left(Nanos::from_secs(2));
        assert!(!account.take(PAGE, Nanos::from_secs(1_802)));
        account.front_end_left(Nanos::from_secs(1_802));
        assert!(account.take(PAGE, Nanos::from_secs(3_602)));
    }
}
