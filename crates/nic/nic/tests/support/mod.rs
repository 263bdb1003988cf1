// SPDX-License-Identifier: Apache-2.0
//! A network namespace, a back end, and Debian guests in QEMU, for the tests with guests.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_testkit::needs::{Need, program, root};
use vtax_testkit::skip;

/// The timeout of every wait, for emulation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The image that the guests boot.
#[derive(Debug, Clone)]
pub struct Image {
    directory: PathBuf,
}

impl Image {
    /// The root file system.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root.ext4")
    }
}

/// The needs of tests with guests.
pub fn guests() -> Need {
    let programs = [
        "qemu-system-x86_64",
        "qemu-img",
        "iperf3",
        "busybox",
        "nsenter",
        "ip",
    ];
    Need::all([root()].into_iter().chain(programs.map(program)))
}

/// The image of this machine; skips the test where there is none.
pub fn image() -> Image {
    let cache = std::env::var_os("VTAX_CACHE_DIR").map_or("/var/cache/vtax".into(), PathBuf::from);
    let images = std::fs::read_dir(cache.join("images"))
        .into_iter()
        .flatten();
    // Other images in the directory are of emulated hosts, which have no agent.
    let has_agent = |directory: &PathBuf| {
        std::fs::read_to_string(directory.join("recipe.toml"))
            .is_ok_and(|recipe| recipe.contains("\"qemu-guest-agent\""))
    };
    let whole = |directory: &PathBuf| {
        ["vmlinuz", "initrd", "root.ext4"]
            .iter()
            .all(|file| directory.join(file).exists())
    };
    let found = images
        .flatten()
        .map(|entry| entry.path())
        .find(|directory| has_agent(directory) && whole(directory));
    let Some(directory) = found else {
        skip!("there is no guest image: `vtax image build` makes one");
    };
    Image { directory }
}

/// A process that ends with the test.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Ends the process as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A network namespace with a tap in it.
#[derive(Debug)]
pub struct Namespace {
    holder: Process,
}

impl Namespace {
    pub fn new(mtu: u32, queues: u8) -> Self {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sleep", "1000"]);
        let namespace = Self {
            holder: Process::start(&mut holder),
        };
        let own = |id: u32| std::fs::read_link(format!("/proc/{id}/ns/net")).ok();
        wait_for("a namespace", || {
            own(namespace.holder.id()) != own(std::process::id())
        });
        let several = if queues > 1 { "multi_queue" } else { "" };
        namespace.run(&format!(
            "ip link set lo up && ip tuntap add tap0 mode tap vnet_hdr {several} &&
             ip link set tap0 mtu {mtu} up && ip address add 10.91.0.1/24 dev tap0 &&
             ip -6 address add fd91::1/64 dev tap0 nodad"
        ));
        namespace
    }

    /// A program in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let id = self.holder.id().to_string();
        command.args(["--target", &id, "--net", "--", program]);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        command
    }

    /// Runs a shell line in the namespace. Returns its output.
    pub fn run(&self, line: &str) -> String {
        let output = self.command("sh").args(["-c", line]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Starts a shell line whose output is read later.
    pub fn start(&self, line: &str) -> Running {
        let mut command = self.command("sh");
        command.args(["-c", line]).stdout(Stdio::piped());
        Running(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

/// A running shell line.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    pub fn output(mut self) -> String {
        let mut text = String::new();
        let mut out = self.0.stdout.take().unwrap();
        out.read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success());
        text.trim().to_owned()
    }
}

/// Starts the back end in a namespace.
pub fn back_end(namespace: &Namespace, arguments: &[&str]) -> Process {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_vtax-nic"));
    Process::start(command.args(arguments))
}

/// Waits until a socket exists.
pub fn wait_for_socket(path: &Path) {
    wait_for("a socket", || path.exists());
}

pub fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "{what} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A guest's settings.
#[derive(Debug, Clone)]
pub struct Machine {
    pub name: &'static str,
    pub socket: PathBuf,
    pub pairs: u8,
    pub mtu: u32,
    pub offloads: bool,
    /// Whether QEMU listens and the back end connects.
    pub listens: bool,
    /// Whether rings are packed, if QEMU and the guest support it.
    pub packed: bool,
    /// Whether QEMU's generic vhost-user device is the NIC.
    pub generic: bool,
    pub incoming: Option<PathBuf>,
    /// The disk, when two guests share it.
    pub disk: Option<PathBuf>,
}

impl Machine {
    pub fn new(socket: PathBuf) -> Self {
        Self {
            name: "guest",
            socket,
            pairs: 1,
            mtu: 1500,
            offloads: true,
            listens: false,
            packed: false,
            generic: false,
            incoming: None,
            disk: None,
        }
    }
}

/// A Debian guest in QEMU.
#[derive(Debug)]
pub struct Guest {
    _qemu: Process,
    directory: PathBuf,
    name: &'static str,
}

/// The first QEMU in which an emulated guest starts a vhost-user NIC with MSI-X without a crash.
const FIRST_WITH_MSIX: u32 = 10;

/// The first major version that counts the wait before a reconnection in milliseconds alone.
const FIRST_WITHOUT_SECONDS: u32 = 11;

/// QEMU's vhost-user device for any virtio device. Users have it from QEMU 10.1 on.
const GENERIC_DEVICE: &str = "vhost-user-test-device-pci";

/// What a test of the generic device needs.
pub fn generic_device() -> Need {
    let output = Command::new("qemu-system-x86_64")
        .args(["-device", "help"])
        .output();
    let listed = output.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).contains(&format!("\"{GENERIC_DEVICE}\""))
    });
    Need::from(
        listed
            .then_some(())
            .ok_or_else(|| format!("needs a QEMU with {GENERIC_DEVICE}")),
    )
}

fn major_version() -> u32 {
    let output = Command::new("qemu-system-x86_64").arg("--version").output();
    let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let version = text.split("version ").nth(1).unwrap_or("0");
    let major = version.split('.').next();
    major.and_then(|major| major.parse().ok()).unwrap_or(0)
}

impl Guest {
    pub fn boot(image: &Image, directory: &Path, machine: &Machine) -> Self {
        let name = machine.name;
        let at = |file: &str| {
            directory
                .join(format!("{name}.{file}"))
                .display()
                .to_string()
        };
        let mut device = "virtio-net-pci,disable-legacy=on,netdev=net0,romfile=".to_owned();
        device += ",mac=02:76:74:61:78:02";
        if machine.pairs > 1 {
            device += ",mq=on";
        }
        if machine.packed {
            device += ",packed=on";
        }
        let version = major_version();
        if version < FIRST_WITH_MSIX {
            device += ",vectors=0";
        } else if machine.pairs > 1 {
            device += &format!(",vectors={}", 2 * u32::from(machine.pairs) + 2);
        }
        if machine.mtu != 1500 {
            device += &format!(",host_mtu={}", machine.mtu);
        }
        if !machine.offloads {
            device += ",csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off";
            device += ",guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off";
            device += ",host_ufo=off";
        }
        let disk = match &machine.disk {
            Some(path) => format!("id=root,if=none,format=qcow2,file={}", path.display()),
            None => format!(
                "id=root,if=none,format=raw,snapshot=on,file={}",
                image.directory.join("root.ext4").display()
            ),
        };
        let side = match version {
            _ if machine.listens => ",server=on",
            // It does not wait for a connection that is made again.
            _ if machine.generic => "",
            FIRST_WITHOUT_SECONDS.. => ",reconnect-ms=1000",
            _ => ",reconnect=1",
        };
        let kernel = format!(
            "console=ttyS0 quiet panic=-1 cryptomgr.notests vtax.root=vda tsc=reliable \
             no_timer_check vtax.ip=10.91.0.2/24 vtax.ip6=fd91::2/64 vtax.mtu={}",
            machine.mtu
        );
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "384M"])
        .args(["-smp", &machine.pairs.clamp(1, 4).to_string()])
        .args([
            "-object",
            "memory-backend-memfd,id=memory,size=384M,share=on",
        ])
        .args([
            "-machine",
            "q35,usb=off,sata=off,smbus=off,memory-backend=memory",
        ])
        .args([
            "-kernel",
            &image.directory.join("vmlinuz").display().to_string(),
        ])
        .args([
            "-initrd",
            &image.directory.join("initrd").display().to_string(),
        ])
        .args(["-append", &kernel])
        .args([
            "-chardev",
            &format!("file,id=console,path={}", at("console")),
        ])
        .args(["-serial", "chardev:console"])
        .args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp"))])
        .args([
            "-chardev",
            &format!("socket,id=agent,path={},server=on,wait=off", at("agent")),
        ])
        .args(["-device", "virtio-serial-pci,disable-legacy=on"])
        .args([
            "-device",
            "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
        ])
        .args(["-drive", &disk])
        .args(["-device", "virtio-blk-pci,disable-legacy=on,drive=root"])
        .args([
            "-chardev",
            &format!("socket,id=nic,path={}{side}", machine.socket.display()),
        ]);
        if machine.generic {
            let queues = 2 * machine.pairs + 1;
            let device =
                format!("{GENERIC_DEVICE},chardev=nic,virtio-id=1,num_vqs={queues},config_size=64");
            qemu.args(["-device", &device]);
        } else {
            let net = format!("vhost-user,id=net0,chardev=nic,queues={}", machine.pairs);
            qemu.args(["-netdev", &net]).args(["-device", &device]);
        }
        if let Some(incoming) = &machine.incoming {
            qemu.args(["-incoming", &format!("unix:{}", incoming.display())]);
        }
        Self {
            _qemu: Process::start(&mut qemu),
            directory: directory.into(),
            name,
        }
    }

    fn connect(&self, socket: &str) -> BufReader<UnixStream> {
        let path = self.directory.join(format!("{}.{socket}", self.name));
        let mut stream = None;
        wait_for("a socket of QEMU", || {
            stream = UnixStream::connect(&path).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(stream)
    }

    /// Sends a command to QEMU's monitor. Returns the answer.
    pub fn monitor(&self, execute: &str, arguments: Value) -> Value {
        let mut stream = self.connect("qmp");
        let mut greeting = String::new();
        stream.read_line(&mut greeting).unwrap();
        let _ = ask(&mut stream, "qmp_capabilities", json!({}));
        ask(&mut stream, execute, arguments)
    }

    /// Copies a program of the host into the guest, with its libraries, which may be newer than the guest's. Returns
    /// the line that starts it there.
    pub fn install(&self, namespace: &Namespace, program: &Path) -> String {
        let here = self.directory.join("program").display().to_string();
        let program = program.display();
        self.run("mkdir /tmp/program");
        let sender = namespace.start(&format!(
            "mkdir {here} && cp {program} {here}/program &&
             cp $(ldd {program} | grep -o '/[^ ]*') {here} && tar -C {here} -cf {here}.tar . &&
             for try in $(seq 100); do
               busybox nc 10.91.0.2 5004 < {here}.tar && break; sleep 0.3;
             done"
        ));
        let unpack = receive(5004, "busybox tar -x -C /tmp/program");
        let loader = self.run(&format!("{unpack}; ls /tmp/program/ld-*"));
        sender.output();
        format!("{loader} --library-path /tmp/program /tmp/program/program")
    }

    /// Runs a shell line in the guest through its agent. Returns its output.
    pub fn run(&self, line: &str) -> String {
        let mut stream = self.connect("agent");
        let _ = ask(&mut stream, "guest-sync", json!({ "id": 1 }));
        let arguments = json!({ "path": "/bin/sh", "arg": ["-c", line], "capture-output": true });
        let id = ask(&mut stream, "guest-exec", arguments)["pid"].clone();
        let start = Instant::now();
        loop {
            let status = ask(&mut stream, "guest-exec-status", json!({ "pid": id }));
            if status["exited"] == true {
                let text = |key: &str| decode(status[key].as_str().unwrap_or(""));
                let output = text("out-data");
                assert_eq!(
                    status["exitcode"],
                    0,
                    "{line}: {output} {}",
                    text("err-data")
                );
                return output.trim().to_owned();
            }
            assert!(start.elapsed() < PATIENCE, "{line} does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The shell line that listens once on a port and passes the received bytes to a command. At the end of its own input,
/// `nc` would end its peer's transfer early, hence the pipe that never ends.
pub fn receive(port: u16, command: &str) -> String {
    format!(
        "pipe=$(mktemp -u) && mkfifo $pipe && busybox nc -l -p {port} <> $pipe | {command}; rm $pipe"
    )
}

fn ask(stream: &mut BufReader<UnixStream>, execute: &str, arguments: Value) -> Value {
    let request = json!({ "execute": execute, "arguments": arguments });
    writeln!(stream.get_mut(), "{request}").unwrap();
    loop {
        let mut line = String::new();
        assert!(
            stream.read_line(&mut line).unwrap() > 0,
            "{execute}: closed"
        );
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert!(answer.get("error").is_none(), "{execute}: {answer}");
        // Events may come before the answer.
        if let Some(value) = answer.get("return") {
            return value.clone();
        }
    }
}

/// Decodes Base 64, as the agent writes it.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count).to_le_bytes()[0]);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
