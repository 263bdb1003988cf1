//! Many guests in one process: addresses, fairness, hostile guests, snapshots.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_mvm::Error;
use vtax_mvm::front::router::http_answer;
use vtax_mvm::image::{Image, SECTOR};
use vtax_mvm::machine::kvm::Host;
use vtax_mvm::population::worker::{Addresses, Workers};
use vtax_mvm::population::{Holding, Plan, Population};

fn kvm() -> bool {
    match Host::open() {
        Ok(_) => true,
        Err(reason) => {
            eprintln!("SKIPPED: {reason}");
            false
        }
    }
}

struct Running {
    population: Arc<Population>,
    workers: Workers,
}

fn start(population: Population, unix: Option<&Path>) -> Running {
    let population = Arc::new(population);
    let http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let addresses = Addresses {
        http,
        unix: unix.map(Path::to_owned),
    };
    let workers = Workers::start(Arc::clone(&population), 2, &addresses).unwrap();
    let running = Running {
        population,
        workers,
    };
    running.until(|r| r.population.census().booted == r.population.plan().count);
    running
}

fn run(image: &Image, count: u32, holding: Holding) -> Running {
    start(
        Population::new(Plan {
            image: image.clone(),
            first: 0,
            count,
            holding,
        })
        .unwrap(),
        None,
    )
}

fn web(count: u32) -> Running {
    run(&Image::shipped("web").unwrap(), count, Holding::Parked)
}

impl Running {
    fn until(&self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            assert!(
                Instant::now() < deadline && !self.workers.stopped(),
                "{:?}",
                self.population.census()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.workers.http().unwrap()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        ask(&mut stream, path)
    }
}

fn ask(stream: &mut TcpStream, path: &str) -> (u16, String) {
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())
        .unwrap();
    let mut received = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        if let Some((status, body)) = http_answer(&received) {
            return (status, String::from_utf8_lossy(&body).into_owned());
        }
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "closed after {received:?}");
        received.extend(&buffer[..count]);
    }
}

fn program(code: &[u8]) -> Image {
    let mut bytes = [0u8; SECTOR];
    bytes[..code.len()].copy_from_slice(code);
    bytes[510..].copy_from_slice(&[0x55, 0xAA]);
    Image::from_bytes("program", &bytes).unwrap()
}

#[test]
fn every_guest_answers_by_path_parked_and_live() {
    if !kvm() {
        return;
    }
    for holding in [Holding::Parked, Holding::Live] {
        let running = run(&Image::shipped("web").unwrap(), 50, holding);
        let mut stream = TcpStream::connect(running.workers.http().unwrap()).unwrap();
        for guest in 0..50 {
            assert_eq!(
                ask(&mut stream, &format!("/vm/{guest}/hi")),
                (200, "hello from micro VM\r\n".into())
            );
        }
        assert_eq!(
            ask(&mut stream, "/vm/7/missing"),
            (404, "no such page\r\n".into())
        );
        assert_eq!(ask(&mut stream, "/vm/50/hi").0, 404);
        assert_eq!(ask(&mut stream, "/elsewhere").0, 404);
        assert!(ask(&mut stream, "/status").1.contains("\"booted\":50"));
        running.workers.stop().unwrap();
    }
}

#[test]
fn requests_from_many_clients_to_one_guest_get_an_answer_each() {
    if !kvm() {
        return;
    }
    let running = web(1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(running.get("/vm/0/about").0, 200);
                }
            });
        }
    });
}

#[test]
fn the_unix_socket_is_a_guests_serial_port() {
    if !kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mvm.socket");
    let plan = Plan {
        image: Image::shipped("echo").unwrap(),
        first: 100,
        count: 3,
        holding: Holding::Parked,
    };
    let running = start(Population::new(plan).unwrap(), Some(&path));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(b"CONNECT 101\nabc").unwrap();
    let mut received = [0; 10];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"OK 101\nabc");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"CONNECT 99\n").unwrap();
    let mut refused = String::new();
    stream.read_to_string(&mut refused).unwrap();
    assert!(
        refused.starts_with("ERROR") && refused.contains("no guest"),
        "{refused}"
    );
    running.workers.stop().unwrap();
    assert!(!path.exists(), "the socket goes with its workers");
}

#[test]
fn spinning_guests_share_the_processor_fairly_and_the_others_still_answer() {
    if !kvm() {
        return;
    }
    // Guests spin after the byte 's', and answer '.' LF to anything else.
    let source = "org 0x7C00\nbits 16\n cli\n xor ax,ax\n mov ds,ax\n mov ss,ax\n mov sp,0x7C00\n mov dx,0x3FD\n\
        mov word [0x30],isr\n mov [0x32],ax\n mov al,0xEF\n out 0x21,al\n mov dx,0x3F9\n mov al,1\n out dx,al\n sti\n\
        l: hlt\n jmp l\n\
        isr: mov dx,0x3F8\n in al,dx\n cmp al,'s'\n je spin\n cmp al,'?'\n je count\n cmp al,10\n jne eoi\n mov al,'.'\n\
        out dx,al\n mov al,10\n out dx,al\n eoi: mov al,0x20\n out 0x20,al\n iret\n\
        count: mov al,[0x7E00]\n out dx,al\n jmp eoi\n\
        spin: mov al,0x20\n out 0x20,al\n sti\n s: inc dword [0x7E00]\n jmp s\n\
        times 510-($-$$) db 0\n dw 0xAA55\n";
    let image = match vtax_mvm::image::assemble_source("spinner.asm", source) {
        Ok(image) => image,
        Err(reason) => {
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
    let running = run(&image, 12, Holding::Live);
    for guest in 0..5 {
        // The spinner's own request is never answered: its client goes away.
        let mut stream = TcpStream::connect(running.workers.http().unwrap()).unwrap();
        stream
            .write_all(format!("GET /vm/{guest}/s HTTP/1.1\r\n\r\n").as_bytes())
            .unwrap();
    }
    let before = running.population.census().turns;
    std::thread::sleep(Duration::from_secs(1));
    for guest in 5..12 {
        assert_eq!(
            running.get(&format!("/vm/{guest}/x")),
            (200, ".\n".into()),
            "guest {guest}"
        );
    }
    assert!(
        running.population.census().turns > before + 100,
        "spinning guests are preempted"
    );
    let shares: Vec<u64> = (0..5)
        .map(|guest| {
            running
                .population
                .processor_time(guest)
                .unwrap()
                .as_micros() as u64
        })
        .collect();
    let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
    assert!(
        least > 0 && most <= 2 * least,
        "five spinners, µs of processor time: {shares:?}"
    );
    running.workers.stop().unwrap();
}

#[test]
fn a_guest_that_faults_is_gone_and_its_neighbours_answer() {
    if !kvm() {
        return;
    }
    // Guests wait for a byte and then load an empty interrupt table and fault.
    let code = [
        0xFA, 0x31, 0xC0, 0x8E, 0xD8, 0x8E, 0xD0, 0xBC, 0x00, 0x7C, // cli; segments; stack
        0xC7, 0x06, 0x30, 0x00, 0x24, 0x7C, 0xA3, 0x32, 0x00, // vector 0x0C -> 0x7C24
        0xB0, 0xEF, 0xE6, 0x21, 0xBA, 0xF9, 0x03, 0xB0, 0x01, 0xEE, 0xFB, // unmask
        0xF4, 0xEB, 0xFD, 0x90, 0x90, 0x90, // hlt; jmp
        0x0F, 0x01, 0x1E, 0x50, 0x7C, // 0x7C24: lidt [0x7C50], which is empty
        0x0F, 0x20, 0xC0, 0x0C, 0x01, 0x0F, 0x22, 0xC0, // protected mode
        0xCC, 0x0F, 0x0B, // int3; ud2
    ];
    let running = run(&program(&code), 3, Holding::Parked);
    let (status, text) = running.get("/vm/1/boom");
    assert!(status == 410 && text.contains("stopped"), "{status} {text}");
    assert_eq!(running.get("/vm/1/again").0, 410);
    assert_eq!(running.population.census().dead, 1);
    // The slot that it died in serves the others.
    assert_eq!(running.get("/vm/0/boom").0, 410);
    running.workers.stop().unwrap();
}

#[test]
fn a_guest_that_floods_the_serial_port_is_cut_off_and_memory_stays_capped() {
    if !kvm() {
        return;
    }
    // mov dx,0x3F8; l: mov cx,0xFFFF; rep outsb; jmp l: output without end, at the full rate
    let flood = program(&[
        0xFA, 0xBA, 0xF8, 0x03, 0xB9, 0xFF, 0xFF, 0xF3, 0x6E, 0xEB, 0xF9,
    ]);
    let running = run(&flood, 4, Holding::Parked);
    let folder = tempfile::tempdir().unwrap();
    let (status, text) = running.get("/vm/2/x");
    assert!(
        status == 502 && text.contains("too much") || status == 200,
        "{status} {text}"
    );
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    std::thread::sleep(Duration::from_secs(2));
    assert!(
        resident() < before + (32 << 20),
        "from {before} to {} bytes",
        resident()
    );
    drop(folder);
    running.workers.stop().unwrap();
}

#[test]
fn a_guest_that_writes_its_own_image_changes_only_its_own() {
    if !kvm() {
        return;
    }
    // Fills its memory from 0x7C20 up to 0xFFFF with 0xF4, which is where it then halts.
    let code = [
        0xFA, 0x31, 0xC0, 0x8E, 0xC0, 0xBF, 0x20, 0x7C, 0xB9, 0xE0, 0x83, 0xB0, 0xF4, 0xF3, 0xAA,
        0xEB, 0x0F,
    ];
    let image = program(&code);
    let running = run(&image, 20, Holding::Parked);
    // All that they wrote, and little more.
    running.until(|r| (33_700..34_100).contains(&(r.population.full_census().stored_bytes / 20)));
    assert_eq!(running.population.census().dead, 0);
    running.workers.stop().unwrap();
}

#[test]
fn a_population_survives_a_snapshot_exactly() {
    if !kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let running = web(300);
    running.get("/vm/5/hi");
    running.population.save(&first).unwrap();
    running.workers.stop().unwrap();
    let loaded = Population::load(&first).unwrap();
    loaded.save(&second).unwrap();
    let differing = std::fs::read(&first)
        .unwrap()
        .into_iter()
        .zip(std::fs::read(&second).unwrap());
    // The clock, which goes on, and with it the checksum.
    assert!(differing.filter(|(a, b)| a != b).count() <= 8 + 32);
    let running = start(loaded, None);
    assert_eq!(
        running.get("/vm/5/hi"),
        (200, "hello from micro VM\r\n".into())
    );
    assert_eq!(running.get("/vm/299/about").0, 200);
    running.workers.stop().unwrap();
}

#[test]
fn ticking_guests_go_on_ticking_after_a_snapshot() {
    if !kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ticking");
    let running = run(&Image::shipped("idle-pit").unwrap(), 3, Holding::Parked);
    let turns = |r: &Running| r.population.census().turns;
    let before = turns(&running);
    running.until(|r| turns(r) > before + 6);
    running.population.save(&path).unwrap();
    running.workers.stop().unwrap();
    let running = start(Population::load(&path).unwrap(), None);
    running.until(|r| turns(r) > 9);
    running.workers.stop().unwrap();
}

#[test]
fn a_truncated_or_altered_snapshot_is_refused_wherever_it_was_changed() {
    if !kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("population");
    let running = web(5);
    running.population.save(&path).unwrap();
    running.workers.stop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(37) {
        let mut altered = whole.clone();
        altered[at] ^= 0x40;
        std::fs::write(&path, &altered).unwrap();
        let error = Population::load(&path).unwrap_err();
        assert!(
            matches!(error, Error::Snapshot { .. })
                && error.to_string().contains("nothing was loaded"),
            "{error}"
        );
        std::fs::write(&path, &whole[..at]).unwrap();
        let error = Population::load(&path).unwrap_err();
        assert!(matches!(error, Error::Snapshot { .. }), "{error}");
    }
}

#[test]
fn guests_boot_when_they_are_admitted_and_not_before() {
    if !kvm() {
        return;
    }
    for holding in [Holding::Parked, Holding::Live] {
        let plan = Plan {
            image: Image::shipped("web").unwrap(),
            first: 0,
            count: 20,
            holding,
        };
        let population = Arc::new(Population::new(plan).unwrap());
        population.admit(0);
        let workers = Workers::start(Arc::clone(&population), 2, &Addresses::default()).unwrap();
        for admitted in [0, 3, 4, 20, 20] {
            workers.admit(admitted);
            let deadline = Instant::now() + Duration::from_secs(20);
            while population.census().booted < admitted {
                assert!(
                    Instant::now() < deadline,
                    "{admitted} admitted guests do not boot"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(population.census().booted, admitted);
        }
        workers.stop().unwrap();
    }
}

#[test]
fn a_live_population_is_not_saved_but_says_why() {
    if !kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let running = run(&Image::shipped("idle").unwrap(), 1, Holding::Live);
    let error = running
        .population
        .save(&folder.path().join("x"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("live") && error.contains("parked"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    running.workers.stop().unwrap();
}

#[test]
fn more_live_guests_than_one_process_may_hold_names_the_limit() {
    if !kvm() {
        return;
    }
    let plan = Plan {
        image: Image::shipped("idle").unwrap(),
        first: 0,
        count: u32::MAX,
        holding: Holding::Live,
    };
    // The table of so many guests is never made: the plan is refused first.
    let error = Population::new(plan).unwrap_err().to_string();
    assert!(
        error.contains("file descriptors") || error.contains("mappings"),
        "{error}"
    );
}
