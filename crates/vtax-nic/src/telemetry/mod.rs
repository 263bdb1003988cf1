//! What each port counts, and how it is shown.
