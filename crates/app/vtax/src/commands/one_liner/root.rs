// SPDX-License-Identifier: Apache-2.0
//! The root file system that a command line's commands see: that of vtax's image, or that of this host.

use super::variant::Variant;
use super::{CommandLineError, absolute};
use crate::cli::CommandArgs;
use std::path::Path;
use vtax_guest::image::{self, Recipe, oci};
use vtax_host::roots::PATH;
use vtax_lab::plan::Catalogue;
use vtax_load::workload::command::words::split;

/// The image of this host's files.
pub(super) const HOST: &str = "host";

/// The platforms of this host's files where none are given: those that share its kernel.
pub(super) const PLATFORMS: [&str; 2] = ["native", "container"];

/// Returns the image of a command line: as given, or that of this host's files where the commands of the target name a
/// file of this host, or a program that vtax's image lacks. Without root they are the default wherever files are given,
/// since that needs no image.
///
/// # Errors
/// When no plan can contain the working directory.
pub(super) fn image(
    arguments: &CommandArgs,
    command: &str,
    variants: &[Variant],
    is_root: bool,
) -> Result<Option<String>, CommandLineError> {
    let host = || Ok(Some(format!("{HOST}:{}", absolute(Path::new("."))?)));
    match arguments.image.as_deref() {
        Some(HOST) => return host(),
        Some(given) => return Ok(Some(given.to_owned())),
        None => {}
    }
    let has_images = variants.iter().any(|variant| variant.is_image);
    let has_files = !arguments.files.is_empty()
        || arguments.input.is_some()
        || variants.iter().any(|variant| variant.is_file);
    if has_images || !arguments.packages.is_empty() || !have_image(&arguments.platform) {
        return Ok(None);
    }
    if has_files {
        return if is_root { Ok(None) } else { host() };
    }
    let guest = image::cached(&Recipe::standard()).ok().flatten();
    let tree = guest.as_ref().map(|files| files.root.as_path());
    let commands = match variants {
        [] => vec![command.to_owned()],
        all => all.iter().map(|one| one.in_command(command)).collect(),
    };
    let is_needed = commands.iter().any(|command| {
        let words = split(command).unwrap_or_default();
        needs_host(&words, tree, is_root)
    });
    if is_needed { host() } else { Ok(None) }
}

/// Whether vtax boots all of these platforms, each with an image that a plan can choose.
fn have_image(platforms: &[String]) -> bool {
    let catalogue = Catalogue::standard();
    platforms.iter().all(|kind| {
        let platform = catalogue.platform(kind);
        let mut keys = platform.into_iter().flat_map(|of| of.parameters());
        keys.any(|parameter| parameter.key == oci::PARAMETER.key)
    })
}

/// Whether a command needs this host's files: `tree` is the root of vtax's image. Where it is not made yet, a user
/// gets the host's files, which need no minute's build.
fn needs_host(words: &[String], tree: Option<&Path>, is_root: bool) -> bool {
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    let Some(tree) = tree else {
        return !is_root || arguments.iter().any(|word| is_file_here(word));
    };
    let in_image = |path: &Path| {
        let inside = tree.join(path.strip_prefix("/").unwrap_or(path));
        inside.symlink_metadata().is_ok()
    };
    let is_only_here = |word: &String| {
        is_file_here(word) && !(Path::new(word).is_absolute() && in_image(Path::new(word)))
    };
    let is_program_only_here = if program.contains('/') {
        // Root's own program is taken along into vtax's image.
        let is_taken = is_root && program.starts_with("./") && !program.contains("/../");
        !is_taken && is_only_here(program)
    } else {
        let in_path = |of: &dyn Fn(&Path) -> bool| {
            std::env::split_paths(PATH).any(|folder| of(&folder.join(program)))
        };
        !in_path(&in_image) && in_path(&|path| path.is_file())
    };
    is_program_only_here || arguments.iter().any(is_only_here)
}

/// Whether a word is a file of this host.
fn is_file_here(word: &str) -> bool {
    Path::new(word).is_file()
}

/// What a user reads about the root that the commands of a plan see; `None` where it is neither.
pub fn seen(image: Option<&str>) -> Option<String> {
    match image {
        None => Some(
            "the command sees the files of vtax's image, not of this host; --image host shows it those of this host"
                .to_owned(),
        ),
        Some(image) => {
            let directory = image.strip_prefix(HOST)?.strip_prefix(':')?;
            Some(format!(
                "the command sees the files of this host, in {directory}; what it writes there goes to a layer that ends with the \
                 trial; homes, /tmp and /run are empty but for {directory}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_files_of_this_host_are_the_root_where_the_image_lacks_what_the_command_names() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("usr/bin")).unwrap();
        fs::write(tree.path().join("usr/bin/sh"), "").unwrap();
        let own = tempfile::NamedTempFile::new().unwrap();
        let own = own.path().to_str().unwrap();
        let needs = |words: &[&str], is_root: bool| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            needs_host(&words, Some(tree.path()), is_root)
        };
        for words in [
            &["sh", own][..],
            &[own],
            &["env", "x"],
            &["sh", "src/main.rs"],
        ] {
            assert!(needs(words, true), "{words:?}");
        }
        for words in [
            &["sh", "-c", "true"][..],
            &["no-such-program"],
            &["sh", "/usr/bin/sh"],
        ] {
            assert!(!needs(words, true), "{words:?}");
        }
        // Tests run in the directory of their crate.
        assert!(needs(&["./Cargo.toml"], false));
        assert!(!needs(&["./Cargo.toml"], true), "it is taken along");
        assert!(needs_host(&["true".to_owned()], None, false));
        assert!(!needs_host(&["true".to_owned()], None, true));
    }

    #[test]
    fn only_platforms_that_vtax_boots_have_the_files_of_this_host() {
        let of = |kinds: &[&str]| {
            let kinds: Vec<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
            have_image(&kinds)
        };
        assert!(of(&["native", "container", "qemu", "firecracker"]));
        assert!(!of(&["native", "ssh"]));
        assert!(!of(&["no-such-platform"]));
    }

    #[test]
    fn the_first_lines_name_the_root() {
        assert!(seen(None).unwrap().contains("--image host"));
        assert!(seen(Some("host:/srv")).unwrap().contains("in /srv;"));
        assert_eq!(seen(Some("oci:a.tar")), None);
    }
}
