
# Keeps the source of all that is in /out, with its versions and licences: who passes the build on passes on its source.
# Nothing here changes the program or its firmware, and the hash that names the build leaves it out. Without the source
# the build is as good, but no package can be made of it.
step "keeping its source"
set +e
(
    set -e
    mkdir /out/source /out/source/copyright
    cd /out/source
    cp /root/build.sh /root/*.patch /root/llc.c /root/llc.h /root/qemu_*.dsc /root/qemu_*.tar.* .
    # What is linked into the program, and what its firmware is from.
    for package in libc6-dev libfdt-dev libglib2.0-dev libpcre2-dev libpixman-1-dev zlib1g-dev qemu-system-data seabios; do
        source=$(dpkg-query --show --showformat '${source:Package}' $package)
        dpkg-query --show --showformat '${source:Package} (= ${source:Version})\n' $package >>versions
        cp -L /usr/share/doc/$package/copyright copyright/$source
    done
    sort -u -o versions versions
    dpkg-query --show >installed
    compiled="qemu (= $(dpkg-parsechangelog --file "$(echo /root/qemu-*/debian/changelog)" --show-field Version))"
    grep -qFx "$compiled" versions || { echo "the firmware is not of $compiled"; exit 1; }
    # A mirror may lack a file of a library's source. The index that is signed has the digests of all.
    : >missing
    : >SHA256SUMS
    sed 's/ (= \(.*\))$/=\1/' versions | while read -r source; do
        get() { apt-get -o APT::Sandbox::User=root "$@" source "$source" </dev/null; }
        # It prints only what is not there yet.
        (cd / && get -qq --print-uris) >uris
        awk '{ sub("SHA256:", "", $4); print $4 "  " $2 }' uris >>SHA256SUMS
        get -q --download-only || {
            echo "$source" >>missing
            step "the mirror lacks a file of the source $source: it is only named"
        }
    done
    rm uris
    sha256sum --check --quiet --ignore-missing SHA256SUMS
)
[ $? -eq 0 ] || {
    rm -rf /out/source
    step "its source cannot be kept: no package can be made of this build"
}
