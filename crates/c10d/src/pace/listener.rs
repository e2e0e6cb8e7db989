//! Who hears of findings: stderr, unless the program has somebody better.

use std::sync::{Mutex, PoisonError};

use super::Finding;

type Listener = Box<dyn Fn(&str, Option<&Finding>) + Send>;

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// From now on passes what rank 0 finds to `listener`, as one line without a line break, in place of printing it to stderr. The line
/// at the end of a job, which sums up, comes without a finding.
pub fn listen(listener: impl Fn(&str, Option<&Finding>) + Send + 'static) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
}

pub(super) fn say(line: &str, finding: Option<&Finding>) {
    match &*LISTENER.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(listener) => listener(line, finding),
        None => eprintln!("warning: {line}"),
    }
}
