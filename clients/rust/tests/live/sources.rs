//! What the crate carries with it.

use std::process::Command;

#[test]
fn the_package_has_what_it_needs_and_no_more() {
    let list = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).unwrap();
    for needed in ["src/lib.rs", "functions/core.lua", "functions/script.tail.lua", "README.md", "LICENSE"] {
        assert!(list.lines().any(|line| line == needed), "{needed} is missing:\n{list}");
    }
    assert!(!list.lines().any(|line| line.starts_with("tests/") || line.ends_with(".sh")), "{list}");
}
