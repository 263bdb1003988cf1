//! Controllers that decide how long a notification is held back.
