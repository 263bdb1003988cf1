// SPDX-License-Identifier: Apache-2.0
use super::*;
use serde_json::{Value, json};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use vtax_host::untrusted::archive::{entry, header};

/// Bounds that are small enough for tests.
const SMALL: Bounds = Bounds {
    bytes: 1 << 20,
    entries: 100,
    free: 1 << 30,
};

fn ended(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut archive = entries.concat();
    archive.extend([0; 1024]);
    archive
}

fn file(name: &str, content: &str) -> Vec<u8> {
    entry(name, b'0', content.as_bytes())
}

fn dir(name: &str) -> Vec<u8> {
    header(name, b'5', 0, 0o755, "")
}

fn link(name: &str, kind: u8, target: &str) -> Vec<u8> {
    header(name, kind, 0, 0o644, target)
}

/// Whether this process may unpack an image; says so where the test is skipped.
fn sets_owners() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root sets owners and marks directories");
    }
    is_root
}

/// An OCI layout in a directory.
struct Fake {
    dir: tempfile::TempDir,
    manifest: Value,
}

impl Fake {
    fn of(layers: &[Vec<u8>]) -> Self {
        Self::with(layers, layers, &json!({}))
    }

    /// With the layers' files as they are stored, and as they are uncompressed.
    fn with(stored: &[Vec<u8>], plain: &[Vec<u8>], config: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        let diff_ids: Vec<String> = plain
            .iter()
            .map(|layer| format!("sha256:{}", digest_of(layer)))
            .collect();
        let mut fake = Self {
            dir,
            manifest: Value::Null,
        };
        let mut document = json!({
            "architecture": "amd64", "os": "linux", "config": config, "rootfs": {"diff_ids": diff_ids},
        });
        if let (Some(into), Some(from)) = (document.as_object_mut(), config["top"].as_object()) {
            into.extend(from.clone());
        }
        let layers: Vec<Value> = stored.iter().map(|layer| fake.blob(layer)).collect();
        let config = fake.blob(document.to_string().as_bytes());
        fake.manifest = json!({"config": config, "layers": layers});
        fake.index();
        fake
    }

    fn blob(&self, bytes: &[u8]) -> Value {
        let digest = digest_of(bytes);
        fs::write(self.path().join("blobs/sha256").join(&digest), bytes).unwrap();
        json!({"digest": format!("sha256:{digest}"), "size": bytes.len()})
    }

    fn index(&self) {
        let manifest = self.blob(self.manifest.to_string().as_bytes());
        self.write_index(&json!({"manifests": [manifest]}));
    }

    fn write_index(&self, index: &Value) {
        fs::write(self.path().join("index.json"), index.to_string()).unwrap();
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn unpack(&self, bounds: Bounds) -> Result<(tempfile::TempDir, u64), HostError> {
        let into = tempfile::tempdir().unwrap();
        let layout = Layout::open(self.path())?;
        let dir = tempfile::tempdir().unwrap();
        let (_, lost) = unpack(&layout, &Tree::open(into.path())?, dir.path(), bounds)?;
        Ok((into, lost.devices))
    }

    fn refused(&self) -> String {
        self.unpack(SMALL).map(drop).unwrap_err().to_string()
    }
}

fn unpacked(layers: &[Vec<u8>]) -> tempfile::TempDir {
    Fake::of(layers).unpack(SMALL).unwrap().0
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_source_is_a_path_or_a_name_with_its_kind_before_it() {
    let source = |text: &str| text.parse::<Source>();
    assert_eq!(
        source("oci:a:b.tar").unwrap(),
        Source::Oci("a:b.tar".into())
    );
    assert_eq!(source("dir:/x").unwrap(), Source::Directory("/x".into()));
    let podman = source("podman:localhost/a:latest").unwrap();
    assert_eq!(podman.to_string(), "podman:localhost/a:latest");
    assert_eq!(source("host").unwrap(), Source::Host("/".into()));
    let host = source("host:/srv/a:b").unwrap();
    assert_eq!(host, Source::Host("/srv/a:b".into()));
    assert_eq!(source(&host.to_string()).unwrap(), host);
    for wrong in ["host:", "host:here", "host:/a/../b"] {
        let message = source(wrong).unwrap_err().to_string();
        assert!(message.contains("absolute path"), "{message}");
    }
    for wrong in ["", "oci:", "a.tar", "podman:--all", "docker:x"] {
        let message = source(wrong).unwrap_err().to_string();
        assert!(message.contains("write oci:"), "{message}");
    }
}

#[test]
fn a_whiteout_removes_a_name_of_lower_layers_and_not_of_its_own() {
    if !sets_owners() {
        return;
    }
    let lower = ended(&[dir("a"), file("a/x", "1"), file("a/y", "1"), file("b", "1")]);
    let upper = ended(&[
        file("a/x", "2"),
        file("a/.wh.x", ""),
        file("a/.wh.y", ""),
        file(".wh.b", ""),
        file(".wh.nothing", ""),
        file(".wh..wh.plnk", ""),
    ]);
    let root = unpacked(&[lower, upper]);
    assert_eq!(names(root.path()), ["a"]);
    assert_eq!(names(&root.path().join("a")), ["x"]);
    assert_eq!(fs::read(root.path().join("a/x")).unwrap(), b"2");
}

#[test]
fn an_opaque_directory_hides_all_of_lower_layers_wherever_its_whiteout_is_in_the_archive() {
    if !sets_owners() {
        return;
    }
    let lower = ended(&[dir("a"), dir("a/d"), file("a/d/x", "1"), file("a/y", "1")]);
    let upper = ended(&[dir("a"), file("a/new", "2"), file("a/.wh..wh..opq", "")]);
    let root = unpacked(&[lower, upper]);
    assert_eq!(names(&root.path().join("a")), ["new"]);
}

#[test]
fn a_whiteout_of_the_directory_itself_or_its_parent_is_refused() {
    if !sets_owners() {
        return;
    }
    for name in [".wh.", ".wh..", ".wh..."] {
        let message = Fake::of(&[ended(&[file(name, "")])]).refused();
        assert!(message.contains("cannot remove"), "{name}: {message}");
    }
}

#[test]
fn no_link_of_a_layer_leads_out_of_the_root() {
    if !sets_owners() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let precious = outside.path().join("precious");
    fs::write(&precious, "of the host").unwrap();
    let out = outside.path().to_str().unwrap();
    let depth = "../".repeat(12);
    let relative = format!("{depth}{}", out.trim_start_matches('/'));
    for target in [out, relative.as_str()] {
        let first = ended(&[dir(out), file(&format!("{out}/kept"), "x")]);
        let second = ended(&[
            dir(out),
            link("l", b'2', target),
            file("l/planted", "x"),
            file("l/.wh.precious", ""),
            dir("l/sub"),
            link("hard", b'1', "l/planted"),
        ]);
        let root = unpacked(&[first, second]);
        // The target is below the root, as for a process that has this root.
        let inside = root.path().join(out.trim_start_matches('/'));
        assert_eq!(names(&inside), ["kept", "planted", "sub"]);
        assert_eq!(fs::metadata(inside.join("planted")).unwrap().nlink(), 2);
    }
    assert_eq!(names(outside.path()), ["precious"]);
    // A hard link to a file of the host through a link, and a link in the place of a file.
    let layer = ended(&[link("l", b'2', out), link("stolen", b'1', "l/precious")]);
    let message = Fake::of(&[layer]).refused();
    assert!(
        message.contains("cannot create") && message.contains("stolen"),
        "{message}"
    );
    let layer = ended(&[
        link("f", b'2', precious.to_str().unwrap()),
        file("f", "new"),
    ]);
    let root = unpacked(&[layer]);
    assert_eq!(fs::read(root.path().join("f")).unwrap(), b"new");
    assert_eq!(fs::read(&precious).unwrap(), b"of the host");
}

#[test]
fn an_opaque_directory_through_a_link_empties_nothing_outside() {
    if !sets_owners() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "").unwrap();
    let first = ended(&[link("l", b'2', outside.path().to_str().unwrap())]);
    let second = ended(&[file("l/.wh..wh..opq", "")]);
    unpacked(&[first, second]);
    assert_eq!(names(outside.path()), ["precious"]);
}

#[test]
fn a_link_loop_and_a_name_below_a_file_are_errors_with_the_name() {
    if !sets_owners() {
        return;
    }
    let loops = ended(&[link("a", b'2', "b"), link("b", b'2', "a"), file("a/x", "")]);
    assert!(Fake::of(&[loops]).refused().contains("a/x"));
    let below = ended(&[file("a", ""), file("a/x", "")]);
    assert!(Fake::of(&[below]).refused().contains("a/x"));
    let dangling = ended(&[link("a", b'2', "/nowhere"), file("a/x", "")]);
    assert!(Fake::of(&[dangling]).refused().contains("a/x"));
}

#[test]
fn devices_are_left_out_and_pipes_are_made() {
    if !sets_owners() {
        return;
    }
    let layer = ended(&[
        link("null", b'3', ""),
        link("disk", b'4', ""),
        link("pipe", b'6', ""),
    ]);
    let (root, devices) = Fake::of(&[layer]).unpack(SMALL).unwrap();
    // Both passes see a device, and only that of files counts it.
    assert_eq!(devices, 2);
    assert_eq!(names(root.path()), ["pipe"]);
    let pipe = fs::symlink_metadata(root.path().join("pipe")).unwrap();
    assert!(pipe.file_type().is_fifo());
}

#[test]
fn a_later_entry_replaces_an_earlier_one_of_any_kind() {
    if !sets_owners() {
        return;
    }
    let all = |name: &str| [file(name, "f"), link(name, b'2', "/t"), dir(name)];
    for first in all("a") {
        for second in all("a") {
            let layers = [&first, &second].map(|entry| ended(std::slice::from_ref(entry)));
            let root = unpacked(&layers);
            assert_eq!(names(root.path()), ["a"]);
            let kind = fs::symlink_metadata(root.path().join("a"))
                .unwrap()
                .file_type();
            let wanted = second[156];
            assert_eq!(kind.is_dir(), wanted == b'5');
            assert_eq!(kind.is_symlink(), wanted == b'2');
        }
    }
    let itself = unpacked(&[ended(&[file("a", "f"), link("a", b'1', "a")])]);
    assert_eq!(fs::read(itself.path().join("a")).unwrap(), b"f");
}

#[test]
fn modes_with_set_user_id_are_kept() {
    if !sets_owners() {
        return;
    }
    let layer = ended(&[
        header("su", b'0', 0, 0o4755, ""),
        header("tmp", b'5', 0, 0o1777, ""),
    ]);
    let root = unpacked(&[layer]);
    let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("su"), mode("tmp")), (0o4755, 0o1777));
}

#[test]
fn an_image_beyond_its_bytes_or_entries_is_refused() {
    if !sets_owners() {
        return;
    }
    let large = ended(&[header("zeros", b'0', 1 << 21, 0o644, ""), vec![0; 1 << 21]]);
    let message = Fake::of(&[large]).refused();
    assert!(message.contains("more than 16 GiB"), "{message}");
    let many: Vec<Vec<u8>> = (0..60)
        .map(|number| file(&format!("f{number}"), ""))
        .collect();
    let message = Fake::of(&[ended(&many), ended(&many)]).refused();
    assert!(message.contains("more than 1000000 files"), "{message}");
    // After the archive's end, too.
    let mut trailing = ended(&[file("a", "")]);
    trailing.resize(2 << 20, 0);
    assert!(Fake::of(&[trailing]).refused().contains("16 GiB"));
}

/// The programs that compress layers, as far as they are here.
fn compressors() -> impl Iterator<Item = &'static str> {
    ["gzip", "zstd"].into_iter().filter(|program| {
        let is_here = vtax_host::Roots::host().program(program).is_some();
        if !is_here {
            eprintln!("SKIPPED: the program {program} is missing");
        }
        is_here
    })
}

fn compressed(program: &str, bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut child = Command::new(program)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feeder = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output.stdout
}

#[test]
fn compressed_layers_are_read_and_a_bomb_is_cut_at_the_bound() {
    if !sets_owners() {
        return;
    }
    for program in compressors() {
        let plain = [ended(&[file("a", "content")])];
        let stored = [compressed(program, &plain[0])];
        let fake = Fake::with(&stored, &plain, &json!({}));
        let (root, _) = fake.unpack(SMALL).unwrap();
        assert_eq!(fs::read(root.path().join("a")).unwrap(), b"content");
        let bomb = [ended(&[
            header("a", b'0', 50 << 20, 0o644, ""),
            vec![0; 50 << 20],
        ])];
        let stored = [compressed(program, &bomb[0])];
        assert!(stored[0].len() < 1 << 20);
        let message = Fake::with(&stored, &bomb, &json!({})).refused();
        assert!(message.contains("16 GiB"), "{message}");
        let cut = [stored[0][..stored[0].len() / 2].to_vec()];
        assert!(Fake::with(&cut, &bomb, &json!({})).unpack(BOUNDS).is_err());
        let cut = [compressed(program, &plain[0])].map(|layer| layer[..layer.len() - 4].to_vec());
        let message = Fake::with(&cut, &plain, &json!({})).refused();
        assert!(
            message.contains("damaged") || message.contains("ends within"),
            "{message}"
        );
    }
}

#[test]
fn a_layer_manifest_or_configuration_with_another_digest_is_refused_with_its_file() {
    if !sets_owners() {
        return;
    }
    let layer = ended(&[file("a", "content")]);
    let fake = Fake::of(std::slice::from_ref(&layer));
    for blob in fs::read_dir(fake.path().join("blobs/sha256"))
        .unwrap()
        .flatten()
    {
        let whole = fs::read(blob.path()).unwrap();
        let mut changed = whole.clone();
        let last = changed.len() - 1;
        changed[last] = b' ';
        if changed == whole {
            changed.push(b' ');
        }
        fs::write(blob.path(), &changed).unwrap();
        let message = fake.refused();
        let name = blob.file_name();
        assert!(message.contains(name.to_str().unwrap()), "{message}");
        assert!(
            message.contains("damaged: save the image again"),
            "{message}"
        );
        fs::remove_file(blob.path()).unwrap();
        assert!(
            fake.refused()
                .contains("is missing in it: save the image again")
        );
        fs::write(blob.path(), whole).unwrap();
    }
    fake.unpack(SMALL).unwrap();
    // The configuration names another content than that of the layer.
    let other = Fake::with(&[layer], &[ended(&[file("b", "")])], &json!({}));
    assert!(other.refused().contains("damaged"));
}

#[test]
fn an_image_of_another_architecture_and_one_of_several_are_refused_by_name() {
    if !sets_owners() {
        return;
    }
    let other = Fake::with(&[], &[], &json!({"top": {"architecture": "s390x"}}));
    let message = other.refused();
    assert!(
        message.contains("is for linux/s390x") && message.contains("--platform"),
        "{message}"
    );
    let fake = Fake::of(&[ended(&[])]);
    let manifest = fake.blob(fake.manifest.to_string().as_bytes());
    let with = |platform: &str, name: &str| {
        let mut one = manifest.clone();
        one["platform"] = json!({"os": "linux", "architecture": platform});
        one["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        one
    };
    fake.write_index(&json!({"manifests": [with("arm64", "a")]}));
    assert!(fake.refused().contains("is for linux/arm64"));
    fake.write_index(&json!({"manifests": [with("amd64", "a"), with("arm64", "a")]}));
    fake.unpack(SMALL).unwrap();
    let mut another = fake.manifest.clone();
    another["annotations"] = json!({"of": "another image"});
    let mut two = fake.blob(another.to_string().as_bytes());
    two["annotations"] = json!({"org.opencontainers.image.ref.name": "two"});
    fake.write_index(&json!({"manifests": [with("amd64", "one"), two]}));
    let message = fake.refused();
    assert!(
        message.contains("2 images (")
            && message.contains("two")
            && message.contains("podman save"),
        "{message}"
    );
    fake.write_index(&json!({"manifests": []}));
    assert!(fake.refused().contains("0 images"));
    // An index of an index of itself.
    let index = json!({"manifests": [
        {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": manifest["digest"]}]});
    let mut nested = index;
    for _ in 0..5 {
        let mut inner = fake.blob(nested.to_string().as_bytes());
        inner["mediaType"] = json!("application/vnd.oci.image.index.v1+json");
        nested = json!({"manifests": [inner]});
    }
    fake.write_index(&nested);
    assert!(fake.refused().contains("nested too deeply"));
}

#[test]
fn too_many_layers_and_a_digest_that_is_a_path_are_refused() {
    if !sets_owners() {
        return;
    }
    let layers = vec![ended(&[]); 513];
    assert!(Fake::of(&layers).refused().contains("513 layers"));
    let fake = Fake::of(&[ended(&[])]);
    for digest in ["sha256:../../../etc/passwd", "sha512:00", "x"] {
        fake.write_index(&json!({"manifests": [{"digest": digest}]}));
        assert!(
            fake.refused().contains("is not a SHA-256 digest"),
            "{digest}"
        );
    }
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(
        Layout::open(elsewhere.path())
            .unwrap_err()
            .to_string()
            .contains("podman save")
    );
    // A blob that is a link to a file of the host.
    let fake = Fake::of(&[ended(&[file("a", "")])]);
    let blob = fake
        .path()
        .join("blobs/sha256")
        .join(digest_of(&ended(&[file("a", "")])));
    fs::rename(&blob, elsewhere.path().join("blob")).unwrap();
    symlink(elsewhere.path().join("blob"), &blob).unwrap();
    assert!(fake.refused().contains("link"), "{}", fake.refused());
}

#[test]
fn an_archive_of_a_layout_and_one_of_docker_save_are_the_same_image() {
    if !sets_owners() {
        return;
    }
    let layer = ended(&[file("a", "content")]);
    let fake = Fake::of(&[layer.clone(), layer.clone()]);
    let layout = Layout::open(fake.path()).unwrap();
    let archives = tempfile::tempdir().unwrap();
    let archive = archives.path().join("oci.tar");
    let packed = Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(fake.path())
        .arg(".")
        .status();
    assert!(packed.unwrap().success());
    let of_archive = Layout::open(&archive).unwrap();
    assert_eq!(of_archive.digest, layout.digest);
    let config = fs::read(fake.path().join("blobs/sha256").join(&layout.digest)).unwrap();
    let manifest = json!([{"Config": format!("{}.json", layout.digest), "RepoTags": ["a"],
                           "Layers": ["one.tar", "two/layer.tar"]}]);
    let saved = ended(&[
        entry("one.tar", b'0', &layer),
        link("two/layer.tar", b'2', "../one.tar"),
        entry("config.json", b'0', &config),
        entry("manifest.json", b'0', manifest.to_string().as_bytes()),
    ]);
    let archive = archives.path().join("docker.tar");
    fs::write(&archive, &saved).unwrap();
    assert!(
        Layout::open(&archive)
            .unwrap_err()
            .to_string()
            .contains("missing")
    );
    let saved = ended(&[
        entry("one.tar", b'0', &layer),
        link("two/layer.tar", b'2', "../one.tar"),
        entry(&format!("{}.json", layout.digest), b'0', &config),
        entry("manifest.json", b'0', manifest.to_string().as_bytes()),
    ]);
    fs::write(&archive, &saved).unwrap();
    let docker = Layout::open(&archive).unwrap();
    assert_eq!(docker.digest, layout.digest);
    for layout in [&of_archive, &docker] {
        let root = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        unpack(layout, &Tree::open(root.path()).unwrap(), dir.path(), SMALL).unwrap();
        assert_eq!(fs::read(root.path().join("a")).unwrap(), b"content");
    }
    fs::write(&archive, &saved[..saved.len() - 2048]).unwrap();
    let message = Layout::open(&archive).unwrap_err().to_string();
    assert!(
        message.contains("ends within") && message.contains("save the image again"),
        "{message}"
    );
    for program in compressors() {
        fs::write(&archive, compressed(program, &saved)).unwrap();
        assert_eq!(Layout::open(&archive).unwrap().digest, layout.digest);
    }
}

/// An archive of `manifest.json` with the configuration and the layer under these names.
fn saved(folder: &Path, config_name: &str, layer_name: &str) -> PathBuf {
    let layer = ended(&[file("a", "content")]);
    let fake = Fake::of(std::slice::from_ref(&layer));
    let digest = Layout::open(fake.path()).unwrap().digest;
    let config = fs::read(fake.path().join("blobs/sha256").join(&digest)).unwrap();
    let layer = compressed("gzip", &layer);
    let config_name = config_name.replace("HEX", &digest);
    let layer_name = layer_name.replace("HEX", &digest_of(&layer));
    let one = |tag: &str| json!({"Config": config_name, "RepoTags": [tag], "Layers": [layer_name]});
    let manifest = json!([one("app:1"), one("app:2")]).to_string();
    let path = folder.join("app.tar");
    let archive = ended(&[
        entry(&config_name, b'0', &config),
        entry(&layer_name, b'0', &layer),
        entry("manifest.json", b'0', manifest.as_bytes()),
    ]);
    fs::write(&path, archive).unwrap();
    path
}

#[test]
fn archives_of_crane_ko_kaniko_and_jib_are_images() {
    if !sets_owners() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (config, layer) in [
        ("sha256:HEX", "HEX.tar.gz"),
        ("config.json", "HEX.tar.gz"),
        ("HEX.json", "HEX/layer.tar"),
    ] {
        let layout = Layout::open(&saved(folder.path(), config, layer)).unwrap();
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::open(root.path()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        unpack(&layout, &tree, dir.path(), SMALL).unwrap();
        assert_eq!(fs::read(root.path().join("a")).unwrap(), b"content");
    }
    // A name that is a digest is compared.
    let other = format!("sha256:{}", "0".repeat(64));
    let message = Layout::open(&saved(folder.path(), &other, "x")).unwrap_err();
    assert!(message.to_string().contains("damaged"), "{message}");
}

#[test]
fn of_several_manifests_the_one_image_is_taken_that_this_processor_runs() {
    if !sets_owners() {
        return;
    }
    let fake = Fake::of(&[ended(&[file("a", "plain")])]);
    let other = |content: &str| {
        let layer = ended(&[file("a", content)]);
        let config = fake.blob(
            json!({"architecture": "amd64", "os": "linux",
                   "rootfs": {"diff_ids": [format!("sha256:{}", digest_of(&layer))]}})
            .to_string()
            .as_bytes(),
        );
        let layer = fake.blob(&layer);
        fake.blob(
            json!({"config": config, "layers": [layer]})
                .to_string()
                .as_bytes(),
        )
    };
    let with = |mut manifest: Value, variant: Option<&str>| {
        manifest["platform"] = json!({"os": "linux", "architecture": "amd64", "variant": variant});
        manifest
    };
    let content = |index: &Value| {
        fake.write_index(index);
        let (root, _) = fake.unpack(SMALL).unwrap();
        fs::read_to_string(root.path().join("a")).unwrap()
    };
    let plain = fake.blob(fake.manifest.to_string().as_bytes());
    // One image under two tags.
    let tagged = |tag: &str| {
        let mut one = with(plain.clone(), None);
        one["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        one
    };
    assert_eq!(
        content(&json!({"manifests": [tagged("one"), tagged("two")]})),
        "plain"
    );
    let second = with(other("v2"), Some("v2"));
    let never = with(other("v9"), Some("v9"));
    let all = json!({"manifests": [never, second, with(plain.clone(), None)]});
    assert_eq!(content(&all), "plain");
    // A processor without the second level runs no image of it.
    if std::arch::is_x86_feature_detected!("sse4.2") {
        assert_eq!(content(&json!({"manifests": [never, second]})), "v2");
    }
    fake.write_index(&json!({"manifests": [never]}));
    assert!(
        fake.refused().contains("it is for linux/amd64/v9"),
        "{}",
        fake.refused()
    );
    // A signature and an attestation beside the image.
    let mut signature = fake.blob(b"{}");
    signature["mediaType"] = json!("application/vnd.dev.cosign.simplesigning.v1+json");
    let signature = fake.blob(
        json!({"config": signature, "layers": [signature]})
            .to_string()
            .as_bytes(),
    );
    let mut attestation = other("attestation");
    attestation["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    let mut artifact = other("artifact");
    artifact["artifactType"] = json!("application/spdx+json");
    let all = json!({"manifests": [signature, attestation, artifact, plain]});
    assert_eq!(content(&all), "plain");
}

#[test]
fn a_pipe_a_device_and_a_file_of_the_kernel_are_no_image_and_nothing_waits_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let link = folder.path().join("link");
    symlink(&pipe, &link).unwrap();
    for path in [pipe, link, "/dev/zero".into()] {
        let message = Layout::open(&path).unwrap_err().to_string();
        assert!(
            message.contains("neither a directory nor a regular file"),
            "{message}"
        );
    }
}

#[test]
fn a_directory_above_a_link_or_a_file_takes_its_place() {
    if !sets_owners() {
        return;
    }
    let lower = ended(&[
        dir("target"),
        file("target/keep.txt", "kept"),
        link("link", b'2', "/target"),
        link("implied", b'2', "/target"),
        file("file", "f"),
        header("mode", b'5', 0, 0o711, ""),
        file("mode/a", ""),
    ]);
    let upper = ended(&[
        dir("link"),
        file("link/.wh..wh..opq", ""),
        file("link/new.txt", "new"),
        file("implied/new.txt", "new"),
        file("file/inside.txt", "inside"),
        file("mode/b", ""),
    ]);
    let root = unpacked(&[lower, upper]);
    let below = |name: &str| names(&root.path().join(name));
    assert_eq!(below("target"), ["keep.txt"]);
    for name in ["link", "implied"] {
        let about = fs::symlink_metadata(root.path().join(name)).unwrap();
        assert!(about.is_dir(), "{name}");
        assert_eq!(below(name), ["new.txt"]);
    }
    assert_eq!(below("file"), ["inside.txt"]);
    // A directory that the upper layer has no entry for keeps its permissions.
    assert_eq!(below("mode"), ["a", "b"]);
    let mode = fs::metadata(root.path().join("mode")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o711);
}

/// A file with a name beyond the 100 bytes of a header.
fn long(name: &str) -> Vec<u8> {
    let name = [name.as_bytes(), b"\0"].concat();
    [entry("././@LongLink", b'L', &name), file("long", "")].concat()
}

#[test]
fn a_program_that_an_image_lacks_and_one_without_its_interpreter_are_found_before_it_runs() {
    if !sets_owners() {
        return;
    }
    let elf = |loader: &str| {
        let mut file = vec![0; 120];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        // One program header at 64, of type PT_INTERP, with the loader's name at 120.
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = 3;
        file[72] = 120;
        file[96] = u8::try_from(loader.len() + 1).unwrap();
        file.extend_from_slice(loader.as_bytes());
        file.push(0);
        String::from_utf8_lossy(&file).into_owned()
    };
    let program = |name: &str, content: &str| {
        let content = content.as_bytes();
        [header(name, b'0', content.len() as u64, 0o755, ""), {
            let mut padded = content.to_vec();
            padded.resize(content.len().next_multiple_of(512), 0);
            padded
        }]
        .concat()
    };
    let layer = ended(&[
        dir("bin"),
        program("bin/sh", "binary"),
        link("sbin", b'2', "/bin"),
        link("bin/alias", b'2', "sh"),
        program("bin/script", "#!/sbin/sh -e\ntrue\n"),
        program("bin/windows", "#!/bin/sh\r\ntrue\r\n"),
        program("bin/dynamic", &elf("/lib/ld.so")),
        program("bin/static", &elf("/bin/sh")),
        file("bin/data", "no program"),
        link("pipe", b'6', ""),
        program("srv/run", "binary"),
    ]);
    let root = unpacked(&[layer]);
    let tree = Tree::open(root.path()).unwrap();
    let check = |word: &str| {
        program::check(&tree, "oci:app", word, "/opt:/sbin", Path::new("/srv"))
            .map_err(|error| error.to_string())
    };
    for fine in [
        "sh",
        "alias",
        "script",
        "static",
        "/bin/sh",
        "./run",
        "../bin/sh",
    ] {
        assert_eq!(check(fine), Ok(()), "{fine}");
    }
    for (word, problem) in [
        ("nope", "`nope` is not in the image (PATH /opt:/sbin)"),
        ("/nope", "`/nope` is not in the image"),
        ("/pipe", "`/pipe` in the image is no executable file"),
        ("data", "`data` in the image is no executable file"),
        (
            "windows",
            "the interpreter `/bin/sh\\r` of `windows` is not in the image",
        ),
        (
            "dynamic",
            "the interpreter `/lib/ld.so` of `dynamic` is not in the image",
        ),
    ] {
        assert_eq!(check(word), Err(format!("the image oci:app: {problem}")));
    }
}

#[test]
fn directories_that_an_archive_implies_count_and_the_depth_is_bounded() {
    if !sets_owners() {
        return;
    }
    let name = vec!["d"; 200].join("/");
    let message = Fake::of(&[ended(&[long(&name)])]).refused();
    assert!(
        message.contains("more than 1000000 files and directories"),
        "{message}"
    );
    let name = vec!["d"; 257].join("/");
    let message = Fake::of(&[ended(&[long(&name)])]).refused();
    assert!(message.contains("a path of 257 levels"), "{message}");
    // Each directory is made once: by the square of the depth, this took a minute.
    let names: Vec<String> = (0..200)
        .map(|number| format!("{number}/{}", vec!["d"; 250].join("/")))
        .collect();
    let entries: Vec<Vec<u8>> = names.iter().map(|name| long(name)).collect();
    let bounds = Bounds {
        entries: 40_000,
        bytes: 64 << 20,
        ..SMALL
    };
    let message = Fake::of(&[ended(&entries)]).unpack(bounds).map(drop);
    assert!(
        message
            .unwrap_err()
            .to_string()
            .contains("more than 1000000 files")
    );
}

#[test]
fn an_archive_of_almost_nothing_but_zeros_is_refused_early() {
    if !sets_owners() {
        return;
    }
    for program in compressors() {
        let bomb = [ended(&[
            header("a", b'0', 300 << 20, 0o644, ""),
            vec![0; 300 << 20],
        ])];
        let stored = [compressed(program, &bomb[0])];
        let bounds = Bounds {
            bytes: 1 << 30,
            free: 8 << 20,
            ..SMALL
        };
        let message = Fake::with(&stored, &bomb, &json!({})).unpack(bounds);
        let message = message.map(drop).unwrap_err().to_string();
        assert!(
            message.contains("more than 8 MiB and 200 times its size"),
            "{message}"
        );
    }
}

#[test]
fn a_root_directory_has_the_same_digest_until_one_of_its_files_changes() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("bin")).unwrap();
    fs::write(root.path().join("bin/app"), "one").unwrap();
    symlink("/bin/app", root.path().join("init")).unwrap();
    let content = || Content::open(&Source::Directory(root.path().to_owned())).unwrap();
    let first = content().digest().unwrap();
    assert_eq!(content().digest().unwrap(), first);
    let into = tempfile::tempdir().unwrap();
    let tree = Tree::open(into.path()).unwrap();
    let (execution, _) = content().unpack(&tree, into.path(), &mut |_| {}).unwrap();
    assert_eq!(execution, Execution::default());
    assert_eq!(fs::read(into.path().join("bin/app")).unwrap(), b"one");
    assert_eq!(names(into.path()), ["bin", "init"]);
    fs::write(root.path().join("bin/app"), "two").unwrap();
    assert_ne!(content().digest().unwrap(), first);
    let file = root.path().join("bin/app");
    let message = Content::open(&Source::Directory(file))
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(message.contains("oci:FILE.tar"), "{message}");
}

#[test]
fn mount_points_hosts_and_the_working_directory_are_made_inside_whatever_the_image_has_there() {
    if !sets_owners() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let out = outside.path().to_str().unwrap();
    let layer = ended(&[
        link("proc", b'2', out),
        file("dev", "x"),
        link("etc", b'2', out),
        link("srv", b'2', out),
    ]);
    let root = unpacked(&[layer]);
    let execution = Execution {
        working_dir: Some("/srv/deep".to_owned()),
        ..Execution::default()
    };
    let tree = Tree::open(root.path()).unwrap();
    // The link of etc leads to a directory that the image lacks.
    fs::create_dir_all(root.path().join(out.trim_start_matches('/'))).unwrap();
    let files = enter::complete(&tree, &execution, Path::new("x")).unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file.path).collect();
    assert_eq!(paths, [ENTER, "/usr/lib/vtax/image.conf", MOUNTS]);
    for name in ["proc", "sys", "dev"] {
        let about = fs::symlink_metadata(root.path().join(name)).unwrap();
        assert!(about.is_dir(), "{name}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let inside = root.path().join(out.trim_start_matches('/'));
    assert_eq!(names(&inside), ["deep", "hosts"]);
    let up = Execution {
        working_dir: Some("/a/../..".to_owned()),
        ..Execution::default()
    };
    assert!(enter::complete(&tree, &up, Path::new("x")).is_err());
}
