//! Counter sources, one file each. Every constructor takes the root of the tree that it reads
//! (`/proc`, `/sys`), so that tests run on fake trees.
