// SPDX-License-Identifier: Apache-2.0
//! The account of a port's populated memory: pages that its front ends share and this program touches first, so that
//! the kernel charges them to this program.

use crate::hold::Nanos;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The time in which a whole account recovers after its front end has gone. The front end may keep the pages
/// unnoticed.
const RECOVERY_TIME: Nanos = Nanos::from_secs(3_600);

/// Whether half of any account was ever used.
static ANY_HALF_USED: AtomicBool = AtomicBool::new(false);

/// Whether half of any account was ever used. If not, no account needs to be checked.
pub fn any_half_used() -> bool {
    ANY_HALF_USED.load(Ordering::Relaxed)
}

/// The account of one port, for as long as the program runs.
#[derive(Debug)]
pub struct Account {
    most: u64,
    /// Whether a warning that half of it is used is due.
    to_warn: AtomicBool,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// Bytes populated for the front end that is connected.
    populated: u64,
    /// Bytes populated for front ends that have gone, less those recovered since.
    left: u64,
    left_at: Nanos,
    /// Whether half of it was used, and since then never less than a quarter.
    is_half_used: bool,
    is_overdrawn: bool,
}

impl Account {
    /// An account of `most` bytes.
    pub fn with_limit(most: u64) -> Self {
        Self {
            most,
            to_warn: AtomicBool::new(false),
            books: Mutex::default(),
        }
    }

    fn with<T>(&self, now: Nanos, change: impl FnOnce(&mut Books) -> T) -> T {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let (most, time) = (
            u128::from(self.most),
            u128::from(now.since(books.left_at).0),
        );
        let back = most * time / u128::from(RECOVERY_TIME.0);
        if back > 0 {
            books.left = books
                .left
                .saturating_sub(u64::try_from(back).unwrap_or(u64::MAX));
            books.left_at = now;
        }
        change(&mut books)
    }

    /// Takes `bytes` off the account. Returns `false` if it has fewer, and from then on until the front end has gone.
    pub(super) fn take(&self, bytes: u64, now: Nanos) -> bool {
        self.with(now, |books| {
            let used = books.populated.saturating_add(books.left);
            books.is_overdrawn |= used.saturating_add(bytes) > self.most;
            if !books.is_overdrawn {
                books.populated += bytes;
            }
            books.is_half_used &= used >= self.most / 4;
            let uses_half = used.saturating_add(bytes) >= self.most.div_ceil(2);
            if uses_half && !std::mem::replace(&mut books.is_half_used, true) {
                self.to_warn.store(true, Ordering::Relaxed);
                ANY_HALF_USED.store(true, Ordering::Relaxed);
            }
            !books.is_overdrawn
        })
    }

    /// Puts back bytes that were taken and not used.
    pub(super) fn give_back(&self, bytes: u64, now: Nanos) {
        self.with(now, |books| {
            books.populated = books.populated.saturating_sub(bytes)
        });
    }

    /// Whether a page was refused for lack of bytes.
    pub fn is_overdrawn(&self) -> bool {
        self.with(Nanos::ZERO, |books| books.is_overdrawn)
    }

    /// A warning that half of it is used: once, until less than a quarter was. It is never due more than a few
    /// times an hour, whatever a front end does.
    pub fn take_warning(&self) -> Option<AccountWarning> {
        // The account is shared with the pager alone, which only sets it.
        self.to_warn
            .swap(false, Ordering::Relaxed)
            .then_some(AccountWarning(self.most))
    }

    /// Notes that the front end has gone. Its bytes recover with time.
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

/// Half of an account of so many bytes is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "half of the {0} bytes that may be populated for it are used, and at the end of them it is disconnected: \
     preallocate the guest's memory (prealloc=on), or raise limits.populate"
)]
pub struct AccountWarning(u64);

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn an_account_ends_where_it_was_set_and_stays_ended() {
        let account = Account::with_limit(2 * PAGE);
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
    fn an_account_of_which_half_is_used_warns_once_until_most_of_it_has_come_back() {
        let account = Account::with_limit(6 * PAGE);
        let now = Nanos::from_secs(5);
        assert!(account.take(PAGE, now) && account.take(PAGE, now));
        assert_eq!(account.take_warning(), None);
        assert!(account.take(PAGE, now) && any_half_used());
        let warning = account.take_warning().map(|warning| warning.to_string());
        assert!(
            warning.is_some_and(
                |text| text.contains("24576 bytes") && text.contains("limits.populate")
            )
        );
        assert!(account.take(PAGE, now));
        assert_eq!(account.take_warning(), None);
        account.front_end_left(now);
        assert!(account.take(PAGE, now));
        assert_eq!(account.take_warning(), None, "five of six are used");
        account.front_end_left(now);
        let later = now + RECOVERY_TIME;
        (0..3).for_each(|_| assert!(account.take(PAGE, later)));
        assert_eq!(account.take_warning(), Some(AccountWarning(6 * PAGE)));
    }

    #[test]
    fn front_ends_that_come_and_go_get_no_more_than_comes_back_with_time() {
        let account = Account::with_limit(100 * PAGE);
        let (start, mut populated) = (Nanos::from_secs(7), 0);
        for second in 0..3_600 {
            let now = start + Nanos::from_secs(second);
            while account.take(PAGE, now) {
                populated += 1;
            }
            account.front_end_left(now);
        }
        // The whole account, and the bytes that recover within the hour.
        assert!((190..=200).contains(&populated), "{populated}");
    }

    #[test]
    fn nothing_comes_back_while_the_front_end_is_there() {
        let account = Account::with_limit(PAGE);
        assert!(account.take(PAGE, Nanos::from_secs(1)));
        assert!(!account.take(PAGE, Nanos::from_secs(100_000)));
    }

    #[test]
    fn a_front_end_that_went_long_ago_leaves_the_next_all() {
        let account = Account::with_limit(PAGE);
        assert!(account.take(PAGE, Nanos::from_secs(1)));
        account.front_end_left(Nanos::from_secs(2));
        assert!(!account.take(PAGE, Nanos::from_secs(1_802)));
        account.front_end_left(Nanos::from_secs(1_802));
        assert!(account.take(PAGE, Nanos::from_secs(3_602)));
    }
}
