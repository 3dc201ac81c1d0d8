//! What can be set when the module is loaded. Nothing yet; and what is not known is refused, because a setting that is
//! silently ignored is worse than none.

/// Reads the words behind the library's path in `loadmodule`.
pub fn read<'a>(mut arguments: impl Iterator<Item = &'a [u8]>) -> Result<(), String> {
    match arguments.next() {
        None => Ok(()),
        Some(unknown) => Err(format!(
            "unknown argument '{}': this version of rl takes no arguments behind the library's path",
            unknown.escape_ascii()
        )),
    }
}
