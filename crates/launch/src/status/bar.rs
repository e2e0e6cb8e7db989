//! The line on the terminal.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{AgentView, Tail, line};

/// How often the event files are read; more often would not be visible.
const EVERY: Duration = Duration::from_millis(250);

/// A status line that is kept up to date.
#[derive(Debug)]
pub struct Status {
    tail: Option<Tail>,
    looked: Option<Duration>,
    /// Redrawn in place, on stderr.
    bar: ProgressBar,
}

impl Status {
    /// A status on this process's stderr, with events that ranks write to `events_folder` from now on. If stderr is not
    /// a terminal, it draws nothing.
    pub fn new(events_folder: Option<&Path>) -> Self {
        Self::on(events_folder, ProgressDrawTarget::stderr_with_hz(10))
    }

    fn on(events_folder: Option<&Path>, target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        // The template is a constant. Without a style the message would only not be truncated at the edge.
        let bar = ProgressStyle::with_template("{wide_msg}").map_or(bar.clone(), |style| bar.with_style(style));
        Status { tail: events_folder.map(Tail::new), looked: None, bar }
    }

    /// The bar that is drawn: other writers to the terminal suspend it.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Shows `view`. May be called often: files are read at most four times a second.
    pub fn update(&mut self, view: &AgentView) {
        let due = self.looked.is_none_or(|looked| view.elapsed.saturating_sub(looked) >= EVERY);
        if let Some(tail) = self.tail.as_mut().filter(|_| due) {
            tail.poll(view.elapsed);
            self.looked = Some(view.elapsed);
        }
        let none = Default::default();
        let progress = self.tail.as_ref().map_or(&none, Tail::progress);
        let late = self.tail.as_ref().and_then(Tail::late);
        self.bar.set_message(line(view, progress, late, width()));
    }

    /// Removes the status.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The width of the terminal in columns; if unknown, wider than any.
fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    if columns == 0 { usize::MAX } else { usize::from(columns) }
}

#[cfg(test)]
mod tests {
    use super::super::AgentPhase;
    use super::*;

    fn view(phase: AgentPhase, restarts: u32) -> AgentView {
        AgentView { phase, ranks: 2, nodes: 1, restarts, max_restarts: 3, elapsed: Duration::from_secs(1) }
    }

    #[test]
    fn reads_the_files_only_after_the_interval() {
        let dir = tempfile::tempdir().unwrap();
        let mut status = Status::on(Some(dir.path()), ProgressDrawTarget::hidden());
        let message = |status: &Status| status.bar.message();
        status.update(&view(AgentPhase::Running, 0));
        let sink = lockstep_events::EventSink::open(dir.path(), 0, 0).unwrap();
        sink.emit(&lockstep_events::Event::Step { epoch: 0, step: 6, loss: 0.5, samples: 1 });
        status.update(&AgentView { elapsed: Duration::from_millis(1249), ..view(AgentPhase::Running, 0) });
        assert!(!message(&status).contains("epoch"), "{}", message(&status));
        status.update(&AgentView { elapsed: Duration::from_millis(1250), ..view(AgentPhase::Running, 0) });
        assert!(message(&status).contains("epoch 0 step 7 · loss 0.5000"), "{}", message(&status));
        status.finish();
    }
}
