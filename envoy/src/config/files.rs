//! Configurations from files: every file below a folder, read again when one of them has changed.
//!
//! What has changed is looked up once a second, which costs a `stat` a file. Notifications of the file system (inotify, the
//! `notify` crate) are of a folder and not of a path: a link that moves anywhere above, the swap of a Kubernetes ConfigMap
//! and a folder that is replaced each need watches to be found anew, and a walk over the files to see what they made of it.
//! Network file systems send none, and a node can run out of watches.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::{Definition, Origin, Update};
use crate::settings::Files;

const PERIOD: Duration = Duration::from_secs(1);

/// What tells one state of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    name: String,
    path: PathBuf,
    length: u64,
    changed: Option<SystemTime>,
    inode: u64,
}

/// Reads the files, and sends what they say now and whenever they have changed.
pub async fn watch(files: Files, updates: mpsc::Sender<Update>) {
    let mut last = None;
    loop {
        let looked = tokio::task::spawn_blocking({
            let files = files.clone();
            move || {
                let seen = look(&files);
                let read = (last.as_ref() != Some(&seen)).then(|| read(&seen.clone()?));
                (seen, read)
            }
        });
        let Ok((seen, read)) = looked.await else { return };
        last = Some(seen);
        if let Some(definitions) = read
            && updates.send(Update { definitions, origin: Origin::Files }).await.is_err()
        {
            return;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Reads a file, or all files of a folder.
///
/// # Errors
/// The first thing that is wrong.
pub fn read_all(path: &Path) -> Result<Vec<Definition>, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.is_dir() {
        let app_directory = String::new();
        return read(&look(&Files {
            root: path.to_owned(),
            app_directory,
            watch_root: false,
            ignore_dot_files: false,
        })?);
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(vec![Definition::parse(&name, &text)?])
}

fn read(files: &[Seen]) -> Result<Vec<Definition>, String> {
    let mut definitions = Vec::with_capacity(files.len());
    for file in files {
        // A file that goes between two looks is gone at the next.
        let Ok(bytes) = fs::read(&file.path) else { continue };
        let text = String::from_utf8(bytes).map_err(|_| format!("{}: not UTF-8", file.name))?;
        definitions.push(Definition::parse(&file.name, &text)?);
    }
    Ok(definitions)
}

/// All files that belong to the configuration, in order of their names. A folder that is not there is an error and not an
/// empty configuration: where it is about to be replaced, or its name is mistyped, nothing would be limited.
fn look(files: &Files) -> Result<Vec<Seen>, String> {
    let mut found = Vec::new();
    // Files are named as Envoy's service names them: the path below the root, with dots.
    let (start, prefix) = if files.watch_root {
        (files.root.clone(), format!("{}.", files.app_directory.replace('/', ".")))
    } else {
        (files.root.join(&files.app_directory), String::new())
    };
    let entries = fs::read_dir(&start).map_err(|error| format!("the folder {}: {error}", start.display()))?;
    walk(entries, "", files.ignore_dot_files, &mut found);
    found.retain(|file| file.name.starts_with(&prefix));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn walk(entries: fs::ReadDir, name: &str, ignore_dot_files: bool, found: &mut Vec<Seen>) {
    for entry in entries.flatten() {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        if ignore_dot_files && file_name.starts_with('.') {
            continue;
        }
        let path = entry.path();
        let name = if name.is_empty() { file_name } else { format!("{name}.{file_name}") };
        // Links to files are followed, links to folders are not: a ConfigMap has its files behind both.
        let Ok(kind) = entry.file_type() else { continue };
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if kind.is_dir() {
            if let Ok(entries) = fs::read_dir(&path) {
                walk(entries, &name, ignore_dot_files, found);
            }
        } else if metadata.is_file() {
            found.push(Seen {
                name,
                length: metadata.len(),
                changed: metadata.modified().ok(),
                inode: inode(&metadata),
                path,
            });
        }
    }
}

#[cfg(unix)]
fn inode(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_: &fs::Metadata) -> u64 {
    0
}
