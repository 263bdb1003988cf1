// SPDX-License-Identifier: Apache-2.0
//! The ACPI table that gives an emulated processor a choice of frequencies (ACPI 6.5, 8.4.5 and 20.2). The kernel's
//! acpi-cpufreq reads it like that of a real firmware, and writes the chosen state to the port of QEMU's `pc-testdev`.
//! Reads of the port return the last written value.

/// The processors of a host have these names in QEMU's own tables; it has at most four.
const PROCESSORS: [&[u8; 4]; 4] = [b"C000", b"C001", b"C002", b"C003"];

/// I/O port of the current frequency.
const PORT: u64 = 0xe0;

/// Transition latency and bus master latency, in microseconds.
const LATENCY: u64 = 10;

/// The states of a Xeon E5520, a processor of 2267 MHz and 80 W, whose turbo reaches 2.53 GHz (Intel ARK). The turbo is
/// a state like the others: it does not depend on what other processors do. The watts are informative: Linux does not
/// read them, and the cost model has watts of its own.
///
/// Each is its MHz, its milliwatts and the value of the port.
const STATES: [(u64, u64, u64); 4] = [
    (2533, 95_000, 0x19),
    (2267, 80_000, 0x17),
    (1867, 60_000, 0x13),
    (1600, 45_000, 0x10),
];

/// The table for a host with this many processors.
pub(crate) fn table(processors: usize) -> Vec<u8> {
    let register = register();
    let control = package(&[register.clone(), register]);
    let states: Vec<Vec<u8>> = STATES.iter().map(state).collect();
    let names = [
        name(b"_PCT", &control),
        name(b"_PSS", &package(&states)),
        name(b"_PPC", &integer(0)),
    ];
    let scopes = PROCESSORS.iter().take(processors).map(|processor| {
        let mut inside = b"\\\x2f\x03_SB_CPUS".to_vec();
        inside.extend(*processor);
        names.iter().for_each(|name| inside.extend(name));
        block(&[0x10], &inside)
    });
    definition(&scopes.collect::<Vec<_>>().concat())
}

/// A secondary table (SSDT) around its definitions.
fn definition(content: &[u8]) -> Vec<u8> {
    const CHECKSUM: usize = 9;
    let mut table = b"SSDT".to_vec();
    table.extend((36 + content.len() as u32).to_le_bytes());
    table.extend(b"\x02\0VTAX  PSTATES \x01\0\0\0VTAX\x01\0\0\0");
    table.extend(content);
    let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(checksum) = table.get_mut(CHECKSUM) {
        *checksum = sum.wrapping_neg();
    }
    table
}

fn state(&(mhz, milliwatts, control): &(u64, u64, u64)) -> Vec<u8> {
    let fields = [mhz, milliwatts, LATENCY, LATENCY, control, control];
    package(&fields.map(integer))
}

/// A buffer with the port as a generic register of 32 bits in the I/O space.
fn register() -> Vec<u8> {
    let mut descriptor = vec![0x82, 12, 0, 1, 32, 0, 0];
    descriptor.extend(PORT.to_le_bytes());
    descriptor.extend([0x79, 0]);
    let mut inside = integer(descriptor.len() as u64);
    inside.extend(descriptor);
    block(&[0x11], &inside)
}

fn package(elements: &[Vec<u8>]) -> Vec<u8> {
    let mut inside = vec![elements.len() as u8];
    inside.extend(elements.concat());
    block(&[0x12], &inside)
}

fn name(of: &[u8; 4], value: &[u8]) -> Vec<u8> {
    [&[0x08], of.as_slice(), value].concat()
}

fn integer(value: u64) -> Vec<u8> {
    let bytes = value.to_le_bytes();
    let (prefix, length) = match value {
        0 | 1 => return vec![value as u8],
        2..=0xff => (0x0a, 1),
        0x100..=0xffff => (0x0b, 2),
        0x1_0000..=0xffff_ffff => (0x0c, 4),
        _ => (0x0e, 8),
    };
    let digits = bytes.iter().copied().take(length);
    std::iter::once(prefix).chain(digits).collect()
}

/// An operator with its content; its length includes itself.
fn block(operator: &[u8], inside: &[u8]) -> Vec<u8> {
    let short = inside.len() + 1;
    let long = inside.len() + 2;
    let length = match short {
        0..=0x3f => vec![short as u8],
        // No table here is longer than 4 KiB.
        _ => vec![0x40 | (long & 0xf) as u8, (long >> 4) as u8],
    };
    [operator, &length, inside].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_how_long_it_is_and_sums_to_nothing() {
        for processors in [1, 2] {
            let table = table(processors);
            let length = u32::from_le_bytes(table[4..8].try_into().unwrap());
            assert_eq!(length as usize, table.len());
            assert_eq!(
                table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)),
                0
            );
        }
    }

    #[test]
    fn every_processor_has_all_states() {
        let holds = |table: &[u8], bytes: &[u8]| {
            table
                .windows(bytes.len())
                .filter(|part| *part == bytes)
                .count()
        };
        for processors in [1, 2] {
            let table = table(processors);
            for mhz in [2533u16, 2267, 1867, 1600] {
                let word = [&[0x0b], mhz.to_le_bytes().as_slice()].concat();
                assert_eq!(holds(&table, &word), processors, "{mhz}");
            }
            assert_eq!(holds(&table, b"\\\x2f\x03_SB_CPUSC000\x08_PCT"), 1);
            assert_eq!(holds(&table, b"C001"), processors - 1);
        }
    }

    #[test]
    fn lengths_and_integers_are_as_the_specification_has_them() {
        assert_eq!(block(&[0x10], &[7; 62])[..2], [0x10, 63]);
        // 63 bytes of content and two of length: 65 = 0x41.
        assert_eq!(block(&[0x10], &[7; 63])[..3], [0x10, 0x41, 4]);
        assert_eq!(integer(1), [1]);
        assert_eq!(integer(2), [0x0a, 2]);
        assert_eq!(integer(2267), [0x0b, 0xdb, 0x08]);
        assert_eq!(integer(80_000), [0x0c, 0x80, 0x38, 0x01, 0]);
    }
}
