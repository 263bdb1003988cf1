//! Sources of joules, one file each.
