// SPDX-License-Identifier: Apache-2.0
//! Many guests in one process: addresses, fairness, hostile guests, snapshots.

use crate::guests::{faulting, micro_vms, on_serial, program};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_mvm::Error;
use vtax_mvm::front::router::http_answer;
use vtax_mvm::image::Image;
use vtax_mvm::population::worker::{Addresses, Workers};
use vtax_mvm::population::{Holding, Plan, Population};
use vtax_testkit::skip;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

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

fn plan(image: &str, count: u32, holding: Holding) -> Plan {
    Plan {
        image: Image::shipped(image).unwrap(),
        first: 0,
        count,
        holding,
    }
}

fn run(image: &Image, count: u32, holding: Holding) -> Running {
    let image = image.clone();
    let plan = Plan {
        image,
        ..plan("web", count, holding)
    };
    start(Population::new(plan).unwrap(), None)
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

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.workers.http().unwrap()).unwrap();
        stream.set_read_timeout(PATIENCE).unwrap();
        stream
    }

    fn get(&self, path: &str) -> (u16, String) {
        ask(&mut self.connect(), path)
    }

    fn stop(self) {
        self.workers.stop().unwrap();
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

#[test(needs = [micro_vms()])]
fn every_guest_answers_by_path_parked_and_live() {
    for holding in [Holding::Parked, Holding::Live] {
        let running = run(&Image::shipped("web").unwrap(), 50, holding);
        let mut stream = running.connect();
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
        running.stop();
    }
}

#[test(needs = [micro_vms()])]
fn requests_from_many_clients_to_one_guest_get_an_answer_each() {
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

#[test(needs = [micro_vms()])]
fn the_unix_socket_is_a_guests_serial_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mvm.socket");
    let plan = Plan {
        first: 100,
        ..plan("echo", 3, Holding::Parked)
    };
    let running = start(Population::new(plan).unwrap(), Some(&path));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
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
    running.stop();
}

#[test(needs = [micro_vms()])]
fn the_unix_socket_replaces_a_dead_socket_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("population.sock");
    let plan = plan("web", 1, Holding::Parked);
    let addresses = Addresses {
        http: None,
        unix: Some(path.clone()),
    };
    let refused = || {
        let population = Arc::new(Population::new(plan.clone()).unwrap());
        let refused = Workers::start(population, 1, &addresses).err().unwrap();
        assert!(refused.to_string().contains(path.to_str().unwrap()));
        refused.to_string()
    };
    fs::write(&path, "precious").unwrap();
    assert!(refused().contains("a file, not a socket"));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
    // A listener whose queue is full.
    let (busy, address) = (unix_socket(), SocketAddrUnix::new(&path).unwrap());
    rustix::net::bind(&busy, &address).unwrap();
    rustix::net::listen(&busy, 0).unwrap();
    let waiting: Vec<_> = std::iter::repeat_with(unix_socket)
        .take_while(|client| rustix::net::connect(client, &address).is_ok())
        .collect();
    assert!(refused().contains("another program"));
    drop((waiting, busy));
    assert!(path.exists(), "nobody listens there any more");
    let running = start(Population::new(plan.clone()).unwrap(), Some(&path));
    UnixStream::connect(&path).unwrap();
    drop(running);
    assert!(!path.exists(), "the socket goes with its workers");
}

fn unix_socket() -> OwnedFd {
    let kind = (AddressFamily::UNIX, SocketType::STREAM);
    rustix::net::socket_with(kind.0, kind.1, SocketFlags::NONBLOCK, None).unwrap()
}

/// The count in a burner's answer to `?`.
fn counted(answer: &str) -> u32 {
    let digit = |c: u8| u32::from(c - b'a');
    let pair = |pair: &[u8]| digit(pair[0]) | digit(pair[1]) << 4;
    let pairs = answer.as_bytes()[..8].chunks(2).map(pair);
    pairs.enumerate().map(|(i, byte)| byte << (8 * i)).sum()
}

/// A connection to a guest's serial port through the UNIX socket.
fn serial(path: &Path, guest: u32) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    stream
        .write_all(format!("CONNECT {guest}\n").as_bytes())
        .unwrap();
    let mut ok = vec![0; format!("OK {guest}\n").len()];
    stream.read_exact(&mut ok).unwrap();
    assert!(ok.starts_with(b"OK "));
    stream
}

#[test(needs = [test_all("takes 5 s"), micro_vms()])]
fn guests_that_burn_processor_time_get_equal_shares_and_the_others_still_answer() {
    let source = include_str!("guests/burner.asm");
    let image = vtax_mvm::image::assemble_source("burner.asm", source)
        .unwrap_or_else(|reason| skip!("{reason}"));
    for holding in [Holding::Live, Holding::Parked] {
        let running = run(&image, 12, holding);
        let flooder = running.connect();
        (&flooder)
            .write_all(b"GET /vm/11/f HTTP/1.1\r\n\r\n")
            .unwrap();
        for guest in 0..5 {
            assert_eq!(running.get(&format!("/vm/{guest}/s")), (200, ".\n".into()));
        }
        let counts = || -> Vec<u32> {
            let count = |guest| counted(&running.get(&format!("/vm/{guest}/?")).1);
            (0..5).map(count).collect()
        };
        std::thread::sleep(Duration::from_millis(300));
        let before = counts();
        for guest in 5..11 {
            let asked = Instant::now();
            assert_eq!(running.get(&format!("/vm/{guest}/x")), (200, ".\n".into()));
            assert!(asked.elapsed() < Duration::from_secs(2), "guest {guest}");
        }
        std::thread::sleep(Duration::from_secs(2));
        let after = counts();
        // The counts of the guests themselves.
        let shares: Vec<u32> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
        let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
        assert!(
            least > 0 && f64::from(most) <= 1.5 * f64::from(least),
            "{holding:?}, what five spinners beside a flooder counted: {shares:?}"
        );
        running.stop();
    }
}

#[test(needs = [micro_vms()])]
fn a_request_is_answered_at_once_even_when_nothing_else_happens() {
    // Each of two clients waits for its answers, with pauses of any length between them: if a worker missed a request
    // or an answer, only the next event could wake it, and the only client that could cause the event may be waiting
    // itself.
    let running = web(50);
    let longest = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2u64)
            .map(|client| {
                let running = &running;
                scope.spawn(move || {
                    let mut stream = running.connect();
                    stream.set_nodelay(true).unwrap();
                    let mut random = client + 1;
                    let mut longest = Duration::ZERO;
                    for _ in 0..2000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
                        std::thread::sleep(Duration::from_nanos((random >> 33) % 200_000));
                        let asked = Instant::now();
                        let path = format!("/vm/{}/hi", (random >> 40) % 50);
                        assert_eq!(ask(&mut stream, &path).0, 200);
                        longest = longest.max(asked.elapsed());
                    }
                    longest
                })
            })
            .collect();
        clients.into_iter().map(|c| c.join().unwrap()).max()
    });
    // The time-out of a missed request, after 5 s, ends the wait at the latest.
    assert!(longest < Some(Duration::from_secs(2)), "{longest:?}");
    running.stop();
}

#[test(needs = [micro_vms()])]
fn a_client_that_sends_much_at_once_gets_every_answer() {
    const REQUESTS: usize = 3000;
    let running = web(1);
    let mut stream = running.connect();
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let requests = "GET /vm/0/hi HTTP/1.1\r\nHost: test\r\n\r\n".repeat(REQUESTS);
        writer.write_all(requests.as_bytes()).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut received = String::new();
    // The end of the connection arrives too, although all requests were sent long before.
    stream.read_to_string(&mut received).unwrap();
    assert_eq!(received.matches("hello from micro VM").count(), REQUESTS);
    writing.join().unwrap();
    running.stop();
}

#[test(needs = [test_all("takes 6 s"), micro_vms()])]
fn a_client_that_reads_nothing_does_not_fill_memory_and_its_answers_wait_for_it() {
    const REQUEST: &[u8] = b"GET /elsewhere HTTP/1.1\r\n\r\n";
    // More than all buffers of the kernel hold.
    const MOST: usize = (64 << 20) / REQUEST.len();
    let running = web(1);
    let mut stream = running.connect();
    let before = resident();
    stream
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let batch = REQUEST.repeat(1000);
    let (mut sent, mut whole) = (0, true);
    while whole && sent < MOST * REQUEST.len() {
        match stream.write(&batch[sent % REQUEST.len()..]) {
            Ok(count) => sent += count,
            Err(_) => whole = false,
        }
    }
    assert!(!whole, "it takes requests without end");
    assert!(resident() < before + (32 << 20), "{before} {}", resident());
    assert_eq!(running.get("/vm/0/hi").0, 200);
    // Every request is answered once the client reads.
    let mut reader = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut received = Vec::new();
        let end = reader.read_to_end(&mut received);
        assert!(end.is_ok(), "{end:?} after {}", received.len());
        received
            .windows(12)
            .filter(|w| *w == b"HTTP/1.1 404")
            .count()
    });
    // The rest of the last request, whose beginning may have been sent.
    stream.set_write_timeout(None).unwrap();
    let rest = sent % REQUEST.len();
    if rest > 0 {
        stream.write_all(&REQUEST[rest..]).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(reading.join().unwrap(), sent.div_ceil(REQUEST.len()));
    running.stop();
}

#[test(needs = [micro_vms()])]
fn a_client_that_hangs_up_with_its_request_is_answered_and_closed() {
    let running = web(1);
    for _ in 0..50 {
        let mut stream = running.connect();
        stream.write_all(b"GET /vm/0/hi HTTP/1.1\r\n\r\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        assert!(received.ends_with("hello from micro VM\r\n"), "{received}");
    }
    running.stop();
}

#[test(needs = [micro_vms()])]
fn a_long_text_for_a_guest_arrives_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("echo");
    let plan = plan("echo", 1, Holding::Parked);
    let running = start(Population::new(plan).unwrap(), Some(&path));
    let mut stream = serial(&path, 0);
    // More than a connection buffers, and less than the serial line of a guest does.
    let text: Vec<u8> = (0..15_000u32).map(|i| (i % 251) as u8).collect();
    stream.write_all(&text).unwrap();
    let mut echo = vec![0; text.len()];
    stream.read_exact(&mut echo).unwrap();
    assert!(echo == text);
    running.stop();
}

#[test(needs = [micro_vms()])]
fn a_guest_that_faults_is_gone_and_its_neighbours_answer() {
    let running = run(&faulting(), 3, Holding::Parked);
    let (status, text) = running.get("/vm/1/boom");
    assert!(status == 410 && text.contains("stopped"), "{status} {text}");
    assert_eq!(running.get("/vm/1/again").0, 410);
    assert_eq!(running.population.census().dead, 1);
    // The slot in which the guest died serves the other guests.
    assert_eq!(running.get("/vm/0/boom").0, 410);
    running.stop();
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test(needs = [micro_vms()])]
fn a_guest_that_floods_the_serial_port_is_cut_off_and_memory_stays_capped() {
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
    let before = resident();
    std::thread::sleep(Duration::from_secs(2));
    assert!(
        resident() < before + (32 << 20),
        "from {before} to {} bytes",
        resident()
    );
    drop(folder);
    running.stop();
}

#[test(needs = [test_all("takes 4 s"), micro_vms()])]
fn a_guest_that_answers_with_4_gib_is_cut_off_and_its_neighbours_answer() {
    // Guests answer a line with an empty one, and a 4 with 65,536 times all of their memory.
    let code = [
        0xBA, 0xFD, 0x03, 0xEC, 0xA8, 0x01, 0x74, 0x10, // 0x7C24: anything received?
        0xBA, 0xF8, 0x03, 0xEC, 0x3C, b'4', 0x74, 0x0D, // a 4: flood
        0x3C, b'\n', 0x75, 0xEC, 0xEE, 0xEB, 0xE9, 0x90, // the end of a line: echo it
        0xB0, 0x20, 0xE6, 0x20, 0xCF, // end of interrupt; iret
        0x66, 0xBB, 0x00, 0x00, 0x01, 0x00, 0x31, 0xF6, // flood: mov ebx, 65536; xor si, si
        0xB9, 0x00, 0x80, 0xF3, 0x6E, 0xB9, 0x00, 0x80, 0xF3, 0x6E, // rep outsb, 2 x 32 KiB
        0x66, 0x4B, 0x75, 0xF0, 0xEB, 0xCB, // dec ebx; jnz; back
    ];
    for holding in [Holding::Parked, Holding::Live] {
        let running = run(&on_serial(&code), 8, holding);
        assert_eq!(running.get("/vm/0/a"), (200, "\n".to_owned()));
        let before = resident();
        for flooding in [2, 5] {
            let (status, text) = running.get(&format!("/vm/{flooding}/4"));
            assert!(
                status == 502 && text.contains("too much"),
                "{status} {text}"
            );
        }
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for neighbour in [0, 1, 3, 4, 6, 7] {
                let asked = Instant::now();
                let (status, text) = running.get(&format!("/vm/{neighbour}/a"));
                assert_eq!((status, text.as_str()), (200, "\n"));
                assert!(asked.elapsed() < Duration::from_secs(2), "{neighbour}");
            }
        }
        assert!(resident() < before + (32 << 20), "{before} {}", resident());
        assert_eq!(running.population.census().dead, 0);
        running.stop();
    }
}

#[test(needs = [micro_vms()])]
fn a_guest_that_writes_its_own_image_changes_only_its_own() {
    // Fills the guest's memory from 0x7C20 to 0xFFFF with 0xF4, the code of the halt that follows.
    let code = [
        0xFA, 0x31, 0xC0, 0x8E, 0xC0, 0xBF, 0x20, 0x7C, 0xB9, 0xE0, 0x83, 0xB0, 0xF4, 0xF3, 0xAA,
        0xEB, 0x0F,
    ];
    let image = program(&code);
    let running = run(&image, 20, Holding::Parked);
    // The written bytes of each guest, and little more.
    running.until(|r| (33_700..34_100).contains(&(r.population.full_census().stored_bytes / 20)));
    assert_eq!(running.population.census().dead, 0);
    running.stop();
}

#[test(needs = [micro_vms()])]
fn a_population_survives_a_snapshot_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let running = web(300);
    running.get("/vm/5/hi");
    running.population.save(&first).unwrap();
    running.stop();
    let loaded = Population::load(&first).unwrap();
    loaded.save(&second).unwrap();
    let differing = std::fs::read(&first)
        .unwrap()
        .into_iter()
        .zip(std::fs::read(&second).unwrap());
    // The clock, which advances, and the checksum, which depends on it.
    assert!(differing.filter(|(a, b)| a != b).count() <= 8 + 32);
    let running = start(loaded, None);
    assert_eq!(
        running.get("/vm/5/hi"),
        (200, "hello from micro VM\r\n".into())
    );
    assert_eq!(running.get("/vm/299/about").0, 200);
    running.stop();
}

#[test(needs = [micro_vms()])]
fn ticking_guests_go_on_ticking_after_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ticking");
    let running = run(&Image::shipped("idle-pit").unwrap(), 3, Holding::Parked);
    let turns = |r: &Running| r.population.census().turns;
    let before = turns(&running);
    running.until(|r| turns(r) > before + 6);
    running.population.save(&path).unwrap();
    running.stop();
    let running = start(Population::load(&path).unwrap(), None);
    running.until(|r| turns(r) > 9);
    running.stop();
}

#[test(needs = [micro_vms()])]
fn a_truncated_or_altered_snapshot_is_refused_wherever_it_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("population");
    let running = web(5);
    running.population.save(&path).unwrap();
    running.stop();
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

#[test(needs = [micro_vms()])]
fn guests_boot_when_they_are_admitted_and_not_before() {
    for holding in [Holding::Parked, Holding::Live] {
        let plan = plan("web", 20, holding);
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

#[test(needs = [micro_vms()])]
fn a_live_population_is_not_saved_but_says_why() {
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
    running.stop();
}

#[test(needs = [micro_vms()])]
fn more_live_guests_than_one_process_may_hold_names_the_limit() {
    let plan = plan("idle", u32::MAX, Holding::Live);
    // The plan is refused before the table of so many guests is allocated.
    let error = Population::new(plan).unwrap_err().to_string();
    assert!(
        error.contains("file descriptors") || error.contains("mappings"),
        "{error}"
    );
}

/// Random guests: storms on all ports, resets by the keyboard controller, by port 0xCF9 and by a triple fault, halts with
/// interrupts off, endless loops, writes over their own code. Each population is one random program; the monitor
/// survives, keeps its memory, and a population of well-behaved guests in the same process goes on.
#[test(needs = [test_all("takes 20 s"), micro_vms()])]
fn storms_of_random_guests_end_at_most_themselves() {
    let friends = web(2);
    let mut seed = 43_u64;
    let mut random = move |most: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % most
    };
    let (mut answered, mut dead) = (0, 0);
    let before = resident();
    for round in 0..40 {
        // cli; xor ax,ax; mov ds,ax; mov ss,ax; mov sp,0x7C00
        let mut code = vec![0xFA, 0x31, 0xC0, 0x8E, 0xD8, 0x8E, 0xD0, 0xBC, 0x00, 0x7C];
        while code.len() < 440 {
            let port = [random(256) as u8, random(8) as u8];
            let value = random(256) as u8;
            match random(11) {
                0 => code.extend([0xB0, value, 0xE6, port[0]]), // out imm8, al
                1 => code.extend([0xE4, port[0]]),              // in al, imm8
                2 => code.extend([0xBA, port[0], port[1], 0xB0, value, 0xEE]), // out dx, al
                3 => code.extend([0xBA, port[0], port[1], 0x66, 0xED]), // in eax, dx
                4 => code.extend([0xBA, port[0], port[1], 0xB9, 0xFF, 0xFF, 0xF3, 0x6E]), // rep outsb
                5 => code.extend([
                    0xBA, port[0], port[1], 0xB9, 0xFF, 0x0F, 0x31, 0xFF, 0xF3, 0x6C,
                ]), // rep insb
                6 => code.extend([0xB0, 0xFE, 0xE6, 0x64]), // reset: the keyboard controller
                7 => code.extend([0xBA, 0xF9, 0x0C, 0xB0, 0x06, 0xEE]), // reset: 0xCF9
                8 => code.extend([0xFB, 0xF4, 0xFA]),       // sti; hlt; cli
                9 if random(8) == 0 => code.extend([0x0F, 0x01, 0x1E, 0x00, 0x7D, 0xCC]), // an empty table of interrupts
                9 => code.push(value), // any byte
                _ => code.extend([0xC6, 0x06, value, 0x7C, port[0]]), // over its own code
            }
        }
        code.extend([0xE9, 0x3E, 0xFE]); // back to near the beginning
        code.truncate(509);
        let image = program(&code);
        let plan = Plan {
            image,
            first: 0,
            count: 8,
            holding: if round % 2 == 0 {
                Holding::Parked
            } else {
                Holding::Live
            },
        };
        let population = Arc::new(Population::new(plan).unwrap());
        let addresses = Addresses {
            http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            unix: None,
        };
        let workers = Workers::start(Arc::clone(&population), 2, &addresses).unwrap();
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            let mut stream = TcpStream::connect(workers.http().unwrap()).unwrap();
            let request = format!("GET /vm/{}/x HTTP/1.1\r\nHost: x\r\n\r\n", random(10));
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
            answered += usize::from(stream.read(&mut [0; 64]).is_ok_and(|read| read > 0));
        }
        assert!(!workers.stopped(), "round {round}");
        dead += population.census().dead;
        workers.stop().unwrap();
        assert_eq!(friends.get("/vm/1/").0, 200, "round {round}");
    }
    eprintln!("320 guests in 40 populations: {dead} ended, {answered} requests answered");
    assert!(dead > 0 && answered > 0, "{dead} and {answered}");
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    friends.stop();
}
