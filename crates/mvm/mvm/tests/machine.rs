// SPDX-License-Identifier: Apache-2.0
//! One guest on KVM: its output, and that parking is invisible to it.

use crate::guests::micro_vms;
use proptest::prelude::*;
use vtax_mvm::image::{Image, SECTOR};
use vtax_mvm::machine::kvm::{Arena, Host, Slot, Tenancy};
use vtax_mvm::machine::pack::{pack, unpack};
use vtax_mvm::machine::state::{Processor, Reset};
use vtax_mvm::machine::{Clock, Fault, Stop, devices::Devices, run};

fn host() -> Host {
    Host::open().unwrap()
}

/// A guest in slot 0, and a second slot to move to.
struct Bench {
    slots: Vec<Slot>,
    current: usize,
    devices: Devices,
    clock: Clock,
    reset: Reset,
}

impl Bench {
    fn new(host: &Host, image: &Image) -> Self {
        let arena = Arena::new(2).unwrap();
        let mut slots: Vec<Slot> = (0..2)
            .map(|i| Slot::new(host, &arena, i, image, Tenancy::One).unwrap())
            .collect();
        let reset = slots[0].reset_state(image).unwrap();
        Self {
            slots,
            current: 0,
            devices: Devices::default(),
            clock: Clock::Counted(0),
            reset,
        }
    }

    fn run(&mut self, entries: Option<u32>) -> (Stop, Vec<u8>) {
        let mut output = Vec::new();
        let slot = &mut self.slots[self.current];
        let (stop, lost) = run(
            slot,
            &mut self.devices,
            &mut self.clock,
            entries,
            &mut output,
            1 << 16,
        )
        .unwrap();
        assert_eq!(lost, 0);
        (stop, output)
    }

    /// Parks the guest and wakes it in the other slot. Returns its size while parked.
    fn park_and_wake(&mut self) -> usize {
        let stored = pack(&mut self.slots[self.current], &self.devices, &self.reset).unwrap();
        self.current = 1 - self.current;
        self.devices = unpack(&stored, &mut self.slots[self.current], &self.reset).unwrap();
        stored.len()
    }
}

#[test(needs = [micro_vms()])]
fn web_answers_by_path_and_404_otherwise() {
    let host = host();
    let mut bench = Bench::new(&host, &Image::shipped("web").unwrap());
    assert_eq!(bench.run(None), (Stop::Halted, vec![]));
    for (request, answer) in [
        ("/hi\n", "200 hello from micro VM\r\n"),
        ("/about\n", "200 one boot sector of 512 bytes\r\n"),
        ("/\n", "200 pages: /hi /about\r\n"),
        ("/nothing\n", "404 no such page\r\n"),
        ("\n", "404 no such page\r\n"),
        (
            &format!("/{}\n", "long".repeat(100)),
            "404 no such page\r\n",
        ),
        ("/hi\n", "200 hello from micro VM\r\n"),
    ] {
        bench.devices.receive(request.as_bytes());
        let (stop, output) = bench.run(None);
        assert_eq!(
            (stop, String::from_utf8(output).unwrap().as_str()),
            (Stop::Halted, answer),
            "{request:?}"
        );
    }
}

#[test(needs = [micro_vms()])]
fn a_parked_web_guest_takes_a_few_hundred_bytes_and_answers_in_another_slot() {
    let host = host();
    let mut bench = Bench::new(&host, &Image::shipped("web").unwrap());
    bench.run(None);
    for _ in 0..3 {
        let size = bench.park_and_wake();
        assert!(size < 300, "{size} bytes");
        bench.devices.receive(b"/hi\n");
        assert_eq!(
            bench.run(None),
            (Stop::Halted, b"200 hello from micro VM\r\n".to_vec())
        );
    }
}

#[test(needs = [micro_vms()])]
fn a_slot_that_a_guest_left_is_exactly_as_at_reset() {
    let host = host();
    let mut bench = Bench::new(&host, &Image::shipped("web").unwrap());
    let before = bench.slots[0].memory().to_vec();
    bench.run(None);
    assert_ne!(bench.slots[0].memory(), before);
    bench.park_and_wake();
    assert_eq!(bench.slots[0].memory(), before);
}

#[test(needs = [micro_vms()])]
fn echo_returns_what_it_got() {
    let host = host();
    let mut bench = Bench::new(&host, &Image::shipped("echo").unwrap());
    bench.run(None);
    let text: Vec<u8> = (0..=255).cycle().take(2000).collect();
    bench.devices.receive(&text);
    assert_eq!(bench.run(None), (Stop::Halted, text));
}

#[test(needs = [micro_vms()])]
fn idle_never_has_a_deadline_and_idle_pit_always_has() {
    let host = host();
    let mut idle = Bench::new(&host, &Image::shipped("idle").unwrap());
    assert_eq!(idle.run(None).0, Stop::Halted);
    assert_eq!(idle.devices.deadline(), None);
    let mut ticking = Bench::new(&host, &Image::shipped("idle-pit").unwrap());
    for _ in 0..5 {
        assert_eq!(ticking.run(None).0, Stop::Halted);
        ticking.clock = Clock::Counted(ticking.devices.deadline().unwrap());
    }
    let ticks = ticking.slots[0].memory()[0x7C00..]
        .windows(2)
        .any(|w| w == [4, 0]);
    assert!(ticks, "four ticks were counted in memory");
}

fn program(code: &[u8]) -> Image {
    let mut bytes = [0u8; SECTOR];
    bytes[..code.len()].copy_from_slice(code);
    bytes[510..].copy_from_slice(&[0x55, 0xAA]);
    Image::from_bytes("program", &bytes).unwrap()
}

#[test(needs = [micro_vms()])]
fn a_triple_fault_is_the_end_of_its_guest_only() {
    let host = host();
    // lidt [0x7C50], which is empty; protected mode; int3; ud2
    let code = [
        0x0F, 0x01, 0x1E, 0x50, 0x7C, 0x0F, 0x20, 0xC0, 0x0C, 0x01, 0x0F, 0x22, 0xC0, 0xCC, 0x0F,
        0x0B,
    ];
    let mut bench = Bench::new(&host, &program(&code));
    let Stop::Dead(fault) = bench.run(None).0 else {
        panic!("alive")
    };
    // KVM PVM reports the shutdown of a real-mode guest as an internal error (17).
    assert!(
        matches!(fault, Fault::TripleFault | Fault::Unsupported(17)),
        "{fault:?}"
    );
}

#[test(needs = [micro_vms()])]
fn a_reset_by_the_keyboard_controller_is_the_end() {
    let host = host();
    // mov al, 0xFE; out 0x64, al; hlt
    let mut bench = Bench::new(&host, &program(&[0xB0, 0xFE, 0xE6, 0x64, 0xF4]));
    assert_eq!(bench.run(None).0, Stop::Dead(Fault::Reset));
}

#[test(needs = [micro_vms()])]
fn memory_that_is_not_there_reads_as_ones() {
    let host = host();
    // mov ax, 0xA000; mov ds, ax; mov [0], al; mov al, [0]; mov dx, 0x3F8; out dx, al; hlt
    let code = [
        0xB8, 0, 0xA0, 0x8E, 0xD8, 0xA2, 0, 0, 0xA0, 0, 0, 0xBA, 0xF8, 0x03, 0xEE, 0xF4,
    ];
    let mut bench = Bench::new(&host, &program(&code));
    assert_eq!(bench.run(None), (Stop::Halted, vec![0xFF]));
}

/// One instruction of a random program. All instructions together affect every kind of state.
fn instruction() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>();
    prop_oneof![
        // mov r16, imm16, but SP
        (0u8..7, any::<u16>()).prop_map(|(r, v)| {
            let r = if r >= 4 { r + 1 } else { r };
            vec![0xB8 + r, v as u8, (v >> 8) as u8]
        }),
        // add ax, imm16; xor ax, bx; inc, dec; mul bx; rol
        any::<u16>().prop_map(|v| vec![0x05, v as u8, (v >> 8) as u8]),
        Just(vec![0x31, 0xD8]),
        (0u8..4).prop_map(|r| vec![0x40 + r]),
        Just(vec![0xF7, 0xE3]),
        Just(vec![0xD1, 0xC0]),
        // push ax; pop cx; pushf
        Just(vec![0x50, 0x59]),
        Just(vec![0x9C, 0x5A]),
        // mov [0x5000 + imm8], ax; add cx, [0x5000 + imm8]
        byte.prop_map(|v| vec![0xA3, v, 0x50]),
        byte.prop_map(|v| vec![0x03, 0x0E, v, 0x50]),
        // mov byte [0x7D00 + imm8], al: a write to the guest's own image
        (0u8..0x80).prop_map(|v| vec![0xA2, 0x80 | v, 0x7D]),
        // rep insb of four bytes
        Just(vec![
            0xB9, 4, 0, 0xBF, 0x10, 0x60, 0xBA, 0xF8, 0x03, 0xF3, 0x6C
        ]),
        // send al; send cl
        Just(vec![0xBA, 0xF8, 0x03, 0xEE]),
        Just(vec![0xBA, 0xF8, 0x03, 0x88, 0xC8, 0xEE]),
        // receive into al
        Just(vec![0xBA, 0xF8, 0x03, 0xEC]),
        // read UART and controller registers
        (0x3F9u16..0x400).prop_map(|p| vec![0xBA, p as u8, (p >> 8) as u8, 0xEC]),
        Just(vec![0xE4, 0x20]),
        Just(vec![0xE4, 0x21]),
        // UART scratch and interrupt enable
        Just(vec![0xBA, 0xFF, 0x03, 0xEE]),
        (0u8..4).prop_map(|v| vec![0xB0, v, 0xBA, 0xF9, 0x03, 0xEE]),
        // interrupt mask; timer mode and count; read the count
        byte.prop_map(|v| vec![0xB0, v, 0xE6, 0x21]),
        (0u8..3).prop_map(|m| vec![0xB0, 0x30 | m << 1, 0xE6, 0x43, 0xE6, 0x40, 0xE6, 0x40]),
        Just(vec![0xB0, 0x00, 0xE6, 0x43, 0xE4, 0x40]),
        // interrupts on and off; direction
        Just(vec![0xFB]),
        Just(vec![0xFA]),
        Just(vec![0xFD]),
        Just(vec![0xFC]),
        // segment registers
        Just(vec![0x8E, 0xC0]),
        // halt with interrupts on, so that the timer or the line can end it
        Just(vec![0xFB, 0xF4]),
        // rep outsb of three bytes; rep stosb of five
        Just(vec![0xB9, 3, 0, 0xBA, 0xF8, 0x03, 0xF3, 0x6E]),
        Just(vec![0xB9, 5, 0, 0xBF, 0x00, 0x60, 0xF3, 0xAA]),
        // debug register 0
        Just(vec![0x66, 0x0F, 0xB7, 0xC0, 0x0F, 0x23, 0xC0]),
        Just(vec![0x0F, 0x21, 0xC3]),
    ]
}

/// The places at which a guest may be interrupted.
#[derive(Clone, Copy, PartialEq)]
enum Interruptible {
    /// Wherever its interrupt flag is set. The exact place depends on when KVM notices, and so on the host's own
    /// interrupts.
    Anywhere,
    /// Only where it halts, which is the same in every run.
    WhereItHalts,
}

/// A program with an interrupt handler at `0x7C02` for IRQ 0 to 7, which counts, sends a byte and returns.
fn random_program(body: &[Vec<u8>], interruptible: Interruptible) -> Image {
    let mut code = vec![0xEB, 0x00];
    code.extend([
        0x50, 0x52, // push ax; push dx
        0xFF, 0x06, 0x00, 0x52, // inc word [0x5200]
        0xBA, 0xFA, 0x03, 0xEC, // in al, 0x3FA
        0xBA, 0xF8, 0x03, 0xEC, // in al, 0x3F8
        0xB0, 0x21, 0xEE, // mov al, '!'; out dx, al
        0xB0, 0x20, 0xE6, 0x20, // end of interrupt
        0x5A, 0x58, // pop dx; pop ax
    ]);
    if interruptible == Interruptible::WhereItHalts {
        // push bp; mov bp, sp; and byte [bp + 7], 0xFD; pop bp: return with interrupts off
        code.extend([0x55, 0x89, 0xE5, 0x80, 0x66, 0x07, 0xFD, 0x5D]);
    }
    code.push(0xCF); // iret
    code[1] = (code.len() - 2) as u8;
    // cli; xor ax,ax; mov ds,ax; mov es,ax; mov ss,ax; mov sp,0x7C00
    code.extend([
        0xFA, 0x31, 0xC0, 0x8E, 0xD8, 0x8E, 0xC0, 0x8E, 0xD0, 0xBC, 0x00, 0x7C,
    ]);
    // mov cx,8; mov di,0x20; (mov word [di],0x7C02; mov [di+2],ax; add di,4; loop)
    code.extend([
        0xB9, 8, 0, 0xBF, 0x20, 0, 0xC7, 0x05, 0x02, 0x7C, 0x89, 0x45, 0x02, 0x83, 0xC7, 4, 0xE2,
        0xF4,
    ]);
    let loop_start = code.len();
    for instruction in body {
        let mut instruction = instruction.clone();
        if interruptible == Interruptible::WhereItHalts {
            match *instruction {
                // sti alone becomes nop; sti; hlt is followed by cli
                [0xFB] => instruction = vec![0x90],
                [0xFB, 0xF4] => instruction.push(0xFA),
                _ => {}
            }
        }
        if code.len() + instruction.len() > 500 {
            break;
        }
        code.extend(instruction);
    }
    // A backward jump, modulo 64 KiB.
    let back = (loop_start as u16).wrapping_sub(code.len() as u16 + 3);
    let [low, high] = back.to_le_bytes();
    code.extend([0xE9, low, high]);
    program(&code)
}

/// The observable results of a run, and the guest's final state.
#[derive(Debug, PartialEq)]
struct Observed {
    output: Vec<u8>,
    stops: Vec<Stop>,
    /// The time and the processor after each piece.
    trace: Vec<(u64, Processor)>,
    state: Box<[u8]>,
}

/// Pieces of a run: the number of entries into the guest, and the bytes that arrive at their start.
fn pieces() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    prop::collection::vec((1u32..12, prop::collection::vec(any::<u8>(), 0..6)), 1..25)
}

/// Runs a guest in pieces and parks it after each piece for which `parked`, repeated cyclically, is true.
fn observe(host: &Host, image: &Image, pieces: &[(u32, Vec<u8>)], parked: &[bool]) -> Observed {
    let mut bench = Bench::new(host, image);
    let (mut output, mut stops, mut trace) = (Vec::new(), Vec::new(), Vec::new());
    let mut parked = parked.iter().copied().cycle();
    for (entries, input) in pieces {
        bench.devices.receive(input);
        let (stop, printed) = bench.run(Some(*entries));
        output.extend(printed);
        stops.push(stop);
        let Clock::Counted(now) = bench.clock else {
            unreachable!()
        };
        trace.push((now, bench.slots[bench.current].save().unwrap()));
        if let Stop::Dead(_) = stop {
            break;
        }
        if stop == Stop::Halted
            && let (Some(deadline), Clock::Counted(now)) =
                (bench.devices.deadline(), &mut bench.clock)
        {
            *now = deadline.max(*now);
        }
        if parked.next() == Some(true) {
            bench.park_and_wake();
        }
    }
    let state = pack(
        &mut bench.slots[bench.current],
        &bench.devices,
        &bench.reset,
    )
    .unwrap();
    Observed {
        output,
        stops,
        trace,
        state,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test(needs = [test_all("takes 10 s"), micro_vms()])]
    fn a_random_guest_cannot_tell_that_it_was_parked(
        body in prop::collection::vec(instruction(), 1..60),
        pieces in pieces(),
    ) {
        let host = host();
        let mut body = body;
        body.push(vec![0xE4, 0x21]);
        let image = random_program(&body, Interruptible::WhereItHalts);
        let never = observe(&host, &image, &pieces, &[]);
        // At every stop, and at some stops.
        for parked in [vec![true], vec![false, true, true], vec![true, false]] {
            prop_assert_eq!(&observe(&host, &image, &pieces, &parked), &never, "parked {:?}", parked);
        }
    }

    #[test(needs = [test_all("takes 6 s"), micro_vms()])]
    fn a_random_guest_that_is_interrupted_anywhere_cannot_tell_that_it_was_parked(
        body in prop::collection::vec(instruction(), 1..60),
        pieces in pieces(),
    ) {
        let host = host();
        let mut body = body;
        body.push(vec![0xE4, 0x21]);
        let image = random_program(&body, Interruptible::Anywhere);
        // Two runs may differ, parked or not, so the comparison is repeated. A state that parking loses would differ in
        // every one of them. The test above needs no repetition.
        let same = (0..8).any(|_| observe(&host, &image, &pieces, &[]) == observe(&host, &image, &pieces, &[true]));
        prop_assert!(same, "eight pairs of runs, parked and not, and no two alike");
    }

    #[test(needs = [micro_vms()])]
    fn stored_bytes_of_any_kind_are_unpacked_or_refused(stored in prop::collection::vec(any::<u8>(), 0..200)) {
        let host = host();
        let image = Image::shipped("idle").unwrap();
        let arena = Arena::new(1).unwrap();
        let mut slot = Slot::new(&host, &arena, 0, &image, Tenancy::One).unwrap();
        let reset = slot.reset_state(&image).unwrap();
        let before = slot.memory().to_vec();
        if unpack(&stored, &mut slot, &reset).is_err() {
            prop_assert_eq!(slot.memory(), before);
        }
    }
}
