// SPDX-License-Identifier: Apache-2.0
//! Pools of XenServer and XCP-ng. The tests have no real pool: the vendor's own Python SDK uses the stand-in of
//! `pool/`, and vtax uses it in cases of error. Trials with it are in `tests/places.rs`.

use crate::pool;
use crate::pool::Pool;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use vtax_host::settings::{Level, Settings};
use vtax_host::xenapi;
use vtax_lab::plan::Catalogue;

/// A script that checks the stand-in with the SDK.
const SDK: &str = r#"
import os, sys, urllib.request, xml.etree.ElementTree as ElementTree
import XenAPI
url = sys.argv[1]
session = XenAPI.Session(url)
def refused(what):
    try:
        what()
    except XenAPI.Failure as failure:
        return failure.details
    raise SystemExit("nothing was refused")
assert refused(lambda: session.xenapi.login_with_password("root", "no", "1.0", "test"))[0] == "SESSION_AUTHENTICATION_FAILED"
session.xenapi.login_with_password("root", "secret", "1.0", "test")
assert session.API_version == "2.21", session.API_version
x = session.xenapi
(web,) = x.VM.get_by_name_label("web")
record = x.VM.get_record(web)
assert record["power_state"] == "Running" and record["is_a_template"] is False, record
assert x.VM.get_by_name_label("a <missing> & one") == []
assert len(x.VM.get_by_name_label("twin")) == 2
host = x.host.get_record(x.VM.get_resident_on(web))
assert host["software_version"]["product_brand"] == "XCP-ng", host
assert str(x.host.get_servertime(x.VM.get_resident_on(web))).endswith("Z")
assert refused(lambda: x.VM.get_record("OpaqueRef:nothing")) == ["HANDLE_INVALID", "VM", "OpaqueRef:nothing"]
assert refused(lambda: x.VM.fly(web))[0] == "MESSAGE_METHOD_UNKNOWN"
assert refused(lambda: x.VM.start(web, False, False))[0] == "VM_BAD_POWER_STATE"
(template,) = x.VM.get_by_name_label("debian")
vm = x.VM.clone(template, "made")
assert refused(lambda: x.VM.start(vm, False, False))[0] == "VM_IS_TEMPLATE"
x.VM.provision(vm)
x.VM.start(vm, False, False)
networks = x.VM_guest_metrics.get_networks(x.VM.get_guest_metrics(vm))
assert networks["0/ip"] == "192.0.2.7", networks
assert refused(lambda: x.VM.destroy(vm))[0] == "VM_BAD_POWER_STATE"
x.VM.clean_shutdown(vm)
x.VM.destroy(vm)
assert x.VM.get_by_name_label("made") == []
query = "/rrd_updates?session_id=%s&start=%d&cf=AVERAGE&host=true" % (session.handle, 0)
answer = urllib.request.urlopen(url + query).read()
xport = ElementTree.fromstring(answer)
legend = [entry.text for entry in xport.find("meta").find("legend")]
assert "AVERAGE:vm:%s:cpu0" % record["uuid"] in legend, legend
assert "AVERAGE:host:%s:cpu1" % host["uuid"] in legend, legend
rows = xport.find("data").findall("row")
assert len(rows) == int(xport.find("meta").findtext("rows")) == 120, len(rows)
times = [int(row.findtext("t")) for row in rows]
assert times == sorted(times, reverse=True) and times[0] - times[1] == 5, times
assert all(len(row.findall("v")) == len(legend) for row in rows)
session.xenapi.session.logout()
try:
    urllib.request.urlopen(url + query)
    raise SystemExit("a session that is over is one")
except urllib.error.HTTPError as error:
    assert error.code == 401
print("content with it:", XenAPI.__file__)
"#;

#[test(needs = [brought_by_test_all("python3"), python_module("XenAPI"), brought_by_test_all("openssl")])]
fn the_vendors_own_sdk_is_content_with_the_stand_in() {
    let modules = vtax_testkit::needs::python_modules();
    let python = |script: &str| {
        let mut python = Command::new("python3");
        python.arg("-c").arg(script).env("PYTHONPATH", &modules);
        python
    };
    let folder = tempfile::tempdir().unwrap();
    let pool = Pool::start(folder.path(), "127.0.0.1", None);
    pool.inside().tell("192.0.2.7");
    let asked = python(SDK)
        .arg(format!("https://{}", pool.address))
        .env("SSL_CERT_FILE", pool.file("pool.pem"))
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{shown}");
}

#[test(needs = [brought_by_test_all("openssl"), brought_by_test_all("curl")])]
fn what_is_wrong_with_a_pool_is_reported_and_a_certificate_that_is_not_known_is_never_taken() {
    let folder = tempfile::tempdir().unwrap();
    let pool = Pool::start(folder.path(), "127.0.0.1", None);
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let good = xenapi::Access {
        host: pool.address.to_string(),
        authorities: Some(pool.file("pool.pem")),
        fingerprint: None,
        login: Some(pool.file("login")),
    };
    let log_in = |access: &xenapi::Access| {
        let shown = xenapi::Pool::log_in(access).map_err(|cause| cause.to_string());
        shown.map(drop)
    };
    assert_eq!(log_in(&good), Ok(()));
    let printed = Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(pool.file("pool.pem"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).trim().to_owned();
    let pinned = |fingerprint: &str| xenapi::Access {
        authorities: None,
        fingerprint: Some(fingerprint.to_owned()),
        ..good.clone()
    };
    assert_eq!(log_in(&pinned(&printed)), Ok(()));
    let several = format!("{},{printed}", "0".repeat(64));
    assert_eq!(log_in(&pinned(&several)), Ok(()));
    let calls = pool.inside().calls.len();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    drop(Pool::start(&other, "127.0.0.1", None));
    let silent = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let secret = pool::LOGIN.1;
    for (access, parts) in [
        (
            pinned(""),
            &["xenapi.fingerprint", "64 hexadecimal digits"][..],
        ),
        (
            pinned(&"0".repeat(64)),
            &["certificate", "not xenapi.fingerprint", "openssl s_client"],
        ),
        (
            xenapi::Access {
                authorities: None,
                ..good.clone()
            },
            &["certificate", "no public authority", "xenapi.ca"],
        ),
        (
            xenapi::Access {
                authorities: Some(other.join("pool.pem")),
                ..good.clone()
            },
            &["certificate", "does not vouch for it"],
        ),
        (
            xenapi::Access {
                authorities: Some(file("empty.pem", "")),
                ..good.clone()
            },
            &["xenapi.ca", "no certificate in it"],
        ),
        (
            // The certificate names the address alone.
            xenapi::Access {
                host: format!("localhost:{}", pool.address.port()),
                ..good.clone()
            },
            &["certificate", "localhost"],
        ),
        (
            xenapi::Access {
                host: silent.to_string(),
                ..good.clone()
            },
            &["a pool that answers at", "is missing", "curl"],
        ),
    ] {
        let shown = log_in(&access).unwrap_err();
        for part in parts {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains(secret), "{shown}");
    }
    assert_eq!(
        pool.inside().calls.len(),
        calls,
        "no client received the password"
    );
    let wrong = xenapi::Access {
        login: Some(file("wrong", "root:wrong")),
        ..good.clone()
    };
    let shown = log_in(&wrong).unwrap_err();
    assert!(
        shown.contains("the login of root") && shown.contains("refuses user or password"),
        "{shown}"
    );
    assert!(!shown.contains("wrong"), "{shown}");

    let text = |value: &str| Level::Text(value.to_owned());
    let check = |more: &[(&str, &str)]| {
        let given = [
            ("xenapi.host", good.host.as_str()),
            ("xenapi.login", pool.file("login").to_str().unwrap()),
            ("xenapi.ca", pool.file("pool.pem").to_str().unwrap()),
        ]
        .map(|(key, value)| (key.to_owned(), text(value)));
        let more = more
            .iter()
            .map(|(key, value)| ((*key).to_owned(), text(value)));
        let settings: Settings = given.into_iter().chain(more).collect();
        let platform = Catalogue::standard().platform("xenapi").unwrap();
        platform.check(&settings).unwrap_err().to_string()
    };
    for (more, parts) in [
        (&[][..], &["either xenapi.vm", "or xenapi.template"][..]),
        (
            &[("xenapi.vm", "a"), ("xenapi.template", "b")],
            &["either xenapi.vm"],
        ),
        (
            &[("xenapi.vm", "web"), ("xenapi.fingerprint", "x")],
            &["two ways", "one of them"],
        ),
        (
            &[("xenapi.vm", "gone")],
            &["a VM called `gone`", "is missing", "xe vm-list"],
        ),
        (&[("xenapi.vm", "debian")], &["a VM called `debian`"]),
        (
            &[("xenapi.vm", "Control domain on host: xcp")],
            &["a VM called"],
        ),
        (
            &[("xenapi.vm", "twin")],
            &["2 VMs", "are called `twin`", "another name"],
        ),
        (
            &[("xenapi.vm", "off")],
            &["is not running but Halted", "start it"],
        ),
        (&[("xenapi.vm", "web")], &["the address of web", "ssh.to"]),
        (
            &[("xenapi.template", "web")],
            &["a template called `web`", "xe template-list"],
        ),
    ] {
        let shown = check(more);
        for part in parts {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
    // Only VMs that vtax created are ever removed, whatever a journal contains.
    let logged_in = xenapi::Pool::log_in(&good).unwrap();
    let refused = logged_in.end("web").unwrap_err().to_string();
    assert!(refused.contains("never stopped"), "{refused}");
    assert!(
        !pool
            .inside()
            .calls
            .iter()
            .any(|call| call.contains("destroy"))
    );
}
