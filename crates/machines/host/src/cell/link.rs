// SPDX-License-Identifier: Apache-2.0
//! The link between client and target: its settings, and the `ip`, `tc` and `ethtool` command lines that create it.
//!
//! Rate and delay are set on the client's veth, one queueing discipline for each direction, so that every platform
//! has the same link and no target spends CPU time on it.

use super::switch::{self, Switch};
use crate::HostError;
use crate::settings::{Domain, Parameter, Settings};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Seats that a cell can have: each takes two addresses of the wire.
pub const MOST_SEATS: usize = 120;
/// Length of the network prefix of the IPv4 addresses.
pub const PREFIX: u8 = 24;
/// Length of the network prefix of the IPv6 addresses.
pub const PREFIX_V6: u8 = 64;
/// The bridge of the cell's own network, its wire.
pub const WIRE: &str = "br0";
/// The bridge of a target whose client is on another machine; it is not connected to the wire.
pub const OUTER: &str = "out0";
/// The device in the switch that connects to the network outside.
pub const UPLINK: &str = "uplink";
const BRIDGE_MAC: &str = "02:76:74:61:78:00";

/// One end of a seat's link: an address on the cell's wire. Cells share no wire, so all cells use the same addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End(u8);

impl End {
    /// The client's end of the seat of that number.
    pub fn client(seat: u8) -> Self {
        Self(seat.saturating_mul(2).saturating_add(1))
    }

    /// The guest's end of the seat of that number.
    pub fn guest(seat: u8) -> Self {
        Self(seat.saturating_mul(2).saturating_add(2))
    }

    /// Its address.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 91, 0, self.0)
    }

    /// Its IPv6 address, a unique local one (RFC 4193).
    pub fn address_v6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd91, 0, 0, 0, 0, 0, 0, self.0.into())
    }

    /// Its MAC address: locally administered, with "vtax" in the middle.
    pub fn mac(self) -> String {
        format!("02:76:74:61:78:{:02x}", self.0)
    }
}

/// The attachment of a device to a bridge, with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The bridge.
    pub bridge: &'static str,
    /// Its address, with the length of the prefix.
    pub address: (Ipv4Addr, u8),
    /// Its IPv6 address, with the length of the prefix, if it has one.
    pub address_v6: Option<(Ipv6Addr, u8)>,
    /// Its MAC address.
    pub mac: String,
}

impl Port {
    /// An end of a seat's link on the cell's own wire.
    pub fn on_wire(end: End, ipv6: bool) -> Self {
        Self {
            bridge: WIRE,
            address: (end.address(), PREFIX),
            address_v6: ipv6.then(|| (end.address_v6(), PREFIX_V6)),
            mac: end.mac(),
        }
    }
}

/// The name of a seat's space or device: `client`, `target`, with the seat's number from the second seat on.
pub fn numbered(name: &str, seat: u8) -> String {
    match seat {
        0 => name.to_owned(),
        seat => format!("{name}{seat}"),
    }
}

/// The link parameters of a plan.
pub const PARAMETERS: &[Parameter] = &[MTU, RATE, BURST, DELAY, OFFLOADS, IDLE_PORTS, switch::KIND];

const MTU: Parameter = Parameter::new("link.mtu", Domain::Integer(1280, 65_000), "1500")
    .help("MTU of every device between client and target, in bytes");
const RATE: Parameter = Parameter::unset("link.rate_mbit", Domain::Number(0.1, 400_000.0))
    .help("rate limit in each direction, in Mbit/s");
const BURST: Parameter = Parameter::new("link.burst_us", Domain::Integer(0, 1_000_000), "5000")
    .help(
        "how long the link may exceed its rate after a pause, in µs at the rate; 0: frames are spaced as on a wire",
    );
const DELAY: Parameter = Parameter::new("link.delay_us", Domain::Integer(0, 10_000_000), "0")
    .help("added one-way delay, in µs");
const OFFLOADS: Parameter = Parameter::new("link.offloads", Domain::Bool, "true")
    .help("checksum and segmentation offloads on veths and taps");
const IDLE_PORTS: Parameter =
    Parameter::new("link.idle_ports", Domain::Integer(0, MOST_IDLE_PORTS), "0").help(
        "idle pairs of veths beside the target's on its bridge, as on a host of many containers",
    );

/// The most idle ports. The kernel limits a bridge to 1,023 ports, and seats need some of these.
const MOST_IDLE_PORTS: i64 = 700;

/// The link between client and target.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConfig {
    /// MTU in bytes.
    pub mtu: u32,
    /// Rate limit in Mbit/s in each direction.
    pub rate_mbit: Option<f64>,
    /// The data that passes at once after a pause, in µs at the rate; at least two frames.
    pub burst_us: u32,
    /// Added one-way delay in µs.
    pub delay_us: u32,
    /// Checksum and segmentation offloads on veths and taps.
    pub offloads: bool,
    /// Unused veth pairs on the wire.
    pub idle_ports: u32,
    /// The switch between its ports.
    pub switch: Switch,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            rate_mbit: None,
            burst_us: 5000,
            delay_us: 0,
            offloads: true,
            idle_ports: 0,
            switch: Switch::default(),
        }
    }
}

impl LinkConfig {
    /// The link of the `link.*` settings.
    ///
    /// # Errors
    /// When a number is out of the bounds of [`PARAMETERS`].
    pub fn from_settings(settings: &Settings) -> Result<Self, HostError> {
        let rate_mbit = settings
            .0
            .contains_key(RATE.key)
            .then(|| RATE.number(settings));
        if let Some(rate) = rate_mbit.filter(|rate| !(0.1..=400_000.0).contains(rate)) {
            return Err(HostError::Setting(format!(
                "{} = {rate} is not within 0.1 and 400000",
                RATE.key
            )));
        }
        let link = Self {
            mtu: MTU.bounded(settings)?,
            rate_mbit,
            burst_us: BURST.bounded(settings)?,
            delay_us: DELAY.bounded(settings)?,
            offloads: OFFLOADS.bool(settings),
            idle_ports: IDLE_PORTS.bounded(settings)?,
            switch: Switch::from_settings(settings)?,
        };
        if link.switch == Switch::None && (link.is_shaped() || link.idle_ports > 0) {
            return Err(HostError::Setting(
                "link.switch = \"none\" has neither ports beside the target's nor a device that the frames \
                 from it leave by, to be shaped there: leave link.rate_mbit, link.delay_us and link.idle_ports out"
                    .to_owned(),
            ));
        }
        Ok(link)
    }

    /// Whether the link has a rate or a delay.
    pub fn is_shaped(&self) -> bool {
        self.rate_mbit.is_some() || self.delay_us > 0
    }
}

/// The options of a tap, which must match the VMM's use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapOptions {
    /// `IFF_MULTI_QUEUE`: the VMM opens it once for each queue pair.
    pub multi_queue: bool,
    /// `IFF_VNET_HDR`: every packet carries a virtio-net header, which offloads need.
    pub vnet_header: bool,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            multi_queue: false,
            vnet_header: true,
        }
    }
}

/// The shell lines that create the bridges and the clients' sides of the seats, for the switch's namespaces. With
/// `outer`, the MAC address of an outer bridge, the first seat is on that bridge and has no client here. Without a
/// switch a client's side is its guest's tap.
pub fn client_sides(link: &LinkConfig, ipv6: bool, seats: u8, outer: Option<&str>) -> String {
    let (mtu, switch) = (link.mtu, link.switch);
    let mut script = String::from("ip -batch - <<'END'\n");
    let spaces = |seat| ["client", "target"].map(|name| numbered(name, seat));
    for space in (0..seats).flat_map(spaces) {
        // Writing to a string cannot fail.
        let _ = writeln!(script, "netns add {space}");
    }
    script.push_str("link set lo up\nEND\n");
    script.push_str(&switch.bridge(WIRE, BRIDGE_MAC, mtu));
    if let Some(mac) = outer {
        script.push_str(&switch.bridge(OUTER, mac, mtu));
    }
    if link.idle_ports > 0 {
        script.push_str(&idle_ports(link));
    }
    for seat in 0..seats {
        for space in spaces(seat).iter().rev() {
            let _ = writeln!(script, "ip -n {space} link set lo up");
        }
        if switch == Switch::None || seat == 0 && outer.is_some() {
            continue;
        }
        let client = numbered("client", seat);
        let port = Port::on_wire(End::client(seat), ipv6);
        script.push_str(&veth_side(&client, &port, link));
        for line in shaping(link) {
            let device = veth(&client);
            let _ = writeln!(script, "tc qdisc add dev {device} {line}");
            let _ = writeln!(script, "tc -n {client} qdisc add dev eth0 {line}");
        }
    }
    script
}

fn idle_ports(link: &LinkConfig) -> String {
    let (mtu, master) = (link.mtu, link.switch.master(WIRE));
    let mut script = String::from("ip -batch - <<'END'\n");
    let mut plugs = String::new();
    for port in 0..link.idle_ports {
        let _ = write!(
            script,
            "link add idle{port} mtu {mtu} type veth peer name far{port} mtu {mtu}
link set far{port} addrgenmode none up
link set idle{port}{master} addrgenmode none up
"
        );
        plugs.push_str(&link.switch.plug(&format!("idle{port}"), WIRE));
    }
    script + "END\n" + &plugs
}

/// The name of a space's veth in the switch.
pub fn veth(space: &str) -> String {
    if space.ends_with(|letter: char| letter.is_ascii_digit()) {
        space.to_owned()
    } else {
        format!("{space}0")
    }
}

/// The shell lines that connect a guest's network namespace to its bridge.
pub fn guest_side(link: &LinkConfig, port: &Port, seat: u8) -> String {
    veth_side(&numbered("target", seat), port, link)
}

/// The shell lines that create a tap: a port of the bridge, or, without a switch, a device of the client, which is
/// `client`'s end of the seat.
pub fn tap(
    name: &str,
    options: TapOptions,
    link: &LinkConfig,
    bridge: &str,
    (client, end): (&str, &Port),
) -> String {
    let multi_queue = if options.multi_queue {
        " multi_queue"
    } else {
        ""
    };
    let vnet_header = if options.vnet_header { " vnet_hdr" } else { "" };
    let (mtu, master) = (link.mtu, link.switch.master(bridge));
    let add = format!("tuntap add dev {name} mode tap{multi_queue}{vnet_header}");
    let offloads = offloads_of(link, name);
    match link.switch {
        Switch::None => format!(
            "ip -n {client} -batch - <<'END'
{add}
link set {name} address {} mtu {mtu}
END
{}{}",
            end.mac,
            addressed(client, name, end),
            in_space(client, &offloads)
        ),
        _ => format!(
            "ip -batch - <<'END'
{add}
link set {name} mtu {mtu}{master} addrgenmode none up
END
{}{offloads}",
            link.switch.plug(name, bridge)
        ),
    }
}

/// The shell lines that attach a device in the switch's namespace to a bridge.
pub fn adopted(name: &str, link: &LinkConfig, bridge: &str) -> String {
    format!(
        "ip link set dev {name} mtu {}{} addrgenmode none up\n{}{}",
        link.mtu,
        link.switch.master(bridge),
        link.switch.plug(name, bridge),
        offloads_of(link, name)
    )
}

fn veth_side(space: &str, port: &Port, link: &LinkConfig) -> String {
    let (mtu, veth, mac, bridge) = (link.mtu, veth(space), &port.mac, port.bridge);
    format!(
        "ip -batch - <<'END'
link add {veth} mtu {mtu} type veth peer name eth0 netns {space} address {mac} mtu {mtu}
link set {veth}{} addrgenmode none up
END
{}{}{}{}",
        link.switch.master(bridge),
        link.switch.plug(&veth, bridge),
        addressed(space, "eth0", port),
        offloads_of(link, &veth),
        in_space(space, &offloads_of(link, "eth0"))
    )
}

/// The shell lines that give a device in a space its addresses and enable it.
fn addressed(space: &str, device: &str, port: &Port) -> String {
    let (address, prefix) = port.address;
    let mut script = format!(
        "ip -n {space} -batch - <<'END'
link set {device} addrgenmode none
address add {address}/{prefix} dev {device}
"
    );
    if let Some((address, prefix)) = port.address_v6 {
        // No other host is on this wire: duplicate detection would only delay the first packet.
        let _ = writeln!(script, "address add {address}/{prefix} dev {device} nodad");
    }
    let _ = write!(script, "link set {device} up\nEND\n");
    script
}

/// The shell line that disables a network device's offloads.
pub fn offloads_off(device: &str) -> String {
    format!("ethtool -K {device} tx off sg off tso off gso off gro off >/dev/null")
}

/// The shell line that disables a device's offloads where the link has none, for a script.
fn offloads_of(link: &LinkConfig, device: &str) -> String {
    if link.offloads {
        String::new()
    } else {
        offloads_off(device) + "\n"
    }
}

/// A shell line, where there is one, as run in a space.
fn in_space(space: &str, line: &str) -> String {
    match line {
        "" => String::new(),
        line => format!("nsenter --net=/run/netns/{space} {line}"),
    }
}

/// The queueing disciplines of one direction: the delay outermost, the rate within.
fn shaping(link: &LinkConfig) -> Vec<String> {
    let mut lines = Vec::new();
    let mut place = "root";
    if link.delay_us > 0 {
        // The queue must hold every packet in flight; the default of 1000 is 12 ms of 1 Gbit/s.
        lines.push(format!(
            "root handle 1: netem delay {}us limit 100000",
            link.delay_us
        ));
        place = "parent 1:1";
    }
    if let Some(rate_mbit) = link.rate_mbit {
        let bytes_per_second = rate_mbit * 1e6 / 8.0;
        // tbf cannot send a frame larger than the burst; the veth passes it frames of MTU + 14 bytes.
        let two_frames = f64::from(2 * (link.mtu + 14));
        let burst = (bytes_per_second * f64::from(link.burst_us) / 1e6).max(two_frames);
        let limit = (bytes_per_second * 0.050).max(8.0 * two_frames);
        lines.push(format!(
            "{place} tbf rate {:.0}bit burst {burst:.0} limit {limit:.0}",
            rate_mbit * 1e6
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Level;

    fn settings(levels: &[(&str, Level)]) -> Settings {
        Settings(
            levels
                .iter()
                .map(|(key, level)| ((*key).to_owned(), level.clone()))
                .collect(),
        )
    }

    #[test]
    fn unset_link_settings_give_the_documented_defaults() {
        assert_eq!(
            LinkConfig::from_settings(&settings(&[])).unwrap(),
            LinkConfig::default()
        );
    }

    #[test]
    fn link_settings_are_taken_over() {
        let set = settings(&[
            ("link.mtu", Level::Integer(9000)),
            ("link.rate_mbit", Level::Integer(100)),
            ("link.burst_us", Level::Integer(0)),
            ("link.delay_us", Level::Integer(250)),
            ("link.offloads", Level::Bool(false)),
            ("link.idle_ports", Level::Integer(200)),
            ("link.switch", Level::Text("openvswitch".to_owned())),
        ]);
        let expected = LinkConfig {
            mtu: 9000,
            rate_mbit: Some(100.0),
            burst_us: 0,
            delay_us: 250,
            offloads: false,
            idle_ports: 200,
            switch: Switch::OpenVswitch,
        };
        assert_eq!(LinkConfig::from_settings(&set).unwrap(), expected);
    }

    #[test]
    fn link_settings_out_of_bounds_are_refused_by_key() {
        for (key, level) in [
            ("link.mtu", Level::Integer(-1)),
            ("link.mtu", Level::Integer(70_000)),
            ("link.rate_mbit", Level::Number(f64::NAN)),
            ("link.rate_mbit", Level::Number(0.0)),
            ("link.burst_us", Level::Integer(1_000_001)),
            ("link.delay_us", Level::Integer(i64::MAX)),
            ("link.idle_ports", Level::Integer(1024)),
        ] {
            let message = LinkConfig::from_settings(&settings(&[(key, level)]))
                .unwrap_err()
                .to_string();
            assert!(message.contains(key), "{message}");
        }
    }

    #[test]
    fn a_rate_shapes_both_directions_of_the_client_veth() {
        let link = LinkConfig {
            rate_mbit: Some(100.0),
            ..LinkConfig::default()
        };
        let script = client_sides(&link, true, 1, None);
        let tbf = "root tbf rate 100000000bit burst 62500 limit 625000";
        assert!(
            script.contains(&format!("tc qdisc add dev client0 {tbf}")),
            "{script}"
        );
        assert!(
            script.contains(&format!("tc -n client qdisc add dev eth0 {tbf}")),
            "{script}"
        );
    }

    #[test]
    fn the_burst_of_a_slow_link_still_lets_a_whole_frame_through() {
        let link = LinkConfig {
            rate_mbit: Some(0.1),
            mtu: 9000,
            ..LinkConfig::default()
        };
        assert!(
            shaping(&link)[0].contains("burst 18028 "),
            "{:?}",
            shaping(&link)
        );
    }

    #[test]
    fn a_link_without_bursts_spaces_frames_as_a_wire_does() {
        let link = LinkConfig {
            rate_mbit: Some(1000.0),
            burst_us: 0,
            ..LinkConfig::default()
        };
        let expected = "root tbf rate 1000000000bit burst 3028 limit 6250000";
        assert_eq!(shaping(&link), [expected]);
    }

    #[test]
    fn a_delay_holds_the_rate_within_it() {
        let link = LinkConfig {
            rate_mbit: Some(10.0),
            delay_us: 500,
            ..LinkConfig::default()
        };
        let lines = shaping(&link);
        assert!(
            lines[0].starts_with("root handle 1: netem delay 500us"),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with("parent 1:1 tbf rate 10000000bit"),
            "{lines:?}"
        );
    }

    #[test]
    fn every_seat_has_spaces_devices_and_addresses_of_its_own() {
        let script = client_sides(&LinkConfig::default(), true, 3, None);
        for line in [
            "netns add client\n",
            "netns add target\n",
            "netns add target2\n",
        ] {
            assert!(script.contains(line), "{script}");
        }
        for (device, address) in [("client0", 1), ("client1", 3), ("client2", 5)] {
            assert!(script.contains(&format!("link add {device} ")), "{script}");
            assert!(
                script.contains(&format!("address add 10.91.0.{address}/24")),
                "{script}"
            );
        }
        let last = u8::try_from(MOST_SEATS - 1).unwrap();
        assert_eq!(End::guest(last).address(), Ipv4Addr::new(10, 91, 0, 240));
    }

    #[test]
    fn a_host_without_ipv6_gets_no_ipv6_addresses() {
        assert!(client_sides(&LinkConfig::default(), true, 1, None).contains("fd91::1/64"));
        assert!(!client_sides(&LinkConfig::default(), false, 1, None).contains("fd91"));
    }
}
