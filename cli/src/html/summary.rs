//! The run in a few lines of text, to paste into a bug report.

use std::fmt::Write;

use crate::ladder::draw::{Color, Drawing};

use super::Page;

/// Verdict, failures, and the ladder of the first failed phase, or of the first story.
pub(super) fn text(page: &Page<'_>) -> String {
    let report = page.report;
    let mut text = format!(
        "{}: {}\nrnic {}, {}\n",
        page.verdict(),
        report.scenario,
        env!("CARGO_PKG_VERSION"),
        page.command
    );
    for phase in report.phases.iter().filter(|phase| phase.failure_count > 0) {
        let (right, all) = (phase.messages, phase.expected_messages);
        let _ = writeln!(text, "\nphase {:?}: {right} of {all} messages are right", phase.name);
        for failure in &phase.failures {
            let _ = writeln!(text, "  {failure}");
        }
    }
    let failed = |phase: usize| report.phases.get(phase).is_some_and(|p| p.failure_count > 0);
    let story = page.stories.iter().find(|story| failed(story.phase)).or(page.stories.first());
    if let Some(story) = story {
        let names: Vec<_> = report.nodes.iter().map(|node| node.name.as_str()).collect();
        let _ = writeln!(text, "\n{}", story.title);
        let mut lines = Vec::new();
        let mut drawing = Drawing::new(Color::Never, softrnic_engine::Nanos(0));
        // Writing to memory cannot fail.
        let _ = drawing.excerpt(&mut lines, &story.steps, &names);
        text.push_str(&String::from_utf8_lossy(&lines));
    }
    text
}
