//! Names of threads that run now and then, whatever their rank does. A rank whose other threads sleep does nothing.

/// Answers desync reports for the rank, and publishes its pace.
pub const DESYNC_REPORT: &str = "desync report";

/// Waits for messages of Gloo's TCP connections. The shim names it (`gloo_options` in group.cpp).
pub const GLOO: &str = "gloo transport";

/// Looks whether an answer of an exercise sleeps.
pub const SLEEP_WATCH: &str = "sleep watch";

/// All of them.
pub const THREADS: [&str; 3] = [DESYNC_REPORT, GLOO, SLEEP_WATCH];
