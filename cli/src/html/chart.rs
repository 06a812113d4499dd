//! Charts of a phase: what passed on the wire, the window and the send queue over virtual time.
//!
//! Plain SVG; the numbers are in the page as text, too.

use std::fmt::Write;

use softrnic_sim::ladder::Told;
use softrnic_sim::{Bucket, PhaseReport, Series};

use super::{bit_rate, duration, escape, number};

/// Width and height of a plot in its own units; the page stretches it.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 100.0;
/// Marks on a time axis at most.
const MARKS_MAX: usize = 8;

/// One curve.
struct Curve {
    class: &'static str,
    name: &'static str,
    values: Vec<f64>,
}

/// The three charts of a phase.
pub(super) fn phase(out: &mut String, phase: &PhaseReport, told: &[&Told]) {
    let series = &phase.series;
    if series.buckets().is_empty() {
        return;
    }
    let rate = |bytes: u64| bytes as f64 * 8e9 / series.bucket_ns() as f64;
    let curve = |class, name, value: &dyn Fn(&Bucket) -> f64| {
        let values = series.buckets().iter().map(value).collect();
        Curve { class, name, values }
    };
    let mut wire = vec![curve("requests", "to the peer", &|b| rate(b.request_bytes))];
    wire.push(curve("responses", "back", &|b| rate(b.response_bytes)));
    wire.push(curve("wasted", "lost or sent again", &|b| rate(b.wasted_bytes)));
    wire.retain(|curve| curve.class == "requests" || curve.values.iter().any(|&value| value > 0.0));
    let window = [curve("window", "packets", &|b| b.window.into())];
    let depth = [curve("depth", "work requests", &|b| b.depth.into())];
    let count = |value: f64| number(value as u64);
    out.push_str("<div class=\"charts\">\n");
    chart(out, series, told, "Throughput on the wire", &wire, &|value| bit_rate(value as u64));
    chart(out, series, told, "Outstanding window, packets", &window, &count);
    chart(out, series, told, "Send queue depth, work requests", &depth, &count);
    out.push_str("</div>\n");
}

fn chart(
    out: &mut String,
    series: &Series,
    told: &[&Told],
    title: &str,
    curves: &[Curve],
    show: &dyn Fn(f64) -> String,
) {
    let most = curves.iter().flat_map(|curve| &curve.values).fold(0.0, |most: f64, &v| most.max(v));
    let span = series.bucket_ns() * series.buckets().len() as u64;
    let peak = show(most);
    let _ = write!(
        out,
        "<figure class=\"chart\" data-span=\"{span}\">\n<figcaption><b>{title}</b> <output>peak {peak}</output>\
         </figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{title} over {}: peak {peak}\">\n<path class=\"grid\" d=\"M0 2H{WIDTH}M0 51H{WIDTH}M0 \
         {HEIGHT}H{WIDTH}\"/>\n",
        duration(span),
    );
    for curve in curves {
        let shown = curve.values.iter().map(|&value| show(value)).collect::<Vec<_>>().join("|");
        let _ = writeln!(
            out,
            "<path class=\"curve {}\" data-name=\"{}\" data-values=\"{shown}\" d=\"{}\"/>",
            curve.class,
            curve.name,
            steps(&curve.values, most)
        );
    }
    for told in told.iter().take(MARKS_MAX) {
        let since = told.first.0.saturating_sub(series.start().0) as f64;
        let x = (since / span as f64 * WIDTH).min(WIDTH);
        let what = escape(&told.what);
        let _ = writeln!(
            out,
            "<path class=\"event\" d=\"M{x:.1} 0V{HEIGHT}\"><title>{what}</title></path>"
        );
    }
    let _ = write!(
        out,
        "</svg>\n<p class=\"axis\"><span>0</span><span>{}</span></p>\n",
        duration(span)
    );
    if curves.len() > 1 {
        out.push_str("<p class=\"legend\">");
        for curve in curves {
            let _ = write!(out, "<span class=\"{}\">{}</span> ", curve.class, curve.name);
        }
        out.push_str("</p>\n");
    }
    out.push_str("</figure>\n");
}

/// A path of steps over the baseline; buckets of equal value are one step.
fn steps(values: &[f64], most: f64) -> String {
    let x = |i: usize| i as f64 / values.len() as f64 * WIDTH;
    let y = |value: f64| HEIGHT - if most > 0.0 { value / most * (HEIGHT - 2.0) } else { 0.0 };
    let mut path = format!("M0 {HEIGHT}");
    for (i, &value) in values.iter().enumerate() {
        if i == 0 || values[i - 1] != value {
            let _ = write!(path, "H{:.1}V{:.1}", x(i), y(value));
        }
    }
    let _ = write!(path, "H{WIDTH}V{HEIGHT}Z");
    path
}

#[cfg(test)]
mod tests {
    use super::steps;

    #[test]
    fn equal_values_are_one_step() {
        let path = steps(&[0.0, 5.0, 5.0, 10.0], 10.0);
        assert_eq!(path, "M0 100H0.0V100.0H100.0V51.0H300.0V2.0H400V100Z");
        assert_eq!(steps(&[0.0], 0.0), "M0 100H0.0V100.0H400V100Z");
    }
}
