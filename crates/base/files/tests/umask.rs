// SPDX-License-Identifier: Apache-2.0
//! Modes of created files under a umask of 0. A separate test binary, since the umask belongs to the process.

use rustix::fs::Mode;
use std::fs;
use std::os::unix::fs::MetadataExt;
use vtax_files::Dir;

#[test]
fn under_umask_0_others_write_nowhere_and_what_is_private_is_for_one_user() {
    rustix::process::umask(Mode::empty());
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let shared = Dir::create(&root.join("a/shared")).unwrap();
    shared.write("written", b"").unwrap();
    shared.append("appended").unwrap();
    shared.new_file("new").unwrap();
    shared.create_dir("below").unwrap();
    let private = Dir::private(&root.join("b/private")).unwrap();
    private.write("written", b"").unwrap();
    private.append("appended").unwrap();
    private.edit("lock").unwrap();
    private.create_dir("below").unwrap();
    for (path, mode) in [
        ("a", 0o775),
        ("a/shared", 0o775),
        ("a/shared/written", 0o664),
        ("a/shared/appended", 0o664),
        ("a/shared/new", 0o664),
        ("a/shared/below", 0o775),
        ("b", 0o700),
        ("b/private", 0o700),
        ("b/private/written", 0o600),
        ("b/private/appended", 0o600),
        ("b/private/lock", 0o600),
        ("b/private/below", 0o700),
    ] {
        let found = fs::metadata(root.join(path)).unwrap().mode() & 0o777;
        assert_eq!(format!("{found:o}"), format!("{mode:o}"), "{path}");
    }
}
