//! What the crate carries with it.

use std::path::Path;
use std::process::Command;

use crate::support::root;

/// The crate has copies of the sources, so that it can be published by itself.
#[test]
fn the_functions_are_those_of_the_repository() {
    let mut compared = 0;
    for name in ["rl.library.lua", "rl.script.lua"] {
        let ours = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("functions").join(name)).unwrap();
        match std::fs::read_to_string(root().join("functions").join(name)) {
            Ok(theirs) => {
                assert!(ours == theirs, "functions/{name} has changed: copy it to clients/rust/functions");
                compared += 1;
            }
            Err(_) => eprintln!("SKIPPED: functions/{name} is not around"),
        }
    }
    assert!(compared == 2 || !root().join("functions").exists());
}

#[test]
fn the_package_has_what_it_needs_and_no_more() {
    let list = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).unwrap();
    for needed in ["src/lib.rs", "functions/rl.library.lua", "functions/rl.script.lua", "README.md", "LICENSE"] {
        assert!(list.lines().any(|line| line == needed), "{needed} is missing:\n{list}");
    }
    assert!(!list.lines().any(|line| line.starts_with("tests/") || line.ends_with(".sh")), "{list}");
}
