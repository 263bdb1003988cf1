//! How the doctor tries things: the real probes of a host, behind a trait so that every check
//! also runs on a fake host.

use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use vtax_observe::counters::SingleCounter;

/// Reads a counter's present value.
pub type ReadCounter = Box<dyn FnMut() -> io::Result<u64>>;

/// What became of booting a kernel on KVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvmBoot {
    /// It booted; the text says how far and how fast.
    Boots(String),
    /// It did not; the text says what was seen instead.
    Fails(String),
    /// It was not tried; the text says why.
    NotTried(String),
}

/// How far `/dev/kvm` goes without a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvmDevice {
    /// There is none.
    Missing,
    /// It does not open.
    Closed(String),
    /// It opens and creates no VM.
    NoVm(String),
    /// It opens and creates VMs.
    CreatesVms,
}

/// A perf event by the kernel's numbers (perf_event_open(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterEvent {
    /// `perf_event_attr.type`: the PMU.
    pub pmu: u32,
    /// `perf_event_attr.config`: the event.
    pub config: u64,
    /// Whom it counts.
    pub scope: CounterScope,
}

/// Whom a perf event counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterScope {
    /// This thread in user space, and the threads that it starts.
    ThisThread,
    /// Everything on one CPU.
    Cpu(u32),
}

/// What a program printed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProgramOutput {
    /// Whether it ended with status 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl ProgramOutput {
    /// The last thing it said, on one line: what failed programs give as their reason.
    pub fn last_words(&self) -> String {
        [&self.stderr, &self.stdout]
            .iter()
            .find_map(|text| {
                text.lines()
                    .rev()
                    .map(str::trim)
                    .find(|line| !line.is_empty())
            })
            .unwrap_or("it said nothing")
            .to_owned()
    }
}

/// Everything that the doctor tries instead of reading it.
pub trait Probes {
    /// Boots a stock 64-bit kernel on KVM.
    fn boot_on_kvm(&self) -> KvmBoot;

    /// Opens the KVM device and creates an empty VM.
    fn kvm_device(&self, device: &Path) -> KvmDevice;

    /// Opens a device for reading and writing.
    ///
    /// # Errors
    /// Why it does not open.
    fn open_device(&self, device: &Path) -> io::Result<()>;

    /// Runs a program to its end, or kills it and what it started after `limit`.
    ///
    /// # Errors
    /// When it cannot be started, or was killed.
    fn run(&self, program: &Path, arguments: &[&str], limit: Duration)
    -> io::Result<ProgramOutput>;

    /// Opens a perf event, counting.
    ///
    /// # Errors
    /// The kernel's reason.
    fn open_counter(&self, event: CounterEvent) -> io::Result<ReadCounter>;

    /// Loads, and unloads, the smallest BPF program of a type (`BPF_PROG_TYPE_*`).
    ///
    /// # Errors
    /// The kernel's reason.
    fn load_bpf(&self, program_type: u32) -> io::Result<()>;

    /// Keeps every CPU busy for a moment, so that counters that work must move.
    fn load_cpus(&self);

    /// Bytes free to this user on the file system that holds `path`.
    fn free_space(&self, path: &Path) -> Option<u64>;
}

/// The probes of a real host.
#[derive(Default)]
pub struct HostProbes<'a> {
    /// Boots a kernel on KVM; `None`: nothing at hand to boot.
    pub boot: Option<Box<dyn Fn() -> KvmBoot + 'a>>,
}

impl Probes for HostProbes<'_> {
    fn boot_on_kvm(&self) -> KvmBoot {
        match &self.boot {
            Some(boot) => boot(),
            None => KvmBoot::NotTried("no kernel at hand".to_owned()),
        }
    }

    fn kvm_device(&self, device: &Path) -> KvmDevice {
        if !device.exists() {
            return KvmDevice::Missing;
        }
        let file = match OpenOptions::new().read(true).write(true).open(device) {
            Ok(file) => file,
            Err(cause) => return KvmDevice::Closed(super::reason(&cause)),
        };
        match create_vm(file.as_fd()) {
            Ok(_vm) => KvmDevice::CreatesVms,
            Err(cause) => KvmDevice::NoVm(super::reason(&cause)),
        }
    }

    fn open_device(&self, device: &Path) -> io::Result<()> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(device)
            .map(drop)
    }

    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        limit: Duration,
    ) -> io::Result<ProgramOutput> {
        let mut child = Command::new(program)
            .args(arguments)
            // Programs translate what they say.
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let ended = wait(&mut child, limit);
        if !matches!(ended, Ok(Some(_))) {
            // What the program started may still hold the pipes.
            if let Some(group) =
                rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap_or(0))
            {
                let _already_gone =
                    rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _status = child.wait();
        }
        let stdout = stdout.join().unwrap_or_default();
        let stderr = stderr.join().unwrap_or_default();
        match ended? {
            Some(success) => Ok(ProgramOutput {
                success,
                stdout,
                stderr,
            }),
            None => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "{} did not end within {} s",
                    program.display(),
                    limit.as_secs()
                ),
            )),
        }
    }

    fn open_counter(&self, event: CounterEvent) -> io::Result<ReadCounter> {
        let cpu = match event.scope {
            CounterScope::ThisThread => None,
            CounterScope::Cpu(cpu) => Some(cpu),
        };
        let mut counter = SingleCounter::open(event.pmu, event.config, cpu)?;
        Ok(Box::new(move || counter.read()))
    }

    fn load_bpf(&self, program_type: u32) -> io::Result<()> {
        load_bpf(program_type)
    }

    fn load_cpus(&self) {
        let end = Instant::now() + Duration::from_millis(300);
        let spin = move || {
            let mut value = 1_u64;
            while Instant::now() < end {
                value = std::hint::black_box(
                    value
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1),
                );
            }
        };
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let others: Vec<_> = (1..cpus).map(|_| thread::spawn(spin)).collect();
        spin();
        for other in others {
            let _finished = other.join();
        }
    }

    fn free_space(&self, path: &Path) -> Option<u64> {
        // The directory may be yet to be made.
        let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
        let space = rustix::fs::statvfs(existing).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _until_here = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether the child succeeded; `None` where it did not end in time.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<bool>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// `KVM_CREATE_VM` from `linux/kvm.h`: `_IO(0xAE, 0x01)`.
const KVM_CREATE_VM: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0xAE, 0x01);

/// An ioctl without an argument whose result is a file descriptor.
struct CreateVm;

// SAFETY: KVM_CREATE_VM takes the machine type by value (0: the default), so there is no memory
// that the kernel could touch; its non-negative result is a new file descriptor that nobody
// else owns.
unsafe impl rustix::ioctl::Ioctl for CreateVm {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        KVM_CREATE_VM
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        result: rustix::ioctl::IoctlOutput,
        _argument: *mut std::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the call succeeded, so the result is a file descriptor that is ours alone.
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }
}

fn create_vm(device: rustix::fd::BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the opcode is defined for the KVM device; any other device refuses it with ENOTTY.
    Ok(unsafe { rustix::ioctl::ioctl(device, CreateVm) }?)
}

/// The head of `union bpf_attr` for `BPF_PROG_LOAD` (`linux/bpf.h`); the kernel takes the rest
/// as zero.
#[repr(C)]
struct LoadProgram {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
}

fn load_bpf(program_type: u32) -> io::Result<()> {
    const BPF_PROG_LOAD: libc::c_int = 5;
    // r0 = 0; exit
    let program: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];
    let attributes = LoadProgram {
        program_type,
        instruction_count: 2,
        instructions: program.as_ptr().addr() as u64,
        license: c"GPL".as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: the attributes and what they point to live until the call returns, and the size
    // given is theirs; the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            std::ptr::from_ref(&attributes),
            size_of::<LoadProgram>(),
        )
    };
    let descriptor = i32::try_from(result).unwrap_or(-1);
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the result is a file descriptor that is ours alone.
    let loaded = unsafe { OwnedFd::from_raw_fd(descriptor) };
    drop(loaded);
    Ok(())
}
