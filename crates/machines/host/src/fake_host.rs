// SPDX-License-Identifier: Apache-2.0
//! Fake hosts for tests: directory trees that look like `/proc`, `/sys` and others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what cannot be set up fails the test"
)]

use crate::Roots;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A host in a temporary directory.
pub struct FakeHost {
    directory: tempfile::TempDir,
    /// The roots of its trees.
    pub roots: Roots,
}

impl FakeHost {
    /// A host without any file.
    pub fn empty() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::below(directory.path());
        Self { directory, roots }
    }

    /// An Intel server on bare metal: two sockets with two cores of two threads, VT-x, cpufreq,
    /// RAPL zones, control groups v2.
    pub fn intel_server() -> Self {
        let host = Self::empty();
        host.cpus(
            "GenuineIntel",
            "Intel(R) Xeon(R) Gold 6230",
            "fpu vmx lm",
            2,
            2,
            2,
        );
        host.file("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n");
        host.file("sys/devices/system/cpu/smt/control", "on\n");
        host.file("sys/devices/system/cpu/smt/active", "1\n");
        for policy in 0..8 {
            host.policy(policy, "powersave", "performance powersave");
        }
        for (zone, name) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:0:0", "dram"),
        ] {
            host.file(&format!("sys/class/powercap/{zone}/name"), name);
            host.file(
                &format!("sys/class/powercap/{zone}/energy_uj"),
                "262143328000\n",
            );
        }
        host.directory("sys/module/kvm_intel/parameters");
        host.file("sys/module/kvm_intel/parameters/nested", "Y\n");
        host.file("dev/kvm", "");
        host.file("dev/vhost-net", "");
        host.common();
        host.cgroups_v2("cpuset cpu io memory pids");
        host
    }

    /// An AMD desktop on bare metal: one socket, no SMT switch, control groups v1.
    pub fn amd_desktop() -> Self {
        let host = Self::empty();
        host.cpus("AuthenticAMD", "AMD Ryzen 5 3600", "fpu svm lm", 1, 2, 1);
        host.file("sys/devices/system/cpu/cpufreq/boost", "1\n");
        host.policy(0, "schedutil", "performance schedutil");
        host.policy(1, "schedutil", "performance schedutil");
        host.directory("sys/module/kvm_amd/parameters");
        host.file("sys/module/kvm_amd/parameters/nested", "1\n");
        host.file("dev/kvm", "");
        host.common();
        host.cgroups_v1();
        host
    }

    /// A VM: the hypervisor flag, no cpufreq, hybrid control groups.
    pub fn cloud_vm() -> Self {
        let host = Self::empty();
        host.cpus(
            "GenuineIntel",
            "Intel(R) Xeon(R) Processor",
            "fpu lm hypervisor",
            1,
            2,
            1,
        );
        host.file("sys/devices/system/cpu/smt/control", "notsupported\n");
        host.common();
        host.file(
            "sys/devices/system/clocksource/clocksource0/available_clocksource",
            "tsc kvm-clock\n",
        );
        host.cgroups_hybrid();
        host
    }

    fn common(&self) {
        self.file(
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "tsc\n",
        );
        self.file(
            "sys/devices/system/cpu/vulnerabilities/meltdown",
            "Mitigation: PTI\n",
        );
        self.file(
            "sys/devices/system/cpu/vulnerabilities/srbds",
            "Not affected\n",
        );
        self.file("sys/kernel/mm/ksm/run", "0\n");
        self.file(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        );
        self.file(
            "proc/meminfo",
            "MemTotal: 16384000 kB\nMemAvailable: 8192000 kB\nSwapTotal: 0 kB\n",
        );
        self.file("proc/swaps", "Filename Type Size Used Priority\n");
        self.file("proc/sys/kernel/osrelease", "6.1.0-30-amd64\n");
        self.file("proc/sys/vm/max_map_count", "65530\n");
        self.file("proc/sys/kernel/pid_max", "4194304\n");
        self.file("proc/sys/kernel/threads-max", "127000\n");
        self.file(
            "proc/self/status",
            "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n",
        );
        self.file(
            "proc/self/limits",
            "Max open files            1024                 524288               files\n",
        );
        self.file(
            "etc/os-release",
            "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
        );
    }

    fn cpus(&self, vendor: &str, model: &str, flags: &str, sockets: u32, cores: u32, threads: u32) {
        let mut cpuinfo = String::new();
        for cpu in 0..sockets * cores * threads {
            cpuinfo += &format!(
                "processor\t: {cpu}\nvendor_id\t: {vendor}\nmodel name\t: {model}\nmicrocode\t: 0x5003901\nflags\t\t: {flags}\n\n"
            );
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            self.file(
                &format!("{topology}/physical_package_id"),
                &(cpu / (cores * threads)).to_string(),
            );
            self.file(
                &format!("{topology}/core_id"),
                &(cpu / threads % cores).to_string(),
            );
        }
        self.file("proc/cpuinfo", &cpuinfo);
    }

    /// Adds a frequency policy with its governor and the offered ones.
    pub fn policy(&self, number: u32, governor: &str, offered: &str) {
        let policy = format!("sys/devices/system/cpu/cpufreq/policy{number}");
        self.file(
            &format!("{policy}/scaling_governor"),
            &format!("{governor}\n"),
        );
        self.file(
            &format!("{policy}/scaling_available_governors"),
            &format!("{offered} \n"),
        );
        self.file(&format!("{policy}/scaling_cur_freq"), "2100000\n");
    }

    /// Adds control groups as v1 mounts them.
    pub fn cgroups_v1(&self) {
        self.file(
            "proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
             34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             35 31 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n",
        );
    }

    /// Adds control groups as v2 mounts them, with these controllers.
    pub fn cgroups_v2(&self, controllers: &str) {
        self.file(
            "proc/self/mountinfo",
            "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        self.file(
            "sys/fs/cgroup/cgroup.controllers",
            &format!("{controllers}\n"),
        );
    }

    /// Adds control groups as systemd mounts both versions.
    pub fn cgroups_hybrid(&self) {
        self.cgroups_v1();
        let path = self.path("proc/self/mountinfo");
        let v1 = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            format!("{v1}36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"),
        )
        .unwrap();
        self.file("sys/fs/cgroup/unified/cgroup.controllers", "\n");
    }

    /// A path on this host, such as `sys/kernel/mm/ksm/run`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// The text of a file.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Writes a file.
    pub fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Creates a directory.
    pub fn directory(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    /// Creates a symbolic link.
    pub fn link(&self, path: &str, to: &Path) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _absent = fs::remove_file(&path);
        std::os::unix::fs::symlink(to, path).unwrap();
    }

    /// Removes a file.
    pub fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }

    /// Creates a program that prints `output`.
    pub fn program(&self, name: &str, output: &str) {
        let path = format!("bin/{name}");
        self.file(&path, &format!("#!/bin/sh\ncat <<'END'\n{output}\nEND\n"));
        fs::set_permissions(self.path(&path), fs::Permissions::from_mode(0o755)).unwrap();
    }
}
