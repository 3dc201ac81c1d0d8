//! The clock of a server, set by hand. See clock.c.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub struct Clock {
    file: File,
}

impl Clock {
    /// A clock that stands at the given time, in a file for the server to map.
    pub fn create(path: &Path, millis: i64) -> Self {
        let file = File::create(path).expect("the clock's file");
        let clock = Self { file };
        clock.set(millis);
        clock
    }

    /// Sets the time, in milliseconds since the epoch; 0 for the real clock.
    pub fn set(&self, millis: i64) {
        self.file.write_all_at(&(millis * 1000).to_ne_bytes(), 0).expect("the clock's file");
    }
}

/// The library to preload, built once a run.
pub fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = super::root().join("tests/support/clock.c");
        let folder = super::target().join("clock-shim");
        std::fs::create_dir_all(&folder).expect("a folder for the clock shim");
        // Built beside its place and moved there: another run may be using the old one.
        let fresh = folder.join(format!("clock.{}.so", std::process::id()));
        let library = folder.join("clock.so");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
            .args([&fresh, &source])
            .status()
            .expect("cc, the C compiler that Rust links with");
        assert!(status.success(), "clock.c does not compile");
        std::fs::rename(&fresh, &library).expect("the clock shim");
        library
    })
}
