//! A User-mode Linux guest, whose vhost-user front end is the kernel's own and which needs no KVM, and a driver at the
//! other end of the link.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_nic_driver::nic::{Nic, Options};
use vtax_testkit::needs::find_program;
use vtax_testkit::skip;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// The guest's init.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
for module in failover net_failover virtio_net; do /bin/busybox insmod /$module.ko; done
/bin/busybox ip addr add 10.9.0.1/24 dev eth0
/bin/busybox ip link set eth0 up
/bin/busybox sleep 120
/bin/busybox poweroff -f
";

/// A process. It ends with the test, with all processes that it started.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Finds a kernel module by name.
fn module(below: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(below).ok()?;
    entries.flatten().find_map(|entry| {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => module(&path, name),
            _ => path.ends_with(name).then_some(path),
        }
    })
}

/// Packs the guest's files into one archive. Fails with the name of a missing part.
fn image(directory: &Path) -> Result<PathBuf, String> {
    let root = directory.join("root");
    for made in ["bin", "proc", "dev"] {
        std::fs::create_dir_all(root.join(made)).unwrap();
    }
    let copy = |from: Option<PathBuf>, to: &str, what: &str| {
        let from = from.ok_or_else(|| format!("there is no {what}"))?;
        std::fs::copy(from, root.join(to)).unwrap();
        Ok::<_, String>(())
    };
    copy(find_program("busybox"), "bin/busybox", "busybox")?;
    for name in ["failover.ko", "net_failover.ko", "virtio_net.ko"] {
        copy(module(Path::new("/usr/lib/uml/modules"), name), name, name)?;
    }
    std::fs::write(root.join("init"), INIT).unwrap();
    std::fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755)).unwrap();
    let archive = Command::new("sh")
        .args(["-c", "find . | cpio -o -H newc --quiet > ../initrd"])
        .current_dir(&root)
        .status();
    if !archive.is_ok_and(|status| status.success()) {
        return Err("there is no cpio".into());
    }
    Ok(directory.join("initrd"))
}

const GUEST: [u8; 4] = [10, 9, 0, 1];
const OURS: [u8; 4] = [10, 9, 0, 2];
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// An ARP request for the guest's address (RFC 826).
fn question() -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &OUR_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    frame.extend([&OUR_MAC[..], &OURS, &[0; 6], &GUEST].concat());
    frame.resize(60, 0);
    frame
}

/// Whether a frame is the guest's answer.
fn is_answer(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 6])
        && frame.get(20..22) == Some(&[0, 2])
        && frame.get(28..32) == Some(&GUEST)
}

#[test(needs = [brought_by_test_all("linux.uml")])]
fn linuxs_own_front_end_exchanges_frames() {
    let linux = find_program("linux.uml").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let initrd = image(directory.path()).unwrap_or_else(|missing| skip!("{missing}"));
    let config = format!(
        "[[port]]\nsocket-path = '{}'\ngeneric = true\n[[port]]\nsocket-path = '{}'\n",
        at("guest"),
        at("driver")
    );
    std::fs::write(at("config"), config).unwrap();
    let _back_end = Process::start(Command::new(PROGRAM).args(["--config", &at("config")]));
    let start = Instant::now();
    let mut driver = loop {
        match Nic::connect(Path::new(&at("driver")), Options::default()) {
            Ok(nic) => break nic,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let console = std::fs::File::create(at("console")).unwrap();
    let _guest = Process::start(
        Command::new(linux)
            .args(["mem=64M", "con=null", "con0=fd:0,fd:1"])
            .arg(format!("initrd={}", initrd.display()))
            .arg(format!("virtio_uml.device={}:1", at("guest")))
            .env("HOME", directory.path())
            .stdin(Stdio::null())
            .stdout(console.try_clone().unwrap())
            .stderr(console),
    );
    let start = Instant::now();
    let mut answers = 0;
    while answers < 3 {
        driver.send(0, &question());
        driver.wait(0, Duration::from_millis(100));
        driver.receive(0, 64, |frame| answers += usize::from(is_answer(frame)));
        if start.elapsed() > Duration::from_secs(90) {
            let console = std::fs::read_to_string(at("console")).unwrap_or_default();
            panic!("no answer of the guest, whose console says\n{console}");
        }
    }
}
