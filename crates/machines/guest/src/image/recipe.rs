// SPDX-License-Identifier: Apache-2.0
//! The recipe of an image: its packages, modules and added files, and the hash that names the image.

use serde::{Deserialize, Serialize};
use std::path::{Component, Path};
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter, Settings};

/// The version of the builder, which changes whenever the same recipe results in a different image.
const BUILDER: &str = "1";

/// The kernel of guests that are VMs.
pub(crate) const KERNEL: Parameter = Parameter::unset(
    "vm.kernel",
    Domain::Choice(&["bookworm-backports", "trixie-backports"]),
)
.help(
    "the Debian release whose cloud kernel the guest boots; unset: that of the image's own release",
);

/// The content of an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The Debian suite, such as `bookworm`.
    pub suite: String,
    /// Packages beyond the minimal system, one of which is a kernel.
    pub packages: Vec<String>,
    /// Whether the packages and those that they need are unpacked and not installed, without a minimal system. Such a tree
    /// is no root file system; [`super::closure`] takes its agent and its kernel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unpacked: bool,
    /// The release whose cloud kernel replaces that of the packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Kernel modules that the initial RAM disk loads, with their dependencies.
    pub modules: Vec<String>,
    /// Files to add after the packages are installed.
    pub files: Vec<RecipeFile>,
}

/// A file to add.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeFile {
    /// Its absolute path in the image.
    pub path: String,
    /// Whether it is executable.
    #[serde(default)]
    pub executable: bool,
    /// Its content.
    pub text: String,
}

impl Recipe {
    /// The recipe of the shared image: the services and tools of workloads, and a kernel.
    pub fn standard() -> Self {
        let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let file = |path: &str, executable, text: &str| RecipeFile {
            path: path.into(),
            executable,
            text: text.into(),
        };
        Self {
            suite: "bookworm".into(),
            packages: strings(&[
                "apache2-bin",
                "busybox-static",
                "ethtool",
                "fio",
                "iperf3",
                "iproute2",
                "linux-image-cloud-amd64",
                "procps",
                "qemu-guest-agent",
            ]),
            unpacked: false,
            kernel: None,
            modules: strings(&[
                "virtio_pci",
                "virtio_mmio",
                "virtio_blk",
                "virtio_net",
                "virtio_console",
                "xen_blkfront",
                "xen_netfront",
            ]),
            files: vec![
                file("/usr/lib/vtax/init", true, include_str!("guest/init.sh")),
                file("/etc/hosts", false, "127.0.0.1 localhost\n::1 localhost\n"),
                file("/etc/hostname", false, "target\n"),
            ],
        }
    }

    /// The recipe of the shared image with these packages added, which has its own hash. Without packages it is the
    /// shared recipe itself.
    pub fn for_packages<S: AsRef<str>>(packages: &[S]) -> Self {
        let mut recipe = Self::standard();
        let added = packages.iter().map(|package| package.as_ref().to_owned());
        recipe.packages.extend(added);
        // The order and number of mentions must not change the hash.
        recipe.packages.sort();
        recipe.packages.dedup();
        recipe
    }

    /// The recipe of a guest with these settings whose workload needs these packages beyond the shared image.
    pub fn of_guest<S: AsRef<str>>(packages: &[S], settings: &Settings) -> Self {
        Self {
            kernel: KERNEL.given(settings).map(str::to_owned),
            ..Self::for_packages(packages)
        }
    }

    /// The recipe of what a VM with other files needs of this image: its agent, busybox and kernel. It is made in a quarter
    /// of the time.
    pub fn parts(&self) -> Self {
        let kept = [
            "busybox-static",
            "linux-image-cloud-amd64",
            "qemu-guest-agent",
        ];
        Self {
            packages: kept.map(str::to_owned).to_vec(),
            unpacked: true,
            files: Vec::new(),
            ..self.clone()
        }
    }

    /// The differences from the shared image, for messages.
    pub fn differences(&self) -> Vec<String> {
        let shared = Self::standard().packages;
        let added = self.packages.iter().filter(|one| !shared.contains(one));
        let kernel = self
            .kernel
            .iter()
            .map(|release| format!("the kernel of {release}"));
        added.cloned().chain(kernel).collect()
    }

    /// The recipe as it is stored beside the image.
    ///
    /// # Errors
    /// When it cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String, HostError> {
        toml::to_string(self)
            .map_err(|cause| HostError::file("write", "recipe.toml")(std::io::Error::other(cause)))
    }

    /// SHA-256 over everything that determines the image, in hexadecimal.
    ///
    /// # Errors
    /// When the recipe is not valid: see [`Recipe::check`].
    pub fn hash(&self) -> Result<String, HostError> {
        self.check()?;
        let parts = [BUILDER, super::initrd::INIT, &self.to_toml()?];
        Ok(super::key(&parts))
    }

    /// Refuses names that would be parsed as options, and paths that lead out of the image.
    ///
    /// # Errors
    /// The invalid word, and its valid form.
    pub fn check(&self) -> Result<(), HostError> {
        let word = |word: &str| {
            word.starts_with(|first: char| first.is_ascii_alphanumeric())
                && word
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "+-._:".contains(c))
        };
        let lists = [
            ("package", &self.packages),
            ("kernel module", &self.modules),
        ];
        for (what, value) in lists
            .into_iter()
            .flat_map(|(what, list)| list.iter().map(move |value| (what, value)))
            .chain([("suite", &self.suite)])
            .chain(self.kernel.iter().map(|release| ("release", release)))
        {
            if !word(value) {
                return Err(HostError::Setting(format!(
                    "image recipe: {value:?} is not the name of a {what}"
                )));
            }
        }
        for path in self.files.iter().map(|file| &file.path) {
            let components: Vec<Component> = Path::new(path).components().collect();
            let inside = matches!(components.as_slice(), [Component::RootDir, rest @ ..]
                if !rest.is_empty() && rest.iter().all(|part| matches!(part, Component::Normal(_))));
            if !inside || path.contains('\0') {
                return Err(HostError::Setting(format!(
                    "image recipe: {path:?} must be an absolute path without `..`, such as /etc/motd"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::settings::Level;

    #[test]
    fn the_hash_changes_with_every_part_of_the_recipe() {
        let standard = Recipe::standard();
        let mut variants = vec![standard.clone(); 7];
        variants[0].suite = "trixie".into();
        variants[1].packages.push("jq".into());
        variants[2].files[0].text = "changed".into();
        variants[3].files[0].executable = false;
        variants[4].modules.pop();
        variants[5].kernel = Some("trixie-backports".into());
        variants[6].unpacked = true;
        let mut hashes: Vec<String> = variants
            .iter()
            .map(|recipe| recipe.hash().unwrap())
            .collect();
        hashes.push(standard.hash().unwrap());
        assert!(hashes.iter().all(|hash| hash.len() == 64));
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), 8);
    }

    #[test]
    fn packages_make_an_image_of_their_own_and_no_packages_the_shared_one() {
        let hash = |packages: &[&str]| Recipe::for_packages(packages).hash().unwrap();
        assert_eq!(hash(&[]), Recipe::standard().hash().unwrap());
        assert_eq!(hash(&["fio"]), hash(&[]), "it has that one already");
        assert_ne!(hash(&["memcached"]), hash(&[]));
        assert_eq!(hash(&["jq", "memcached"]), hash(&["memcached", "jq"]));
    }

    #[test]
    fn a_guest_has_the_kernel_of_its_settings_and_without_one_the_image_of_its_packages() {
        let settings = |kernel: Option<&str>| -> Settings {
            let level = kernel.map(|release| Level::Text(release.to_owned()));
            level
                .map(|level| ("vm.kernel", level))
                .into_iter()
                .collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(
            Recipe::of_guest(&none, &settings(None)).to_toml().unwrap(),
            Recipe::standard().to_toml().unwrap()
        );
        let newer = Recipe::of_guest(&["jq"], &settings(Some("trixie-backports")));
        assert_eq!(newer.kernel.as_deref(), Some("trixie-backports"));
        assert_eq!(
            newer.differences(),
            ["jq", "the kernel of trixie-backports"]
        );
        let read: Recipe = toml::from_str(&newer.to_toml().unwrap()).unwrap();
        assert_eq!(read, newer);
    }

    #[test]
    fn the_same_recipe_has_the_same_hash_after_a_round_trip_through_its_file() {
        let recipe = Recipe::standard();
        let again: Recipe = toml::from_str(&recipe.to_toml().unwrap()).unwrap();
        assert_eq!(again, recipe);
        assert_eq!(again.hash().unwrap(), recipe.hash().unwrap());
    }

    #[test]
    fn a_path_that_leaves_the_image_is_refused() {
        for path in ["etc/motd", "/etc/../../motd", "/", "", "../x", "/a\0b"] {
            let mut recipe = Recipe::standard();
            recipe.files[0].path = path.into();
            assert!(
                recipe
                    .hash()
                    .unwrap_err()
                    .to_string()
                    .contains("absolute path"),
                "{path}"
            );
        }
    }

    #[test]
    fn a_package_name_that_would_be_an_option_is_refused() {
        for name in ["--hook-dir=/x", "", "a,b", "a b", "?x"] {
            let mut recipe = Recipe::standard();
            recipe.packages.push(name.into());
            assert!(recipe.check().is_err(), "{name}");
        }
    }
}
