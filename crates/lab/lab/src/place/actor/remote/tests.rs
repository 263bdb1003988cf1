// SPDX-License-Identifier: Apache-2.0
//! Tests of the connection to an actor, over sockets.

use super::*;
use crate::place::actor::serve::serve;
use crate::place::clocks::Alignment;
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicI64;
use vtax_core::Nanoseconds;
use vtax_core::owner::Owner;

/// A clock that a test moves.
#[derive(Default)]
struct Steppable(AtomicI64);

impl Clock for Steppable {
    fn now(&self) -> Nanoseconds {
        let step = self.0.load(Ordering::SeqCst);
        Nanoseconds(SystemClock.now().0.checked_add_signed(step).unwrap())
    }
    fn wall(&self) -> Nanoseconds {
        SystemClock.wall()
    }
}

/// Starts an actor on a thread, with a socket to it.
fn actor(clock: Arc<dyn Clock>) -> (RemoteActor, UnixStream, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let input = theirs.try_clone().unwrap();
    let thread = std::thread::spawn(move || {
        // The actor ends with an error when its socket is shut down.
        let _ = serve(input, theirs, clock);
    });
    let (output, wire) = (ours.try_clone().unwrap(), ours.try_clone().unwrap());
    let actor = RemoteActor::over("there", output, Box::new(ours), None, None).unwrap();
    (actor, wire, thread)
}

fn line(words: &[&str]) -> CommandLine {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn wait(running: &mut dyn Running) -> Outcome<Finished> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(finished) = running.poll()? {
            return Ok(finished);
        }
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_alive(pid: i32) -> bool {
    vtax_host::cell::process::is_alive(u32::try_from(pid).unwrap())
}

/// Starts a command that writes its PID into a file and then waits.
fn sleeper(actor: &RemoteActor, folder: &Path) -> (Box<dyn Running>, i32) {
    let file = folder.join("pid");
    let script = format!(
        "echo $$ > {0}.new; mv {0}.new {0}; sleep 1000 & wait",
        file.display()
    );
    let running = actor.start(&line(&["sh", "-c", &script])).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Ok(text) = std::fs::read_to_string(&file) {
            return (running, text.trim().parse().unwrap());
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn eventually_gone(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "{pid} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn commands_run_there_with_their_code_and_output_and_several_at_once() {
    let (actor, _wire, _thread) = actor(Arc::new(SystemClock));
    let mut one = actor
        .start(&line(&["sh", "-c", "printf a\\\\0b; echo no >&2; exit 3"]))
        .unwrap();
    let mut two = actor.start(&line(&["true"])).unwrap();
    let finished = wait(one.as_mut()).unwrap();
    assert_eq!(finished.code, 3);
    assert_eq!(finished.stdout, b"a\0b");
    assert_eq!(finished.stderr, b"no\n");
    assert_eq!(wait(two.as_mut()).unwrap().code, 0);
    let missing = actor.start(&line(&["/no/such/program"]));
    let message = missing.err().unwrap().to_string();
    assert!(
        message.contains("there") && message.contains("/no/such/program"),
        "{message}"
    );
    assert_eq!(
        actor.lacks(&["sh", "no-such-program"]).unwrap(),
        ["no-such-program"]
    );
}

#[test]
fn it_connects_as_the_client_would() {
    let (actor, _wire, _thread) = actor(Arc::new(SystemClock));
    // An address of this test alone: another could take the port on 127.0.0.1 once it is closed.
    let listener = TcpListener::bind("127.77.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    assert!(actor.can_connect(address.ip(), address.port()).unwrap());
    drop(listener);
    assert!(!actor.can_connect(address.ip(), address.port()).unwrap());
}

#[test]
fn a_load_that_is_dropped_is_killed_with_all_that_it_started() {
    let (actor, _wire, _thread) = actor(Arc::new(SystemClock));
    let folder = tempfile::tempdir().unwrap();
    let (running, pid) = sleeper(&actor, folder.path());
    let children = vtax_host::cell::process::children(u32::try_from(pid).unwrap());
    drop(running);
    eventually_gone(pid);
    for child in children {
        eventually_gone(i32::try_from(child).unwrap());
    }
}

#[test]
fn a_cut_wire_fails_the_load_and_ends_the_actor_and_what_it_started() {
    let (actor, wire, thread) = actor(Arc::new(SystemClock));
    let folder = tempfile::tempdir().unwrap();
    let (mut running, pid) = sleeper(&actor, folder.path());
    wire.shutdown(Shutdown::Both).unwrap();
    let message = wait(running.as_mut()).unwrap_err().to_string();
    assert!(
        message.contains("the host there is not to be reached"),
        "{message}"
    );
    thread.join().unwrap();
    eventually_gone(pid);
    assert!(actor.is_lost());
    assert!(actor.offset().is_err());
}

#[test]
fn what_is_sampled_there_comes_with_its_owners_and_times() {
    let clock = Arc::new(Steppable::default());
    clock.0.store(5_000_000_000, Ordering::SeqCst);
    let (actor, _wire, _thread) = actor(clock);
    let before = actor.offset().unwrap();
    assert!(
        before.ahead.abs_diff(5_000_000_000) <= before.bound.0.into(),
        "{before:?}"
    );
    let began = SystemClock.now();
    actor.observe(50.0, None).unwrap();
    let mut busy = actor
        .start(&line(&[
            "sh",
            "-c",
            "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done",
        ]))
        .unwrap();
    wait(busy.as_mut()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let gathered = actor.collect().unwrap();
    let clocks = Alignment {
        before,
        after: actor.offset().unwrap(),
    };
    assert_eq!(clocks.suspicion(), None);
    let owners: std::collections::BTreeSet<String> = gathered
        .columns
        .iter()
        .map(|column| column.series(&Owner::Client).owner.to_string())
        .collect();
    assert_eq!(
        owners.into_iter().collect::<Vec<_>>(),
        ["client", "client.host", "client.vtax"]
    );
    let used = gathered
        .columns
        .iter()
        .find(|column| column.series.owner == Owner::Client)
        .unwrap();
    assert!(
        used.values.last().unwrap() - used.values[0] > 1e6,
        "{:?}",
        used.values
    );
    for at in gathered.columns.iter().flat_map(|column| &column.at) {
        let ours = clocks.ours(*at);
        let slack = 1_000_000 + clocks.before.bound.0;
        assert!(ours.0 + slack >= began.0 && ours.0 <= SystemClock.now().0 + slack);
    }
    assert!(actor.collect().is_err(), "nothing is sampled any more");
}

#[test]
fn a_clock_that_steps_during_a_trial_is_a_suspicion() {
    let clock = Arc::new(Steppable::default());
    let (actor, _wire, _thread) = actor(clock.clone());
    let before = actor.offset().unwrap();
    clock.0.store(2_000_000_000, Ordering::SeqCst);
    let after = actor.offset().unwrap();
    let reason = Alignment { before, after }.suspicion().unwrap();
    // 2 s, with the error of a round trip.
    let moved = ["moved by 1999.9", "moved by 2000.0"];
    assert!(moved.iter().any(|moved| reason.contains(moved)), "{reason}");
}

/// Returns the error for a peer that sends `hello`.
fn greeted_with(hello: &'static [u8]) -> String {
    let greeted = RemoteActor::over("there", hello, Box::new(io::sink()), None, None);
    greeted.unwrap_err().to_string()
}

#[test]
fn another_version_and_no_vtax_at_all_are_refused() {
    let other = greeted_with(b"{\"tell\":\"hello\",\"version\":\"9.9.9\",\"more\":[]}\n");
    assert!(
        other.contains("vtax 9.9.9") && other.contains(VERSION),
        "{other}"
    );
    let motd = greeted_with(b"Welcome to Linux!\n");
    assert!(motd.contains("Welcome to Linux!"), "{motd}");
    let nothing = greeted_with(b"");
    assert!(nothing.contains("its connection ended"), "{nothing}");
}

#[test]
fn a_host_that_ssh_cannot_reach_is_named_with_the_words_of_ssh() {
    let folder = tempfile::tempdir().unwrap();
    let ssh = folder.path().join("ssh");
    let script = "#!/bin/sh\necho 'Could not resolve hostname moon' >&2\nexit 255\n";
    std::fs::write(&ssh, script).unwrap();
    std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let refused = RemoteActor::start(ssh.as_os_str(), "moon", Path::new("/proc/self/exe"));
    let message = refused.unwrap_err().to_string();
    assert!(
        message.contains("host moon") && message.contains("Could not resolve"),
        "{message}"
    );
}

#[test]
fn a_host_of_another_kind_is_refused_before_anything_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let ssh = folder.path().join("ssh");
    std::fs::write(&ssh, "#!/bin/sh\necho Linux m68k\n").unwrap();
    std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let refused = RemoteActor::start(ssh.as_os_str(), "amiga", Path::new("/no/such/binary"));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("Linux m68k"), "{message}");
}
