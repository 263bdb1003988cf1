// SPDX-License-Identifier: Apache-2.0
//! `memcached`: GETs and SETs at a fixed rate, and how long they take, counted from when each was
//! due.

use super::driver::{command, prepare_client};
use super::open_loop::{self, OpenLoop};
use super::*;
use crate::generator;
use crate::memcached::Arguments;

/// The workload.
pub struct Memcached;

const LOOP: OpenLoop = OpenLoop {
    generator: "memcached",
    what: "memcached",
};
const PROGRAMS: &[Program] = &[Program::of("memcached", "memcached")];
const PORT: u16 = 11211;
const SET_PERCENT: Parameter = Parameter::new("load.set_percent", Domain::Number(0.0, 100.0), "10")
    .help("share of the requests that set a value; the others get one");
const KEYS: Parameter = Parameter::new("load.keys", Domain::Integer(1, 10_000_000), "10000")
    .help("number of keys, all equally likely");
const KEY_BYTES: Parameter =
    Parameter::new("load.key_bytes", Domain::Integer(8, 250), "30").help("length of each key");
const VALUE_BYTES: Parameter =
    Parameter::new("load.value_bytes", Domain::Integer(1, 1_000_000), "200")
        .help("length of each value");

fn arguments(settings: &Settings, common: generator::Arguments, fill: bool) -> Arguments {
    Arguments {
        common,
        set_percent: SET_PERCENT.number(settings),
        keys: KEYS.integer(settings).unsigned_abs(),
        key_bytes: u16::try_from(KEY_BYTES.integer(settings)).unwrap_or(0),
        value_bytes: u32::try_from(VALUE_BYTES.integer(settings)).unwrap_or(0),
        fill,
    }
}

static ABOUT: About = About {
    kind: "memcached",
    summary: "memcached requests at a fixed rate, open loop",
    parameters: &[
        open_loop::RATE,
        open_loop::ARRIVAL,
        open_loop::SEED,
        open_loop::CONNECTIONS,
        SET_PERCENT,
        KEYS,
        KEY_BYTES,
        VALUE_BYTES,
        open_loop::TIMEOUT,
    ],
    target_programs: PROGRAMS,
    packages: &["memcached"],
    level: Some(open_loop::LEVEL),
    ..About::NONE
};

impl Workload for Memcached {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    /// Starts memcached with room for every value and sets them all.
    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let settings = context.settings;
        let item = KEY_BYTES.integer(settings) + VALUE_BYTES.integer(settings) + 100;
        // Twice the size: items of one length share pages with nothing else.
        let mib = 64 + (2 * item).saturating_mul(KEYS.integer(settings)) / (1 << 20);
        // memcached counts five descriptors for each of its four threads, and those of checks whether it is up.
        let connections = open_loop::CONNECTIONS.integer(settings) + 64;
        let line = format!(
            "memcached --user=nobody --port={PORT} --udp-port=0 --memory-limit={mib} \
             --conn-limit={connections}"
        );
        let line = command(line.split_whitespace());
        let service = context.start("memcached", &line, PORT, PROGRAMS)?;
        let common = generator::Arguments::new((context.target.about().address, PORT).into());
        let flags = arguments(settings, common, true).to_flags();
        let fill = open_loop::generator("memcached", flags)?;
        prepare_client(context.client, &fill, &[])?;
        Ok(service)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let common = open_loop::arguments((spec.address, PORT).into(), spec.settings, spec.timing);
        let timeout = common.timeout;
        LOOP.command(arguments(spec.settings, common, false).to_flags(), timeout)
    }

    fn parse(&self, raw: &[u8], _: &Settings, _: Timing) -> Outcome<WorkloadResult> {
        LOOP.parse(raw)
    }

    fn ramp(
        &self,
        address: IpAddr,
        levels: &[Settings],
        first: Timing,
        settle: Duration,
    ) -> Outcome<Option<LoadCommand>> {
        let common = open_loop::ramp((address, PORT).into(), levels, first, settle);
        let load = common.zip(levels.first()).map(|(common, settings)| {
            let timeout = common.timeout;
            LOOP.command(arguments(settings, common, false).to_flags(), timeout)
        });
        load.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_a_failed_request() {
        let raw = include_str!("../../tests/data/memcached.json");
        let parse = |raw: &str| Memcached.parse(raw.as_bytes(), &Settings::default(), TIMING);
        assert_eq!(parse(raw).unwrap().metrics["errors"].quantity.value, 0.0);
        let missed = raw.replacen("\"status\":0", "\"status\":500", 1);
        assert!(parse(&missed).unwrap().suspect[0].contains("500 answers"));
    }
}
