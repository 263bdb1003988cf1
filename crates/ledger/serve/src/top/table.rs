// SPDX-License-Identifier: Apache-2.0
//! The table: rows as lines of text that fit any width from 80 columns up. A narrower terminal shows its left part.

use super::rows::{Key, Party, Rates, Row, Sort};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use vtax_charge::Stage;

/// The kind of a line, for its colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A line of values.
    Plain,
    /// The names of the columns.
    Heading,
    /// Secondary text: problems, help.
    Faint,
}

/// A line of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Text that is at most as wide as the screen.
    pub text: String,
    /// The kind of the line.
    pub style: Style,
}

/// The columns of numbers: heading, width, key. With a space before each, the platform and 14 columns for the name,
/// they are 80 columns wide.
const COLUMNS: [(&str, usize, Key); 11] = [
    ("CPU%", 5, Key::Cpu),
    ("VCPU", 4, Key::Stage(Stage::Vcpu)),
    ("EMUL", 4, Key::Stage(Stage::Emulator)),
    ("IOTH", 4, Key::Stage(Stage::Iothread)),
    ("VHST", 4, Key::Stage(Stage::Vhost)),
    ("SIRQ", 4, Key::Stage(Stage::Softirq)),
    ("BKND", 4, Key::Stage(Stage::Backend)),
    ("HID%", 4, Key::Hidden),
    ("W", 5, Key::Watts),
    ("PKT/s", 5, Key::Packets),
    ("EXITS", 5, Key::Exits),
];

/// The column of the error of `CPU%`, on screens of at least `WIDTH_WITH_ERROR` columns.
const ERROR: (&str, usize) = ("±CPU%", 5);
const WIDTH_WITH_ERROR: usize = 100;

/// The column of waits for processors, in ms per second, on the same screens.
const WAIT: (&str, usize) = ("WAIT", 5);

/// The shortest wait that is reported above the table, in ms per second.
const LEAST_WAIT: f64 = 10.0;

const PLATFORM_WIDTH: usize = 6;
const LEAST_NAME: usize = 14;
const MOST_NAME: usize = 48;

/// The state of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// Width of the screen, in columns.
    pub width: usize,
    /// Height of the screen, in lines; `None` shows all guests.
    pub height: Option<usize>,
    /// Number of guests that are scrolled off above.
    pub skipped: usize,
    /// The order of guests.
    pub sort: Sort,
    /// Whether new intervals are not shown.
    pub paused: bool,
}

impl View {
    /// Returns the number of guests that fit.
    pub fn room(&self) -> usize {
        // Two lines of summary, the heading, the sums, the help.
        self.height
            .map_or(usize::MAX, |height| height.saturating_sub(4 + SUMS))
    }
}

/// The rows of sums that are always shown.
const SUMS: usize = 3;

/// Returns the lines of the screen.
pub fn lines(rates: &Rates, view: &View) -> Vec<Line> {
    let mut lines = vec![
        line(summary(rates, view), Style::Plain),
        line(second_line(rates, view), Style::Faint),
        line(heading(view), Style::Heading),
    ];
    let is_guest = |row: &&Row| row.party == Party::Guest;
    let sums: Vec<&Row> = rates.rows.iter().filter(|row| !is_guest(row)).collect();
    let room = view.room().saturating_sub(sums.len().saturating_sub(SUMS));
    let guests = rates
        .rows
        .iter()
        .filter(is_guest)
        .skip(view.skipped)
        .take(room);
    lines.extend(
        sums.into_iter()
            .chain(guests)
            .map(|row| line(row_text(row, view), Style::Plain)),
    );
    if let Some(height) = view.height {
        lines.truncate(height.saturating_sub(1));
        while lines.len() + 1 < height {
            lines.push(line(String::new(), Style::Plain));
        }
        let help = "q quit  r reverse  space pause  sort: Cpu Vcpu Emul Ioth vhOst Sirq Bknd Hid W Pkt eXit waiT Name";
        let short = "sort: Cpu Vcpu Emul Ioth vhOst Sirq Bknd Hid W Pkt eXit waiT Name  Rev Quit";
        let help = if view.width >= help.len() {
            help
        } else {
            short
        };
        lines.push(line(help.to_owned(), Style::Faint));
    }
    for line in &mut lines {
        line.text = fit(&line.text, view.width, false);
    }
    lines
}

fn line(text: String, style: Style) -> Line {
    Line { text, style }
}

fn guests(rates: &Rates) -> usize {
    rates
        .rows
        .iter()
        .filter(|row| row.party == Party::Guest)
        .count()
}

fn summary(rates: &Rates, view: &View) -> String {
    // The time of day, without the date.
    let time = rates.at.get(11..19).unwrap_or("");
    let busy = rates.rows.first().map_or(0.0, |row| row.cpu_percent);
    let power = match (
        rates.rows.first().and_then(|row| row.watts),
        rates.energy_source,
    ) {
        (Some(watts), Some(source)) => format!("{} W {source}", figure(watts, 5)),
        _ => "no meter".to_owned(),
    };
    let what = if view.paused { "PAUSED" } else { "vtax top" };
    // The accuracy of counting depends on the kernel's accounting; that of tracing does not.
    let method = match rates.method {
        "counted" if shows_error(view) => format!("counted/{}", rates.irq_accounting),
        method => method.to_owned(),
    };
    format!(
        "{what} {time} UTC  {:.1} s  {} guests  CPU {} %  {power}  {}",
        rates.interval_seconds,
        guests(rates),
        figure(busy, 5),
        method,
    )
}

fn second_line(rates: &Rates, view: &View) -> String {
    let rest = problems_or_place(rates, view);
    match (waits(rates), rest) {
        (Some(waits), Some(rest)) => format!("{waits}  {rest}"),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => {
            "CPU in % of one processor; HID% of a guest's CPU is not its own code".to_owned()
        }
    }
}

/// The first problem, or which guests are shown where not all of them are.
fn problems_or_place(rates: &Rates, view: &View) -> Option<String> {
    if let Some(first) = rates.problems.first() {
        let more = rates.problems.len() - 1;
        let more = if more > 0 {
            format!(" (and {more} more)")
        } else {
            String::new()
        };
        return Some(format!("! {first}{more}"));
    }
    let (all, room) = (guests(rates), view.room());
    if all > room || view.skipped > 0 {
        let last = view.skipped.saturating_add(room).min(all);
        return Some(format!("guests {} to {last} of {all}", view.skipped + 1));
    }
    None
}

/// The guest that waited most for processors, and for what, where it waited for a hundredth of a processor.
fn waits(rates: &Rates) -> Option<String> {
    let waited = |row: &&Row| row.wait_ms_per_second.unwrap_or(0.0) >= LEAST_WAIT;
    let most = rates.rows.iter().filter(waited).max_by(|a, b| {
        let of = |row: &Row| row.wait_ms_per_second.unwrap_or(0.0);
        of(a).total_cmp(&of(b))
    })?;
    let part = most.waited_for.first()?;
    Some(format!(
        "{} waited {:.0} ms/s, of which {:.0} for {}",
        most.name, most.wait_ms_per_second?, part.ms_per_second, part.name
    ))
}

fn shows_error(view: &View) -> bool {
    view.width >= WIDTH_WITH_ERROR
}

fn name_width(view: &View) -> usize {
    let numbers: usize = COLUMNS.iter().map(|(_, width, _)| width + 1).sum();
    let numbers = numbers
        + if shows_error(view) {
            ERROR.1 + WAIT.1 + 2
        } else {
            0
        };
    view.width
        .saturating_sub(numbers + PLATFORM_WIDTH + 1)
        .clamp(LEAST_NAME, MOST_NAME)
}

fn heading(view: &View) -> String {
    let mark = if view.sort.reversed { '<' } else { '>' };
    let name = if view.sort.key == Key::Name {
        format!("GUEST {mark}")
    } else {
        "GUEST".to_owned()
    };
    let mut text = format!(
        "{} {:<PLATFORM_WIDTH$}",
        fit(&name, name_width(view), true),
        "BY"
    );
    for (heading, width, key) in COLUMNS {
        let heading = if key == view.sort.key {
            format!("{mark}{heading}").chars().take(width).collect()
        } else {
            heading.to_owned()
        };
        text.push_str(&format!(" {heading:>width$}"));
    }
    if shows_error(view) {
        text.push_str(&format!(" {:>width$}", WAIT.0, width = WAIT.1));
        text.push_str(&format!(" {:>width$}", ERROR.0, width = ERROR.1));
    }
    text
}

fn row_text(row: &Row, view: &View) -> String {
    let mut text = format!(
        "{} {:<PLATFORM_WIDTH$}",
        fit(&row.name, name_width(view), true),
        short(row.platform)
    );
    for (_, width, key) in COLUMNS {
        let value = row.value(key);
        let value = value.map_or_else(|| "-".to_owned(), |value| figure(value, width));
        text.push_str(&format!(" {value:>width$}"));
    }
    if shows_error(view) {
        let wait = row.wait_ms_per_second.map(|wait| figure(wait, WAIT.1));
        let wait = wait.unwrap_or_else(|| "-".to_owned());
        text.push_str(&format!(" {wait:>width$}", width = WAIT.1));
        let error = row.cpu_error_percent.map(|error| figure(error, ERROR.1));
        let error = error.unwrap_or_else(|| "-".to_owned());
        text.push_str(&format!(" {error:>width$}", width = ERROR.1));
    }
    text
}

/// Returns a platform's name in at most six columns.
fn short(platform: &str) -> &str {
    match platform {
        "cloud-hypervisor" => "clh",
        "firecracker" => "fc",
        "kubernetes" => "k8s",
        "containerd" => "ctrd",
        other => other,
    }
}

/// Returns `text` in at most `width` columns, padded to `width` where `fill` is set.
fn fit(text: &str, width: usize, fill: bool) -> String {
    let whole = text.width();
    let mut fitted = String::new();
    let mut used = 0;
    if whole <= width {
        fitted.push_str(text);
        used = whole;
    } else {
        for c in text.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide + 1 > width {
                break;
            }
            fitted.push(c);
            used += wide;
        }
        if width > 0 {
            fitted.push('…');
            used += 1;
        }
    }
    if fill {
        fitted.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    }
    fitted
}

/// Returns a number in at most `width` (4 or more) columns, with as many digits as fit.
fn figure(value: f64, width: usize) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    for (scale, suffix) in [
        (1.0, ""),
        (1e3, "k"),
        (1e6, "M"),
        (1e9, "G"),
        (1e12, "T"),
        (1e15, "P"),
    ] {
        for digits in [2, 1, 0] {
            // Two decimal places are enough, and one is enough before a suffix.
            if digits == 2 && !suffix.is_empty() {
                continue;
            }
            let text = format!("{:.digits$}{suffix}", value / scale);
            if text.len() <= width {
                return text;
            }
        }
    }
    "?".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vtax_charge::Runner;
    use vtax_charge::fake::Host;
    use vtax_inventory::Platform;

    fn view(width: usize, height: Option<usize>) -> View {
        View {
            width,
            height,
            ..View::default()
        }
    }

    fn rates(host: &mut Host, time: u64) -> Rates {
        Rates::from_snapshot(&host.pass(time), Sort::default())
    }

    #[test]
    fn numbers_use_the_columns_that_they_have() {
        let of_4 = [
            0.0, 0.004, 0.05, 9.994, 9.996, 12.34, 99.96, 100.0, 9999.4, 12_345.0, 1e6, 1e20,
        ];
        let of_4: Vec<String> = of_4.into_iter().map(|value| figure(value, 4)).collect();
        let expected = [
            "0", "0.00", "0.05", "9.99", "10.0", "12.3", "100", "100", "9999", "12k", "1.0M", "?",
        ];
        // 10.00 has five columns, so it loses one digit.
        assert_eq!(of_4, expected);
        assert_eq!(figure(12_345.0, 5), "12345");
        assert_eq!(figure(1_234_567.0, 5), "1235k");
        assert_eq!(figure(12_345_678.0, 5), "12.3M");
        assert_eq!(figure(f64::NAN, 5), "?");
    }

    #[test]
    fn the_table_is_80_columns_wide_and_grows_with_the_screen() {
        let mut host = Host::default();
        host.start_named(
            1,
            "a-name-of-a-guest-that-is-long",
            Platform::CloudHypervisor,
        );
        let rates = rates(&mut host, 123_456_789);
        let narrow = lines(&rates, &view(80, Some(24)));
        assert_eq!(narrow.len(), 24);
        assert_eq!(narrow[2].text.width(), 80, "{}", narrow[2].text);
        assert!(
            narrow[6].text.starts_with("a-name-of-a-g… clh "),
            "{}",
            narrow[6].text
        );
        let wide = lines(&rates, &view(120, Some(24)));
        assert!(
            wide[0].text.ends_with(" counted/sampled"),
            "{}",
            wide[0].text
        );
        let ends = [" ±CPU%", "     -", "  0.37"];
        for (line, end) in wide[2..].iter().zip(ends) {
            assert!(
                line.text.width() <= 120 && line.text.ends_with(end),
                "{}",
                line.text
            );
        }
        assert!(
            wide[6].text.starts_with("a-name-of-a-guest-that-is-long "),
            "{}",
            wide[6].text
        );
        assert!(lines(&rates, &view(80, None)).len() == 7);
    }

    #[test]
    fn the_longest_wait_is_named_above_the_table_with_what_ran() {
        let mut host = Host::default();
        host.start_named(1, "db", Platform::Docker);
        host.start_named(2, "batch", Platform::Docker);
        host.wait(2, Runner::Guest(1), 9_000_000);
        let second = |host: &mut Host| lines(&rates(host, 1000), &view(80, None))[1].text.clone();
        assert!(second(&mut host).starts_with("CPU in %"));
        host.wait(1, Runner::Guest(2), 310_000_000);
        host.wait(1, Runner::Idle, 30_000_000);
        let expected = "db waited 340 ms/s, of which 310 for batch";
        assert_eq!(second(&mut host), expected);
        // A problem stays in sight.
        let mut rates = rates(&mut host, 1000);
        rates.problems = vec!["no meter".to_owned()];
        let shown = lines(&rates, &view(80, None))[1].text.clone();
        assert_eq!(shown, format!("{expected}  ! no meter"));
    }

    #[test]
    fn problems_and_scrolling_are_reported_above_the_table() {
        let mut host = Host::default();
        for number in 0..100 {
            host.start(number);
        }
        let mut rates = rates(&mut host, 1000);
        let scrolled = View {
            skipped: 10,
            ..view(80, Some(24))
        };
        let shown = lines(&rates, &scrolled);
        assert_eq!(shown[1].text, "guests 11 to 27 of 100");
        rates.problems = vec!["cannot list /proc: no".to_owned(), "x".to_owned()];
        assert_eq!(
            lines(&rates, &scrolled)[1].text,
            "! cannot list /proc: no (and 1 more)"
        );
    }

    proptest! {
        /// For all names and uses of guests, no line is wider than the screen or holds a control character, and there
        /// are as many lines as fit.
        #[test]
        fn every_line_fits_every_screen(
            names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..12),
            time in 0u64..1_000_000_000_000, width in 0usize..200, height in 0usize..40, skipped in 0usize..20,
        ) {
            let mut host = Host::default();
            for (number, name) in (1..).zip(&names) {
                let name = vtax_inventory::name::sanitised(name);
                host.start_named(number, &name, Platform::Qemu);
            }
            let rates = rates(&mut host, time);
            let view = View { skipped, ..view(width, Some(height)) };
            let lines = lines(&rates, &view);
            prop_assert!(lines.len() <= height.max(1));
            for line in lines {
                prop_assert!(line.text.width() <= width, "{:?}", line.text);
                prop_assert!(!line.text.chars().any(char::is_control));
            }
        }
    }
}
