//! `vtax top`: guests by what they truly cost, in 80 columns.
//!
//! Drawing is a function from a pass to lines, so that tests can look at the screen; the rest of this
//! file is the terminal.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize,
    tcsetattr,
};
use std::io::{self, Write};
use std::str::FromStr;
use std::time::{Duration, Instant};
use vtax_observe::ObserveError;
use vtax_observe::charge::{Charger, Pass, Stage, Stages};
use vtax_observe::clock::{Clock, SystemClock};
use vtax_units::{Joules, Nanoseconds};

/// What guests are sorted by, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// All of their CPU time.
    #[default]
    Cpu,
    /// The share that they do not see themselves.
    Hidden,
    /// Watts.
    Watts,
    /// Packets.
    Packets,
    /// VM exits.
    Exits,
    /// Names, in alphabetical order.
    Name,
}

impl Order {
    const ALL: [(Self, char, &'static str); 6] = [
        (Self::Cpu, 'c', "cpu"),
        (Self::Hidden, 'h', "hidden"),
        (Self::Watts, 'w', "watts"),
        (Self::Packets, 'p', "packets"),
        (Self::Exits, 'e', "exits"),
        (Self::Name, 'n', "name"),
    ];

    fn of_key(key: u8) -> Option<Self> {
        let known = Self::ALL
            .into_iter()
            .find(|(_, own, _)| *own == char::from(key));
        known.map(|(order, ..)| order)
    }

    fn name(self) -> &'static str {
        let known = Self::ALL.into_iter().find(|(order, ..)| *order == self);
        known.map_or("", |(.., name)| name)
    }
}

impl FromStr for Order {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|(.., name)| *name == text)
            .map(|(order, ..)| order)
            .ok_or_else(|| {
                format!("`{text}` is no order: give cpu, hidden, watts, packets, exits or name")
            })
    }
}

/// One line of the table.
#[derive(Debug, Clone, Default)]
struct Line {
    name: String,
    platform: &'static str,
    stages: Stages,
    energy: Option<Joules>,
    packets: Option<u64>,
    exits: Option<u64>,
}

/// The screen of a pass: `width` columns, no more than `height` lines.
pub fn screen(
    charger: &Charger,
    pass: &Pass,
    order: Order,
    width: usize,
    height: usize,
) -> Vec<String> {
    let Some(ledger) = pass.ledger() else {
        return vec![fit("the first interval has begun; q quits", width)];
    };
    let has_energy = pass.energy.is_some();
    let mut guests: Vec<Line> = ledger
        .rows
        .iter()
        .filter_map(|row| {
            let guest = charger.guests().find(|guest| guest.number == row.number)?;
            let exchanged = pass
                .exchanges
                .guests
                .get(&row.number)
                .copied()
                .unwrap_or_default();
            Some(Line {
                name: guest.name.clone(),
                platform: guest.platform.name(),
                stages: row.stages,
                energy: has_energy.then_some(row.energy),
                packets: Some(exchanged.received + exchanged.sent),
                exits: exchanged.exits,
            })
        })
        .collect();
    sort(&mut guests, order);

    let span = ledger.span.as_secs_f64().max(1e-9);
    let share = |time: Nanoseconds| time.as_secs_f64() / span * 100.0;
    let energy = match (pass.energy, charger.energy_source()) {
        (Some(energy), Some((covers, source))) => {
            format!("{:.1} W ({source}: {covers})", energy.total.0 / span)
        }
        _ => "no meter".to_owned(),
    };
    let mut lines = vec![
        format!(
            "vtax top   {} guests   busy {:.0} % of one CPU   {energy}",
            guests.len(),
            share(ledger.total)
        ),
        format!(
            "softirq {}   sorted by {}   keys: c h w p e n sort, q quit",
            charger.method(),
            order.name()
        ),
        format!(
            "{:<14} {:<6} {:>6} {:>5} {:>5} {:>5} {:>5} {:>4} {:>5} {:>6} {:>6}",
            "GUEST", "KIND", "CPU%", "vcpu", "vmm", "vhost", "sirq", "HID%", "W", "pkt/s", "exit/s"
        ),
    ];
    let mut host = Line {
        name: "[host]".to_owned(),
        energy: has_energy.then_some(ledger.host_energy),
        ..Line::default()
    };
    host.stages.add(Stage::Vcpu, ledger.host);
    host.stages.add(Stage::Softirq, ledger.host_softirq);
    let unattributed = Line {
        name: "[unattributed]".to_owned(),
        energy: has_energy.then_some(ledger.unattributed_energy),
        ..Line::default()
    };
    // The two rows that close the ledger are never pushed off the screen.
    let room = height.saturating_sub(lines.len() + 2);
    let hidden = guests.len().saturating_sub(room);
    let shown = if hidden > 0 {
        room.saturating_sub(1)
    } else {
        room
    };
    lines.extend(guests.iter().take(shown).map(|guest| row(guest, span)));
    if hidden > 0 {
        lines.push(format!("… {} more", guests.len() - shown));
    }
    lines.push(row(&host, span));
    let mut last = row(&unattributed, span);
    // Its time has no stage.
    last.replace_range(
        21..28.min(last.len()),
        &format!(" {:>6.1}", share(ledger.unattributed)),
    );
    lines.push(last);
    for problem in pass
        .problems
        .iter()
        .take(height.saturating_sub(lines.len()))
    {
        lines.push(format!("! {problem}"));
    }
    lines.iter().map(|line| fit(line, width)).collect()
}

fn sort(guests: &mut [Line], order: Order) {
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    let hidden = |line: &Line| {
        line.stages.hidden().as_secs_f64() / line.stages.total().as_secs_f64().max(1e-12)
    };
    let watts = |line: &Line| line.energy.map_or(0.0, |energy| energy.0);
    // Stable, so that equals stay in the order of their names and rows do not jump about.
    guests.sort_by(|a, b| match order {
        Order::Cpu => b.stages.total().cmp(&a.stages.total()),
        Order::Hidden => hidden(b).total_cmp(&hidden(a)),
        Order::Watts => watts(b).total_cmp(&watts(a)),
        Order::Packets => b.packets.cmp(&a.packets),
        Order::Exits => b.exits.cmp(&a.exits),
        Order::Name => std::cmp::Ordering::Equal,
    });
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates to be shown with three digits"
)]
fn row(line: &Line, span: f64) -> String {
    let percent = |stages: &[Stage]| {
        let time: f64 = stages
            .iter()
            .map(|stage| line.stages.get(*stage).as_secs_f64())
            .sum();
        time / span * 100.0
    };
    let total = line.stages.total().as_secs_f64();
    let hidden = if total > 0.0 && !line.platform.is_empty() {
        format!("{:.0}", line.stages.hidden().as_secs_f64() / total * 100.0)
    } else {
        String::new()
    };
    let rate = |count: Option<u64>| {
        count.map_or(String::new(), |count| {
            short((count as f64 / span).round() as u64)
        })
    };
    format!(
        "{:<14} {:<6} {:>6.1} {:>5.1} {:>5.1} {:>5.1} {:>5.1} {:>4} {:>5} {:>6} {:>6}",
        fit(&line.name, 14),
        fit(line.platform, 6),
        total / span * 100.0,
        percent(&[Stage::Vcpu]),
        percent(&[Stage::Emulator, Stage::Iothread]),
        percent(&[Stage::Vhost, Stage::Backend]),
        percent(&[Stage::Softirq]),
        hidden,
        line.energy
            .map_or(String::new(), |energy| format!("{:.1}", energy.0 / span)),
        rate(line.packets),
        rate(line.exits),
    )
}

/// A count in at most six characters.
fn short(count: u64) -> String {
    match count {
        0..=99_999 => count.to_string(),
        100_000..=99_999_999 => format!("{}k", count / 1000),
        _ => format!("{}M", count / 1_000_000),
    }
}

/// A line of exactly this many columns at most: characters that terminals may draw two columns wide,
/// or not at all, become a dot.
fn fit(text: &str, width: usize) -> String {
    let one_column = |c: char| {
        if (c < '\u{300}' && !c.is_control()) || c == '…' {
            c
        } else {
            '·'
        }
    };
    let count = text.chars().count();
    let shown: String = text.chars().take(width).map(one_column).collect();
    if count > width && width > 1 {
        let mut cut: String = shown.chars().take(width - 1).collect();
        cut.push('…');
        return cut;
    }
    shown
}

/// Why the view ended.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {0}; `vtax top --batch` needs none")]
    Terminal(#[from] io::Error),
    /// The host cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// Prints one screen an interval, `count` times, for logs and tests.
///
/// # Errors
/// When the host cannot be read or the output is closed.
pub fn batch(
    charger: &mut Charger,
    interval: Duration,
    count: u64,
    order: Order,
    to: &mut dyn Write,
) -> Result<(), TopError> {
    charger.pass(SystemClock.now())?;
    for _ in 0..count {
        std::thread::sleep(interval);
        let pass = charger.pass(SystemClock.now())?;
        for line in screen(charger, &pass, order, 80, usize::MAX) {
            writeln!(to, "{}", line.trim_end())?;
        }
        writeln!(to)?;
    }
    Ok(())
}

/// The terminal's state before this view, put back when it ends.
struct Raw(Termios);

impl Raw {
    fn enter() -> io::Result<Self> {
        let input = io::stdin();
        if !isatty(&input) || !isatty(io::stdout()) {
            return Err(io::Error::other(
                "standard input and output are no terminal",
            ));
        }
        let before = tcgetattr(&input)?;
        let mut raw = before.clone();
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&input, OptionalActions::Now, &raw)?;
        // The other screen, without a cursor.
        io::stdout().write_all(b"\x1b[?1049h\x1b[?25l")?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = io::stdout().write_all(b"\x1b[?25h\x1b[?1049l");
        let _ = io::stdout().flush();
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Shows the table until `q`.
///
/// # Errors
/// When there is no terminal, or the host cannot be read.
pub fn interactive(
    charger: &mut Charger,
    interval: Duration,
    mut order: Order,
) -> Result<(), TopError> {
    let raw = Raw::enter()?;
    let stdin = io::stdin();
    let mut pass = charger.pass(SystemClock.now())?;
    let mut due = Instant::now() + interval;
    loop {
        draw(&screen_of_terminal(charger, &pass, order))?;
        let wait = due.saturating_duration_since(Instant::now());
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec::try_from(wait).ok();
        match poll(&mut input, timeout.as_ref()) {
            Ok(0) => {}
            // Resized: draw again.
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(TopError::Terminal(error.into())),
            Ok(_) => {
                let mut keys = [0; 32];
                // Not through the standard library's buffer, which poll would not see.
                let read = rustix::io::read(&stdin, &mut keys).map_err(io::Error::from)?;
                if read == 0 {
                    // The terminal hung up.
                    break;
                }
                let keys = keys.get(..read).unwrap_or_default();
                if keys.contains(&b'q') {
                    break;
                }
                order = keys
                    .iter()
                    .rev()
                    .find_map(|key| Order::of_key(*key))
                    .unwrap_or(order);
            }
        }
        if Instant::now() >= due {
            pass = charger.pass(SystemClock.now())?;
            due = Instant::now() + interval;
        }
    }
    drop(raw);
    Ok(())
}

fn screen_of_terminal(charger: &Charger, pass: &Pass, order: Order) -> Vec<String> {
    let size = tcgetwinsize(io::stdout()).ok();
    let width = size.map_or(80, |size| usize::from(size.ws_col).max(20));
    let height = size.map_or(24, |size| usize::from(size.ws_row).max(6));
    screen(charger, pass, order, width, height)
}

fn draw(lines: &[String]) -> io::Result<()> {
    // Over the old picture line by line: clearing first would flicker over ssh.
    let mut out = String::from("\x1b[H");
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push_str("\r\n");
        }
        out.push_str(line);
        out.push_str("\x1b[K");
    }
    out.push_str("\x1b[J");
    io::stdout().write_all(out.as_bytes())?;
    io::stdout().flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(name: &str, vcpu: u64, softirq: u64, packets: u64) -> Line {
        let mut stages = Stages::default();
        stages.add(Stage::Vcpu, Nanoseconds(vcpu));
        stages.add(Stage::Softirq, Nanoseconds(softirq));
        Line {
            name: name.to_owned(),
            platform: "qemu",
            stages,
            energy: Some(Joules(1.5)),
            packets: Some(packets),
            exits: Some(1_234_567),
        }
    }

    #[test]
    fn a_row_has_the_true_cost_by_stage_and_fits_80_columns() {
        let row = row(&line("web", 300_000_000, 100_000_000, 200_000), 1.0);
        assert_eq!(
            row,
            "web            qemu     40.0  30.0   0.0   0.0  10.0   25   1.5   200k  1234k"
        );
        assert!(row.chars().count() <= 80);
    }

    #[test]
    fn rows_are_sorted_as_asked_and_equals_by_name() {
        let mut lines = [
            line("b", 10, 30, 1),
            line("a", 30, 10, 1),
            line("c", 90, 0, 9),
        ];
        let mut names = |order| -> String {
            sort(&mut lines, order);
            lines.iter().map(|line| line.name.as_str()).collect()
        };
        assert_eq!(names(Order::Cpu), "cab");
        assert_eq!(names(Order::Hidden), "bac");
        assert_eq!(names(Order::Packets), "cab");
        assert_eq!(names(Order::Name), "abc");
    }

    #[test]
    fn orders_are_named_and_have_keys() {
        for (order, key, name) in Order::ALL {
            assert_eq!(Order::of_key(key as u8), Some(order));
            assert_eq!(name.parse(), Ok(order));
        }
        assert!("x".parse::<Order>().is_err());
    }

    proptest! {
        #[test]
        fn no_name_leaves_its_column(name in ".{0,60}", width in 2usize..90) {
            let shown = fit(&name, width);
            prop_assert!(shown.chars().count() <= width);
            prop_assert!(shown.chars().all(|c| !c.is_control()));
        }
    }
}
