//! Commands, and what became of them.

/// A command to run in a target or a client: program and arguments, no shell.
pub type CommandLine = Vec<String>;

/// What a finished command left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finished {
    /// Exit code; 128 + signal where it was killed.
    pub code: i32,
    /// Standard output, untouched.
    pub stdout: Vec<u8>,
    /// Standard error, untouched.
    pub stderr: Vec<u8>,
}

/// A command that runs in a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job(pub u64);
