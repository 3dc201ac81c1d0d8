//! Configurations from files: every file below a folder, loaded again when one of them has changed.
//!
//! The files are read once a second, and what they say is compared with what they said before. Nothing has to be known of
//! how a file changes: a link that moves anywhere above, the swap of a Kubernetes ConfigMap, another owner or mode, a
//! network file system. Notifications of the file system (inotify, the `notify` crate) are of a folder and not of a path,
//! and would need watches to be found anew for each of these.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Update;
use super::definition::Definition;
use crate::settings::Files;

const PERIOD: Duration = Duration::from_secs(1);

/// Reads the files, and sends what they say now and whenever they have changed.
pub async fn watch(files: Files, updates: mpsc::Sender<Update>) {
    let mut last = None;
    loop {
        let read = tokio::task::spawn_blocking({
            let files = files.clone();
            move || {
                let texts = read(&files);
                // What is replaced meanwhile, as by a link that moves, would be read in part as it was and in part as it is.
                let changed = last.as_ref() != Some(&texts) && texts == read(&files);
                let definitions = changed.then(|| parse(texts.as_ref().map_err(Clone::clone)?));
                (if changed { Some(texts) } else { last }, definitions)
            }
        });
        let Ok((texts, changed)) = read.await else { return };
        last = texts;
        if let Some(definitions) = changed
            && updates.send(Update { definitions, answer: None }).await.is_err()
        {
            return;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Reads a file, or all files of a folder.
pub fn read_all(path: &Path) -> Result<Vec<Definition>, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.is_dir() {
        let folder =
            Files { root: path.to_owned(), app_directory: String::new(), watch_root: false, ignore_dot_files: true };
        return parse(&read(&folder)?);
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(vec![Definition::parse(&name, &text)?])
}

fn parse(texts: &[(String, String)]) -> Result<Vec<Definition>, String> {
    texts.iter().map(|(name, text)| Definition::parse(name, text)).collect()
}

/// All files that belong to the configuration, in order of their names. What cannot be read, or a folder that is not there,
/// is an error and not an empty configuration: nothing would be limited.
fn read(files: &Files) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    let folder = files.root.join(&files.app_directory);
    // Files are named as Envoy's service names them: the path below the root, with dots.
    let (start, prefix) = if files.watch_root && !files.app_directory.is_empty() {
        (&files.root, format!("{}.", files.app_directory.replace('/', ".")))
    } else {
        (&folder, String::new())
    };
    walk(start, "", &prefix, files.ignore_dot_files, &mut found)?;
    // Links to folders are not followed below the root.
    if found.is_empty() && files.watch_root && !fs::symlink_metadata(&folder).is_ok_and(|folder| folder.is_dir()) {
        return Err(format!("there is no folder {}, and no file whose name begins so", folder.display()));
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

fn walk(
    folder: &Path,
    name: &str,
    prefix: &str,
    ignore_dot_files: bool,
    found: &mut Vec<(String, String)>,
) -> Result<(), String> {
    let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let entries = fs::read_dir(folder).map_err(|error| format!("the folder {}: {error}", folder.display()))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(folder, error))?;
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let ignored = ignore_dot_files && file_name.starts_with('.');
        let path = entry.path();
        let name = if name.is_empty() { file_name } else { format!("{name}.{file_name}") };
        // Only what is, or may have in it, a name with the prefix. The folder itself may be hidden.
        if (ignored || !name.starts_with(prefix)) && !prefix.starts_with(&format!("{name}.")) {
            continue;
        }
        // Links to files are followed, links to folders are not: a ConfigMap has its files behind both.
        let kind = entry.file_type().map_err(|error| failed(&path, error))?;
        if kind.is_dir() {
            walk(&path, &name, prefix, ignore_dot_files, found)?;
            continue;
        }
        let is_file = fs::metadata(&path).map_err(|error| failed(&path, error))?.is_file();
        if is_file && name.starts_with(prefix) {
            let bytes = fs::read(&path).map_err(|error| failed(&path, error))?;
            let text = String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8"))?;
            found.push((name, text));
        }
    }
    Ok(())
}
