// SPDX-License-Identifier: Apache-2.0
//! An image for a workload with packages of its own, built for real.

use vtax_guest::image::{self, Recipe};

#[test(needs = [root(), test_all("builds an image, in a minute or two")])]
fn the_image_for_a_workload_has_its_programs_beside_the_shared_ones() {
    let recipe = Recipe::for_packages(&["memcached"]);
    let files = image::ensure(&recipe, &mut |line| eprintln!("{line}")).unwrap();
    for program in ["usr/bin/memcached", "usr/bin/iperf3", "usr/lib/vtax/init"] {
        assert!(files.root.join(program).is_file(), "{program}");
    }
    assert!(files.image.is_file() && files.kernel.is_file() && files.initrd.is_file());
    assert_ne!(files.recipe, Recipe::standard().hash().unwrap());
}
