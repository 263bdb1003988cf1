// SPDX-License-Identifier: Apache-2.0
//! The history of the host and of each guest in memory: an hour of points of one second and a day of points of ten
//! seconds.
//!
//! The host's own series always has that length. The guests share a bound of [`MAX_POINTS`]: with many guests the
//! series of each is shorter, as its first time shows.

use std::collections::{HashMap, VecDeque};
use vtax_serve::top::{Party, Rates, Row};

/// The columns of a guest's point: percent of one processor by stage, then the other quantities.
pub const GUEST: [&str; 9] = [
    "vcpu", "emulator", "iothread", "vhost", "softirq", "backend", "watts", "packets", "exits",
];

/// The columns of the host's point: the stages of all guests, the host's own work and the unattributed time, all in
/// percent of one processor; then the other quantities.
pub const HOST: [&str; 11] = [
    "vcpu",
    "emulator",
    "iothread",
    "vhost",
    "softirq",
    "backend",
    "host",
    "unattributed",
    "watts",
    "packets",
    "exits",
];

/// The number of stages in a point.
const STAGES: usize = 6;
/// Points of one second in an hour.
const HOUR: usize = 3600;
/// Points of ten seconds in a day.
const DAY: usize = 8640;
/// Fine points that become one coarse point.
const STEP: u64 = 10;
/// The limit of the points of all guests together: 36 MB.
pub const MAX_POINTS: usize = 1_000_000;
/// The number of departed guests, the last ones, whose series are kept.
const MAX_DEPARTED: usize = 64;

/// The numbers of one interval; NaN where one is not known.
pub type Point<const N: usize> = [f32; N];

/// One of the two resolutions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Span {
    /// Every second of the last hour.
    Hour,
    /// Every ten seconds of the last day.
    Day,
}

/// A series of points.
#[derive(Debug, Clone, PartialEq)]
pub struct Series<const N: usize> {
    /// The end of each interval, in seconds since 1970.
    pub at: Vec<f64>,
    /// One point for each interval.
    pub points: Vec<Point<N>>,
}

/// The history.
#[derive(Debug)]
pub struct History {
    /// The ends of the fine points.
    seconds: VecDeque<f64>,
    /// The ends of the coarse points.
    tens: VecDeque<f64>,
    /// The number of fine points that were added.
    ticks: u64,
    host: Track<{ HOST.len() }>,
    guests: HashMap<u32, Track<{ GUEST.len() }>>,
    /// The names and platforms of the guests.
    names: HashMap<u32, (String, &'static str)>,
    departed: VecDeque<u32>,
    max_points: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::bounded(MAX_POINTS)
    }
}

impl History {
    /// A history with at most this number of points of all guests together.
    fn bounded(max_points: usize) -> Self {
        Self {
            seconds: VecDeque::new(),
            tens: VecDeque::new(),
            ticks: 0,
            host: Track::default(),
            guests: HashMap::new(),
            names: HashMap::new(),
            departed: VecDeque::new(),
            max_points,
        }
    }

    /// The number of intervals that were added.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Adds an interval that ended at `at`, in seconds since 1970. Returns the host's coarse point that it completes.
    pub fn add(&mut self, at: f64, rates: &Rates) -> Option<Point<{ HOST.len() }>> {
        self.ticks += 1;
        let closes = self.ticks.is_multiple_of(STEP);
        push(&mut self.seconds, at, HOUR);
        if closes {
            push(&mut self.tens, at, DAY);
        }
        let guests: Vec<&Row> = guests(rates).collect();
        for row in &guests {
            let number = row.number.unwrap_or(0);
            self.guests.entry(number).or_insert_with(|| {
                self.names.insert(number, (row.name.clone(), row.platform));
                Track::default()
            });
        }
        let each = self.max_points / self.guests.len().max(1);
        let fine = HOUR.min(each / 2);
        let coarse = DAY.min(each - fine);
        for row in guests {
            let track = self.guests.entry(row.number.unwrap_or(0)).or_default();
            track.add(self.ticks, guest_point(row), (fine, coarse), closes);
        }
        self.drop_departed();
        self.host
            .add(self.ticks, host_point(rates), (HOUR, DAY), closes)
    }

    /// Drops the series of guests that departed long ago.
    fn drop_departed(&mut self) {
        let ticks = self.ticks;
        for (number, track) in &mut self.guests {
            if track.last == Some(ticks - 1) {
                self.departed.push_back(*number);
                track.shrink();
            }
        }
        while self.departed.len() > MAX_DEPARTED {
            if let Some(number) = self.departed.pop_front() {
                self.guests.remove(&number);
                self.names.remove(&number);
            }
        }
    }

    /// The series of the host.
    pub fn host(&self, span: Span) -> Series<{ HOST.len() }> {
        self.series(&self.host, span)
    }

    /// The series of a guest, present or departed; `None` where none is kept.
    pub fn guest(&self, number: u32, span: Span) -> Option<Series<{ GUEST.len() }>> {
        Some(self.series(self.guests.get(&number)?, span))
    }

    /// The name and platform of a guest, present or departed.
    pub fn name(&self, number: u32) -> Option<(&str, &'static str)> {
        let (name, platform) = self.names.get(&number)?;
        Some((name, platform))
    }

    fn series<const N: usize>(&self, track: &Track<N>, span: Span) -> Series<N> {
        let (times, points, now, last) = match span {
            Span::Hour => (&self.seconds, &track.fine, self.ticks, track.last),
            Span::Day => {
                let last = track.last.map(|last| last / STEP);
                (&self.tens, &track.coarse, self.ticks / STEP, last)
            }
        };
        // Both end at the present, or when the guest departed.
        let missed = usize::try_from(now - last.unwrap_or(now)).unwrap_or(usize::MAX);
        let end = times.len().saturating_sub(missed);
        let kept = points.len().min(end);
        Series {
            at: times.range(end - kept..end).copied().collect(),
            points: points.range(points.len() - kept..).copied().collect(),
        }
    }
}

/// The guests of an interval.
pub fn guests(rates: &Rates) -> impl Iterator<Item = &Row> {
    let rows = rates.rows.iter();
    rows.filter(|row| row.party == Party::Guest)
}

/// A guest's point.
pub fn guest_point(row: &Row) -> Point<{ GUEST.len() }> {
    let stages = row.stage_cpu_percent;
    [
        stages.vcpu,
        stages.emulator,
        stages.iothread,
        stages.vhost,
        stages.softirq,
        stages.backend,
        row.watts,
        row.packets_per_second(),
        row.exits_per_second,
    ]
    .map(known)
}

/// The sum of points, column by column; NaN where no point has a number.
pub fn sum<const N: usize>(points: impl Iterator<Item = Point<N>>) -> Point<N> {
    let mut sums = [f32::NAN; N];
    for point in points {
        for (sum, value) in sums.iter_mut().zip(point) {
            if !value.is_nan() {
                *sum = if sum.is_nan() { value } else { *sum + value };
            }
        }
    }
    sums
}

/// The host's point.
pub fn host_point(rates: &Rates) -> Point<{ HOST.len() }> {
    let of = |party| rates.rows.iter().find(|row| row.party == party);
    let cpu = |party| of(party).map(|row| row.cpu_percent);
    let departed = of(Party::Departed);
    let guests = sum(guests(rates).chain(departed).map(guest_point));
    let mut point = [0.0; HOST.len()];
    for (place, value) in point.iter_mut().zip(guests.iter().take(STAGES)) {
        *place = if value.is_nan() { 0.0 } else { *value };
    }
    let [.., packets, exits] = guests;
    let others = [
        known(cpu(Party::Host)),
        known(cpu(Party::Unattributed)),
        known(of(Party::All).and_then(|row| row.watts)),
        packets,
        exits,
    ];
    for (place, value) in point.iter_mut().skip(STAGES).zip(others) {
        *place = value;
    }
    point
}

/// The value in the form of a point: NaN where it is not known.
#[allow(
    clippy::cast_possible_truncation,
    reason = "graphs need no more digits"
)]
fn known(value: Option<f64>) -> f32 {
    value.map_or(f32::NAN, |value| value as f32)
}

fn push<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    while queue.len() >= most.max(1) {
        queue.pop_front();
    }
    queue.push_back(value);
}

/// The points of the host or of one guest.
#[derive(Debug)]
struct Track<const N: usize> {
    fine: VecDeque<Point<N>>,
    coarse: VecDeque<Point<N>>,
    /// Sums and counts for the next coarse point.
    open: [(f32, u16); N],
    /// The number of the last fine point.
    last: Option<u64>,
}

impl<const N: usize> Default for Track<N> {
    fn default() -> Self {
        Self {
            fine: VecDeque::new(),
            coarse: VecDeque::new(),
            open: [(0.0, 0); N],
            last: None,
        }
    }
}

impl<const N: usize> Track<N> {
    /// Adds the point of a tick, keeps at most `fine` and `coarse` points, and returns the coarse point that it
    /// completes.
    fn add(
        &mut self,
        tick: u64,
        point: Point<N>,
        (fine, coarse): (usize, usize),
        closes: bool,
    ) -> Option<Point<N>> {
        push(&mut self.fine, point, fine);
        self.last = Some(tick);
        for ((sum, count), value) in self.open.iter_mut().zip(point) {
            if !value.is_nan() {
                (*sum, *count) = (*sum + value, *count + 1);
            }
        }
        if !closes {
            return None;
        }
        let mean = |(sum, count): (f32, u16)| match count {
            0 => f32::NAN,
            count => sum / f32::from(count),
        };
        let whole = std::mem::replace(&mut self.open, [(0.0, 0); N]).map(mean);
        push(&mut self.coarse, whole, coarse);
        Some(whole)
    }

    fn shrink(&mut self) {
        self.fine.shrink_to_fit();
        self.coarse.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_charge::fake::Host;
    use vtax_serve::top::Sort;

    fn pass(host: &mut Host, time: u64) -> Rates {
        Rates::from_snapshot(&host.pass(time), Sort::default())
    }

    #[test]
    fn the_host_is_the_sum_of_guests_its_own_work_and_the_unattributed() {
        let mut host = Host::default();
        host.start(1);
        host.start(2);
        let mut history = History::default();
        history.add(1.0, &pass(&mut host, 200_000_000));
        let series = history.host(Span::Hour);
        assert_eq!(series.at, [1.0]);
        let [vcpu, .., own, unattributed, watts, packets, exits] = series.points[0];
        assert_eq!((vcpu, own, unattributed), (36.0, 20.0, 10.0));
        assert_eq!(series.points[0][4], 4.0);
        assert_eq!((watts, packets), (700.0, 1.2e9));
        assert!(exits.is_nan(), "nobody counts exits there");
    }

    #[test]
    fn an_hour_of_seconds_a_day_of_tens_and_no_more() {
        let mut host = Host::default();
        host.start(1);
        let mut history = History::default();
        for second in 0..90_000_u32 {
            history.add(f64::from(second), &pass(&mut host, 10_000_000));
        }
        let hour = history.host(Span::Hour);
        assert_eq!((hour.at.len(), hour.points.len()), (HOUR, HOUR));
        assert_eq!(hour.at.last(), Some(&89_999.0));
        let day = history.guest(1, Span::Day).unwrap();
        assert_eq!((day.at.len(), day.points.len()), (DAY, DAY));
        assert_eq!(day.at[0], 89_999.0 - 86_390.0);
        assert!((day.points[0][0] - 0.9).abs() < 1e-6, "the mean of ten");
    }

    #[test]
    fn many_guests_share_the_bound_and_each_series_ends_at_the_present() {
        let mut host = Host::default();
        let mut history = History::bounded(1000);
        for number in 0..100 {
            host.start(number);
        }
        for second in 0..200_u32 {
            history.add(f64::from(second), &pass(&mut host, 1000));
        }
        let series = history.guest(7, Span::Hour).unwrap();
        assert_eq!(series.at, [195.0, 196.0, 197.0, 198.0, 199.0]);
        assert_eq!(history.guest(7, Span::Day).unwrap().points.len(), 5);
        assert_eq!(history.host(Span::Hour).at.len(), 200);
    }

    #[test]
    fn a_guest_that_came_late_and_went_keeps_its_times_until_others_went_after_it() {
        let mut host = Host::default();
        let mut history = History::default();
        for second in 0..40_u32 {
            match second {
                15 => host.start(1),
                32 => host.end(1),
                _ => {}
            }
            history.add(f64::from(second), &pass(&mut host, 1000));
        }
        let series = history.guest(1, Span::Hour).unwrap();
        assert_eq!((series.at[0], *series.at.last().unwrap()), (15.0, 31.0));
        let tens = history.guest(1, Span::Day).unwrap();
        assert_eq!(tens.at, [19.0, 29.0]);
        assert_eq!(tens.points.len(), 2);
        for number in 10..10 + u32::try_from(MAX_DEPARTED).unwrap() {
            host.start(number);
            history.add(50.0, &pass(&mut host, 1000));
            host.end(number);
        }
        history.add(51.0, &pass(&mut host, 1000));
        assert!(history.guest(1, Span::Hour).is_none());
        assert!(history.guest(20, Span::Hour).is_some());
    }
}
