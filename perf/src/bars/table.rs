//! The bars as one table for people.

use std::io::{self, Write};

use super::{Outcome, Spread};

/// Writes outcomes as a table, with their notes behind it.
///
/// # Errors
/// If that cannot be written.
pub fn write_table(outcomes: &[Outcome], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<10} {:<48} {:>12} {:>12} {:<9} {:>6} {:>6} {:>6}  {:>7}",
        "bar", "what", "product", "yardstick", "", "min", "ratio", "max", "wanted"
    )?;
    for outcome in outcomes {
        let side = |spread: Option<Spread>| spread.map_or("-".to_owned(), |spread| number(spread.median));
        let verdict = match outcome.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "not built",
        };
        let part = |of: fn(Spread) -> f64| outcome.ratio.map_or("-".to_owned(), |ratio| format!("{:.2}", of(ratio)));
        writeln!(
            out,
            "{:<10} {:<48} {:>12} {:>12} {:<9} {:>6} {:>6} {:>6}  {} {:<5} {verdict}",
            outcome.id,
            outcome.what,
            side(outcome.product),
            side(outcome.yardstick),
            outcome.unit,
            part(|ratio| ratio.min),
            part(|ratio| ratio.median),
            part(|ratio| ratio.max),
            outcome.bound,
            outcome.bar,
        )?;
    }
    for outcome in outcomes {
        if let Some(note) = &outcome.note {
            writeln!(out, "{}: {note}", outcome.id)?;
        }
    }
    Ok(())
}

/// Four digits or so, whatever the size.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.2} M", value / 1e6),
        size if size >= 1e4 => format!("{:.1} k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_about_four_digits() {
        let numbers = [0.0, 0.000_5, 1.5, 123.4, 12_345.0, 1_234_567.0].map(number);
        assert_eq!(numbers, ["0.00", "5.00e-4", "1.50", "123", "12.3 k", "1.23 M"]);
    }
}
